"""FADE (Hong et al., 2021): some clients have labels, the others data of another domain. A domain head learns to tell
the two kinds apart by the features, and the features learn to hide it, so that what is learnt from labels carries over.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from math import exp
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from winnow.learn.aggregation import PartialAggregation
from winnow.learn.algorithm import Recipe
from winnow.learn.augment import weak
from winnow.learn.client_round_method import ClientUpdate, LocalResult, LocalTraining
from winnow.learn.extended_model import BESIDE
from winnow.learn.pseudo_labels import LABELLED, labelled_share
from winnow.learn.selection import UniformSelector
from winnow.learn.stack import Batch, Draw, GradientRule, Loss, StepContext, mean_loss


def _domain_losses(outputs: Tensor, domains: Tensor) -> Tensor:
    return functional.binary_cross_entropy_with_logits(outputs[:, -1], domains, reduction="none")


def _sure_domain_losses(outputs: Tensor, domains: Tensor) -> Tensor:
    logs = outputs[:, :-1].log_softmax(1)
    entropy = -(logs.exp() * logs).sum(1)
    return (1 + (-entropy).exp()) * _domain_losses(outputs, domains)


DOMAIN_LOSS = Loss("domain", _domain_losses)
"""Of the last output, the logit of a source."""
SURE_DOMAIN_LOSS = Loss("domain, sure samples first", _sure_domain_losses)
"""The same times 1 + exp(−H) with the entropy H of the class probabilities (CDAN+E, Long et al., 2018, section 3.2).
The gradient passes the weights, too: where the head is to be misled, predictions become surer.
"""


class DomainHead(nn.Module):
    """Whether a sample comes from a source: a logit of p ⊗ f, where p are the class probabilities, which are taken as
    given, and f the features (CDAN, Long et al., 2018, equation 3).
    """

    def __init__(self, features: int, outputs: int, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(features * outputs, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, features: Tensor, predictions: Tensor) -> Tensor:
        shares = predictions.detach().softmax(1)
        logit: Tensor = self.layers((shares.unsqueeze(2) * features.unsqueeze(1)).flatten(1))
        return logit


@dataclass(frozen=True, kw_only=True)
class AdversarialGradient(GradientRule):
    """∇CE over labelled samples, and the gradient of L²/2 with the domain loss L over all: its head goes down, the rest
    up `factor` times as far (section 4.2). A client without labels is of the target.
    """

    factor: float
    domain_loss: Loss

    @property
    def draws(self) -> Sequence[Draw]:
        return Draw("all"), Draw("labelled")

    def __call__(
        self, at: StepContext, parameters: list[Tensor], batches: Sequence[Batch]
    ) -> tuple[list[Tensor], Tensor]:
        everything, labelled = batches
        known = labelled._replace(x=at.changed(weak, "weak labelled", labelled))
        gradients, losses = at.gradients(parameters, known)
        source = torch.from_numpy(labelled.sizes > 0).to(everything.weight)
        seen = everything._replace(
            x=at.changed(weak, "weak all", everything),
            y=source.repeat_interleave(everything.weight.shape[1]),
        )
        turned, domain_losses = at.gradients(parameters, seen, self.domain_loss)
        domain = mean_loss(everything, domain_losses)
        for name, gradient, other in zip(at.execution.layout.trained, gradients, turned, strict=True):
            sign = 1.0 if name.startswith(BESIDE) else -self.factor
            gradient.add_(other * domain.view(-1, *[1] * (other.dim() - 1)), alpha=sign)
        return gradients, mean_loss(labelled, losses) + domain.square() / 2


class FadeUpdate(ClientUpdate):
    """Labelled samples and a domain head whose data stay home; everything is sent. Reported is the share of labelled
    samples.

    The features begin to hide the domain bit by bit: with p = round / `ramp_rounds` the factor is multiplied by
    2/(1 + exp(−10·p)) − 1, as in the authors' code, where p is the share of the rounds that are over. With `entropy`
    samples count more, the surer their class is, as in the authors' code, too.
    """

    name: Literal["fade"] = "fade"
    factor: float = Field(1.0, ge=0)
    ramp_rounds: int = Field(50, ge=0)
    hidden: int = Field(64, ge=1, le=65_536)
    entropy: bool = False
    training_factor: ClassVar[float] = 2.0
    own_steps: ClassVar[bool] = True
    uses_unlabelled: ClassVar[bool] = True
    tells_labelled_share: ClassVar[bool] = True

    def heads(self, features: int, outputs: int) -> nn.Module | None:
        return DomainHead(features, outputs, self.hidden)

    def strength(self, round: int) -> float:
        """How much of the factor counts in a round; they are numbered from 1."""
        return 2 / (1 + exp(-10 * (round - 1) / self.ramp_rounds)) - 1 if self.ramp_rounds else 1.0

    def update(self, training: LocalTraining) -> LocalResult:
        factor = self.factor * self.strength(training.round)
        domain_loss = SURE_DOMAIN_LOSS if self.entropy else DOMAIN_LOSS
        trained = training.train(gradient_rule=AdversarialGradient(factor=factor, domain_loss=domain_loss))
        shares = labelled_share(training.data, training.clients)
        return LocalResult(model=trained.states, trained=trained, metrics={LABELLED: shares})


fade = Recipe(
    name="fade",
    summary="labels in one domain, data without them in another",
    select=UniformSelector,
    client=FadeUpdate,
    aggregate=PartialAggregation,
)
