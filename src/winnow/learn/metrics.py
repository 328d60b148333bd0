"""Scores of a model: higher is better, and each is a mean over samples."""

from collections.abc import Callable

import torch
from torch import Tensor

from winnow.core import ConfigError
from winnow.data.preprocessing import IGNORED

Score = Callable[[Tensor, Tensor], Tensor]
"""(outputs, targets) -> one score a sample."""


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """The share of samples whose largest output is their class; a single output says yes if it is above 0.

    Of a sequence of classes, the share of its positions that are not ignored.
    """
    if targets.dim() > 1:
        right, counts = outputs.argmax(dim=-1) == targets, targets != IGNORED
        return (right & counts).sum(1) / counts.sum(1).clamp_min(1)
    single = outputs.dim() == 1 or outputs.shape[1] == 1
    chosen = (outputs.flatten() > 0).long() if single else outputs.argmax(dim=1)
    return (chosen == targets).float()


def relative_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 − |y − ŷ| / max(y, ŷ), clamped to [0, 1] and averaged over the targets; for targets that are not negative."""
    outputs = outputs.reshape(targets.shape)
    largest = torch.maximum(outputs, targets).clamp_min(1e-8)
    return (1 - (targets - outputs).abs() / largest).clamp(0, 1).flatten(1).mean(dim=1)


def r2_against(targets: Tensor) -> Score:
    """R² = 1 − MSE / Var(y) with the variance of these targets, averaged over the target columns."""
    variance = targets.double().var(dim=0, unbiased=False).clamp_min(1e-12).float()

    def r2(outputs: Tensor, targets: Tensor) -> Tensor:
        return (1 - (targets - outputs.reshape(targets.shape)).square() / variance).flatten(1).mean(dim=1)

    return r2


METRICS: dict[str, Callable[[Tensor], Score]] = {
    "accuracy": lambda _: accuracy,
    "r2": r2_against,
    "relative-accuracy": lambda _: relative_accuracy,
}
METRIC_CHOICES = {True: ("accuracy",), False: ("r2", "relative-accuracy")}
"""The scores that fit a classification and a regression, the default first."""


POOLABLE_METRICS = ("accuracy", "relative-accuracy")
"""The scores that several holders of data can measure apart; R² needs the variance over all of them."""


def metric_name(asked: str | None, classes: int | None, *, pooled: bool) -> str:
    """The score to use: the one asked for, if it fits, or the task's default."""
    fitting = [name for name in METRIC_CHOICES[classes is not None] if name in POOLABLE_METRICS or not pooled]
    if asked is not None and asked not in fitting:
        kind = "a regression" if classes is None else "a classification"
        kind += " evaluated by clients (reference_clients, evaluation.by)" if pooled else ""
        raise ConfigError(f"metric: {asked!r} cannot be used for {kind}; choose {' or '.join(fitting)}")
    return asked or fitting[0]
