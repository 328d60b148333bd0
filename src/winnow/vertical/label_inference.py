"""How well labels can be told from the gradients that leave their owner.

The owner of labels attacks itself, as an owner of features could that knows one sample's label of each class: every
other sample gets the class whose known gradient points most nearly in the same direction. With two classes, norms are
tried as well (Li et al. 2022).
"""

import numpy as np
import torch
from torch import Tensor

MAX_SAMPLES = 2000
SHARES = ("guessed", "by_direction", "norm_auc")
"""What `scores` tells."""


class LabelInference:
    """Gathers gradients of an epoch as they leave, with the labels behind them."""

    def __init__(self, classes: int) -> None:
        self._classes = classes
        self._gradients: list[Tensor] = []
        self._labels: list[Tensor] = []
        self._count = 0

    def add(self, gradient: Tensor, labels: Tensor) -> None:
        left = MAX_SAMPLES - self._count
        if left > 0:
            self._gradients.append(gradient.detach().flatten(1)[:left])
            self._labels.append(labels[:left])
            self._count += len(self._labels[-1])

    def scores(self) -> dict[str, float]:
        """Shares of labels that are inferred right; `guessed` is what naming the most frequent class gets."""
        labels = torch.cat(self._labels)
        gradients = torch.cat(self._gradients)
        counts = torch.bincount(labels, minlength=self._classes)
        scores = {"guessed": float(counts.max() / len(labels)), "by_direction": _by_direction(gradients, labels)}
        if self._classes == 2 and (counts > 0).all():
            scores["norm_auc"] = _auc(gradients.norm(dim=1).numpy(), labels.numpy())
        return scores


def _by_direction(gradients: Tensor, labels: Tensor) -> float:
    present = torch.tensor(sorted({*labels.tolist()}))
    known = torch.stack([(labels == label).nonzero()[0, 0] for label in present])
    units = gradients / gradients.norm(dim=1, keepdim=True).clamp(min=1e-30)
    guesses = present[(units @ units[known].T).argmax(dim=1)]
    others = torch.ones(len(labels), dtype=torch.bool)
    others[known] = False
    return float((guesses == labels)[others].float().mean()) if others.any() else 0.0


def _auc(scores: np.ndarray, labels: np.ndarray) -> float:
    """Whichever way the norms tell: at least one half."""
    from scipy.stats import rankdata  # noqa: PLC0415 - takes a while to import

    ranks, positive = rankdata(scores), labels == 1
    ones, zeros = int(positive.sum()), int((~positive).sum())
    auc = (float(ranks[positive].sum()) - ones * (ones + 1) / 2) / (ones * zeros)
    return max(auc, 1 - auc)
