"""What methods for few labels share: sure pseudo-labels, and steps on changed samples."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import isfinite, nan
from statistics import fmean

import torch
from torch import Tensor

from winnow.core import Reply
from winnow.data.preprocessing import NO_LABEL
from winnow.learn.augment import weak
from winnow.learn.stack import Batch, Draw, GradientRule, StepContext, TensorData, mean_loss
from winnow.learn.stack.flat_client_data import Indices

PSEUDO_LABELS = "pseudo-labels"
"""What a round tells of the labels that clients give their samples by the model."""
SURE = "sure"
"""The share of a client's unlabelled samples that its method gave a label, because it was sure enough."""

LABELLED = "labelled"
"""The share of a client's samples that have a label."""
TOLD_OF_LABELS = (SURE, LABELLED)


def share_of_sure(replies: Sequence[Reply]) -> dict[str, float]:
    """The mean over clients that told it."""
    shares = [reply.metrics[SURE] for reply in replies if isfinite(reply.metrics.get(SURE, nan))]
    return {SURE: fmean(shares)} if shares else {}


def labelled_share(data: TensorData, clients: Indices) -> Tensor:
    """Of each client's samples, [K]."""
    shares = [data.labelled[data.rows_of(int(client))].mean() for client in clients]
    return torch.tensor(shares, dtype=torch.float32, device=data.device)


@torch.no_grad()
def sure_labels(outputs: Tensor, threshold: float) -> tuple[Tensor, Tensor]:
    """The class of the largest probability of each sample, and whether that reaches the threshold."""
    confidence, guess = torch.softmax(outputs, 1).max(1)
    return guess, confidence >= threshold


def pseudo_labels(outputs: Tensor, threshold: float) -> Tensor:
    """The most probable class of each sample, or none where the model is not sure enough."""
    guess, sure = sure_labels(outputs, threshold)
    return torch.where(sure, guess, NO_LABEL)


def clipped(gradients: list[Tensor], bound: float) -> list[Tensor]:
    """Each client's gradient, [K, ...], scaled down to a norm of at most the bound."""
    squares = torch.stack([gradient.flatten(1).square().sum(1) for gradient in gradients]).sum(0)
    factor = (bound / squares.sqrt().clamp_min(torch.finfo(squares.dtype).tiny)).clamp_max(1)
    return [gradient * factor.view(-1, *[1] * (gradient.dim() - 1)) for gradient in gradients]


def added(one: list[Tensor], other: list[Tensor], factor: float = 1.0) -> list[Tensor]:
    """one + factor·other"""
    return list(torch._foreach_add(one, other, alpha=factor))


@dataclass(frozen=True, kw_only=True)
class AugmentedGradient(GradientRule):
    """Supervised steps on weakly changed samples, CE(f(w(x)), y), bounded to a norm."""

    clip: float

    @property
    def draws(self) -> Sequence[Draw]:
        return (Draw("labelled"),)

    def __call__(
        self, at: StepContext, parameters: list[Tensor], batches: Sequence[Batch]
    ) -> tuple[list[Tensor], Tensor]:
        (labelled,) = batches
        changed = labelled._replace(x=at.changed(weak, "weak labelled", labelled))
        gradients, losses = at.gradients(parameters, changed)
        return clipped(gradients, self.clip), mean_loss(labelled, losses)
