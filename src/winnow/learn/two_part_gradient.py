"""The step of FedMatch: a model θ = σ + ψ whose parts are moved by different losses."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from winnow.learn.augment import strong
from winnow.learn.helper_models import KNOWN
from winnow.learn.local_optimiser import Sgd
from winnow.learn.moving_average import average_outputs
from winnow.learn.pseudo_labels import SURE, sure_labels
from winnow.learn.stack import Batch, Draw, GradientRule, StepContext, mean_loss

PSI, RATE, SEEN, VELOCITY = "psi", "rate", "seen", "velocity"


@dataclass(frozen=True, kw_only=True)
class TwoPartGradient(GradientRule):
    """First σ moves along λ_s·CE(f(x), y), then, at the model that this gives, ψ along

    λ_i·mean_h KL(p_h ‖ p) + λ_a·CE(f(s(u)), ŷ) + λ₂·‖σ − ψ‖² + λ₁·‖ψ‖₁

    over unlabelled samples u with max p ≥ τ, where p and p_h are the client's own probabilities and its helpers', and ŷ
    is the class for which most of them vote (equations 3 to 6); of classes with as many votes, the first. The sum of
    both directions is what the optimiser follows. Its steps are linear in gradients, momentum and decay included, so
    that ψ is told apart by taking the same steps along its own.
    """

    threshold: float
    labelled_weight: float
    helper_weight: float
    agreement_weight: float
    l2: float
    l1: float
    helpers: int
    unlabelled_ratio: int
    local: Sgd

    @property
    def draws(self) -> Sequence[Draw]:
        return Draw("labelled"), Draw("unlabelled", self.unlabelled_ratio)

    def __call__(
        self, at: StepContext, parameters: list[Tensor], batches: Sequence[Batch]
    ) -> tuple[list[Tensor], Tensor]:
        labelled, unlabelled = batches
        gradients, losses = at.gradients(parameters, labelled)
        rate = at.memory[RATE]
        known = [self.labelled_weight * gradient for gradient in gradients]
        now = [tensor - _of_client(rate, tensor) * slope for tensor, slope in zip(parameters, known, strict=True)]
        further, loss = self._unlabelled(at, now, unlabelled)
        loss = loss + self.labelled_weight * mean_loss(labelled, losses)
        for name, tensor, slope in zip(at.execution.layout.trained, now, further, strict=True):
            psi = at.memory[f"{PSI}/{name}"]
            slope.add_(2 * psi - tensor, alpha=2 * self.l2).add_(psi.sign(), alpha=self.l1)  # ψ − σ = 2ψ − θ
            of_parts = self.l2 * (tensor - 2 * psi).square() + self.l1 * psi.abs()
            loss = loss + of_parts.flatten(1).sum(1)
            psi.sub_(_of_client(rate, psi) * self._step(at, name, psi, slope))
        return list(torch._foreach_add(known, further)), loss

    def _step(self, at: StepContext, name: str, psi: Tensor, slope: Tensor) -> Tensor:
        """How far the optimiser would move ψ, as a multiple of the rate."""
        local, slope = self.local, slope + self.local.weight_decay * psi
        if not local.momentum:
            return slope
        velocity = at.memory[f"{VELOCITY}/{name}"].mul_(local.momentum).add_(slope)
        return slope + local.momentum * velocity if local.nesterov else velocity

    def _unlabelled(self, at: StepContext, parameters: list[Tensor], batch: Batch) -> tuple[list[Tensor], Tensor]:
        """The gradient of what depends on samples, and that loss of each client."""
        if not batch.sizes.any():
            return [torch.zeros_like(tensor) for tensor in parameters], batch.weight.new_zeros(len(batch.weight))
        outputs = at.outputs(parameters, batch.x)
        guess, sure = sure_labels(outputs, self.threshold)
        inside = (batch.weight > 0) & sure.view(batch.weight.shape)
        at.memory[SEEN].add_((batch.weight > 0).sum(1, keepdim=True))
        at.memory[SURE].add_(inside.sum(1, keepdim=True))
        share = inside / inside.sum(1, keepdim=True).clamp_min(1)
        told, votes = self._ask_helpers(at, batch, outputs, guess)
        known = (at.memory[KNOWN] > 0).to(share)
        near = batch._replace(y=told, weight=(self.helper_weight * known * share).to(batch.weight))
        hard = batch._replace(
            x=at.changed(strong, "strong", batch),
            y=votes.argmax(1),
            weight=(self.agreement_weight * share).to(batch.weight),
        )
        total, loss = at.gradients(parameters, hard)
        loss = mean_loss(hard, loss)
        if bool((known > 0).any()):
            further, divergences = at.gradients(parameters, near)
            entropy = torch.special.entr(told).sum(1).view(batch.weight.shape)  # cross-entropy less this is KL
            total, loss = list(torch._foreach_add(total, further)), loss + mean_loss(near, divergences - entropy)
        return total, loss

    def _ask_helpers(self, at: StepContext, batch: Batch, outputs: Tensor, guess: Tensor) -> tuple[Tensor, Tensor]:
        """The mean of the helpers' probabilities, and everybody's votes, [K·B, classes] each."""
        votes = torch.zeros_like(outputs).scatter_(1, guess.unsqueeze(1), 1.0)
        told, width = torch.zeros_like(outputs), batch.weight.shape[1]
        of_client = at.memory[KNOWN].repeat_interleave(width, 0)
        for number in range(self.helpers):
            there = (number < of_client).to(outputs)
            if not bool(there.any()):
                break
            shares = average_outputs(at, batch, batch.x, f"{number}/").softmax(1)
            told += there * shares / of_client.clamp_min(1)
            votes.scatter_add_(1, shares.argmax(1, keepdim=True), there)
        return told, votes


def _of_client(numbers: Tensor, like: Tensor) -> Tensor:
    """[K, 1] as a factor for [K, ...]"""
    return numbers.view(-1, *[1] * (like.dim() - 1))
