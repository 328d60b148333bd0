"""FedX (Han et al., 2022), beside another method for features without labels: the local network also learns how the
global one, as it came, and the target see a batch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional

from winnow.learn.augment import view
from winnow.learn.moving_average import average_outputs
from winnow.learn.pseudo_labels import added
from winnow.learn.stack import Batch, Draw, GradientRule, Loss, StepContext, mean_loss

GLOBAL = "global "
"""What the names of the global network begin with in a rule's memory."""
OUTSIDE = -1e4
"""The logit of a sample that is padding."""


@dataclass(frozen=True, kw_only=True)
class FedXGradient(GradientRule):
    """The base method's loss + weight·(L_c + L_r + L'_r), with refs the projections of the batch's second views:

    L_c = −log softmax(q·refs / T) at the sample's own (global contrast) and L_r = JS(softmax(q·refs / T),
    softmax(z·refs / T)) with z and refs of the global network (global relation); L'_r is L_r with those of the target
    (local relation). q is the prediction of the first view and z the projection of it, all of length 1 (sections 3.2
    and 3.3).
    """

    base: GradientRule
    width: int
    weight: float
    temperature: float

    @property
    def draws(self) -> Sequence[Draw]:
        return self.base.draws

    def __call__(
        self, at: StepContext, parameters: list[Tensor], batches: Sequence[Batch]
    ) -> tuple[list[Tensor], Tensor]:
        (batch,) = batches
        gradients, loss = self.base(at, parameters, batches)
        one, other = (at.changed(view, name, batch) for name in ("first view", "second view"))
        for prefix, contrast in ((GLOBAL, 1.0), ("", 0.0)):
            z, refs = (self._projection(average_outputs(at, batch, x, prefix)) for x in (one, other))
            goals = _packed(batch, z, refs)
            further, losses = at.gradients(parameters, batch._replace(x=one, y=goals), self._loss(goals, contrast))
            gradients, loss = added(gradients, further, self.weight), loss + self.weight * mean_loss(batch, losses)
        return gradients, loss

    def after(self, at: StepContext, parameters: list[Tensor]) -> None:
        self.base.after(at, parameters)

    def _projection(self, outputs: Tensor) -> Tensor:
        return functional.normalize(outputs[:, -2 * self.width : -self.width])

    def _loss(self, goals: Tensor, contrast: float) -> Loss:
        width, temperature = self.width, self.temperature
        samples = (goals.shape[1] - width) // (width + 2)

        def losses(outputs: Tensor, packed: Tensor) -> Tensor:
            q = functional.normalize(outputs[:, -width:])
            z, refs, own, outside = torch.split(packed, [width, samples * width, samples, samples], dim=1)
            refs = refs.reshape(len(refs), samples, width)
            mine, theirs = (
                torch.log_softmax((refs @ each.unsqueeze(2)).squeeze(2) / temperature + outside, 1) for each in (q, z)
            )
            found: Tensor = -contrast * (own * mine).sum(1) + _divergence(mine, theirs)
            return found

        return Loss("fedx", losses)


def _divergence(one: Tensor, other: Tensor) -> Tensor:
    """Jensen and Shannon's, of logarithms of shares."""
    between = torch.logaddexp(one, other) - torch.log(torch.tensor(2.0))
    return ((one.exp() * (one - between)).sum(1) + (other.exp() * (other - between)).sum(1)) / 2


def _packed(batch: Batch, z: Tensor, refs: Tensor) -> Tensor:
    """For each sample its z, all of its client's refs, which of them is its own, and which are padding, [K·B, …]: what
    a loss of single samples needs to know of the others.
    """
    clients, samples = batch.weight.shape
    beside = refs.view(clients, 1, -1).expand(-1, samples, -1).flatten(0, 1)
    own = torch.eye(samples, device=z.device, dtype=z.dtype).repeat(clients, 1)
    outside = torch.where(batch.weight > 0, 0.0, OUTSIDE).to(z.dtype).repeat_interleave(samples, 0)
    return torch.cat([z, beside, own, outside], 1)
