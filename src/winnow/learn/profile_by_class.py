"""Profiles by class: one profile for each label, compared with the reference's profile of that label.

A marginal profile does not see labels, and takes a client with other classes than the reference for one with other
data. Profiles by class see both: wrong inputs and wrong labels change what a class looks like, another mix of classes
does not. They take the same forward pass, and `count` times the bytes.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import inf

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from winnow.core import Arrays, ConfigError
from winnow.core.array_spec import ArraySpec, spec_of
from winnow.learn.client_quality.class_moments import ClassMoments
from winnow.learn.representation_profile import (
    ABSOLUTE_FLOOR,
    ELEMENT_BYTES,
    OUTPUT_LIMIT,
    Profile,
    ReferenceProfile,
    SendTasks,
    StreamingMoments,
)

MAX_CLASSES = 50
"""More labels than these share classes, so that a profile stays small."""

TARGET_BINS = 5
"""The classes of a regression: its first target between quantiles of the reference's."""

COUNT_BYTES = 8

VARIANCE_FLOOR = 0.01
"""Variances count as at least this share of the reference's mean variance within classes. A class has few samples, so
its variance may be near zero by chance, and equation 10 divides by it: at the floor a mean that is off by a typical
standard deviation counts as 50, not as a million.
"""


@dataclass(frozen=True, kw_only=True)
class ProfileClasses:
    """Into which class each sample falls, and what of a class may be told."""

    labels: tuple[int, ...] = ()
    """By label, its class; none in a regression."""
    edges: tuple[float, ...] = ()
    """In a regression, what separates the classes of the first target, in rising order."""
    min_rows: int
    """A class with fewer samples is not told."""
    count_step: int
    """Counts are rounded down to a multiple of this."""

    @property
    def count(self) -> int:
        return max(self.labels) + 1 if self.labels else len(self.edges) + 1

    def fits(self, labels: int | None) -> bool:
        """Whether these are classes of so many labels (None: of a regression's target) as `label_classes` and
        `target_edges` make them, whoever sent them.
        """
        if labels is not None:
            possible = range(min(labels, MAX_CLASSES))
            return not self.edges and len(self.labels) == labels and {*self.labels} <= {*possible}
        rising = all(low < high for low, high in pairwise((-inf, *self.edges, inf)))
        return not self.labels and len(self.edges) < TARGET_BINS and rising

    def profile_bytes(self, elements: int) -> int:
        return self.count * (ELEMENT_BYTES * elements + COUNT_BYTES)

    def of(self, y: Tensor) -> Tensor:
        """The class of each sample with these labels or targets, on the CPU."""
        if self.labels:
            return torch.tensor(self.labels)[y.cpu()]
        return torch.bucketize(y[:, 0].cpu().double(), torch.tensor(self.edges, dtype=torch.float64))

    def told(self, moments: StreamingMoments) -> "list[ClassProfile]":
        """The profiles of several owners, whose moments are in groups of `count`, without what may not be told."""
        return [each.coarse(self.min_rows, self.count_step) for each in ClassProfile.by_owner(moments, self.count)]


def label_classes(labels: int, counts: NDArray[np.int64]) -> tuple[int, ...]:
    """By label, its class: one each or, of too many, shared in turn in the order of how often the reference has them,
    so that frequent labels share a class with rare ones only.
    """
    if labels <= MAX_CLASSES:
        return tuple(range(labels))
    rank = np.empty(labels, np.int64)
    rank[np.argsort(-counts, kind="stable")] = np.arange(labels)
    return tuple((rank % MAX_CLASSES).tolist())


def target_edges(targets: NDArray[np.float32]) -> tuple[float, ...]:
    """Quantiles of the reference's first target that separate bins of about equally many samples; fewer where many are
    the same.
    """
    if not len(targets):
        raise ConfigError(
            'reference_clients: select.profile = "by-class" separates the targets of a regression by quantiles of the '
            'reference set, which the server must hold; remove it, or write select.profile = "marginal"'
        )
    shares = np.arange(1, TARGET_BINS) / TARGET_BINS
    return tuple(np.unique(np.quantile(targets[:, 0].astype(np.float64), shares)).tolist())


@dataclass(frozen=True, kw_only=True)
class ClassProfile(ClassMoments, ReferenceProfile):
    """One profile a class: N(mean_ci, variance_ci) for each of q elements, of counts_c samples."""

    @property
    def nbytes(self) -> int:
        return self.counts.nbytes + self.mean.nbytes + self.variance.nbytes

    def fault(self, part: Arrays, samples: int) -> str | None:
        return class_profile_fault(part, self.mean.shape, samples)

    def divergences(self, parts: Sequence[Arrays], ask: SendTasks) -> NDArray[np.float64]:
        return class_divergence([ClassProfile.of(part) for part in parts], self)

    def state(self) -> Arrays:
        return self.arrays()


def restored_profile(arrays: Arrays) -> Profile | ClassProfile:
    """The reference profile whose `state` these arrays are."""
    return ClassProfile.of(arrays) if "counts" in arrays else Profile.of(arrays)


def class_profile_fault(part: Arrays, shape: tuple[int, ...], samples: int) -> str | None:
    """What is wrong with a profile by class of [classes, elements], as it came from a client with so many samples; None
    if it can be worked with.
    """
    for name in ("mean", "variance"):
        if name not in part or spec_of(part, name) != ArraySpec("float32", shape):
            return "the profile by class has the wrong shape or type"
    mean, variance = np.asarray(part["mean"]), np.asarray(part["variance"])
    if not (
        (np.abs(mean) <= 2 * OUTPUT_LIMIT).all() and (variance >= 0).all() and (variance <= 2 * OUTPUT_LIMIT**2).all()
    ):
        return "the profile by class is not finite or has negative variances"
    fault = counts_fault(part, shape[0], samples)
    return fault and f"the profile by class is not sound: {fault}"


def counts_fault(part: Arrays, classes: int, samples: int) -> str | None:
    """What is wrong with the counts of a profile by class."""
    if "counts" not in part or spec_of(part, "counts") != ArraySpec("int64", (classes,)):
        return "its counts have the wrong length or type"
    counts = np.asarray(part["counts"])
    if (counts < 0).any() or (counts > samples).any() or counts.sum() > samples:
        return f"its counts are negative, or more than the client's {samples} samples"
    return None


def class_divergence(profiles: Sequence[ClassProfile], reference: ClassProfile) -> NDArray[np.float64]:
    """Σ_c w_kc · div(RP_kc, RP_Vc) less what chance makes of it; NaN for a client without a class to compare.

    Each class is compared by equations 9 and 10, and weighs by its samples (`class_weights`).
    """
    v, v0 = floored_class_variances(np.stack([p.variance for p in profiles]), reference.variance, reference.counts)
    mean = np.stack([p.mean for p in profiles]).astype(np.float64)
    kl = 0.5 * (np.log(v0 / v) + (v - v0) / v0 + (mean - reference.mean.astype(np.float64)) ** 2 / v0)
    counts = np.stack([p.counts for p in profiles])
    weights = class_weights(counts, reference.counts)
    found: NDArray[np.float64] = (weights * kl.mean(axis=2)).sum(1)
    return found - null_divergence(weights, counts, reference.counts)


def class_weights(counts: NDArray[np.int64], reference: NDArray[np.int64]) -> NDArray[np.float64]:
    """[clients, classes]: each class's share of a client's samples, of those classes that the reference has too; NaN
    for a client with none.
    """
    comparable = np.where(reference > 0, counts, 0).astype(np.float64)
    total = comparable.sum(1, keepdims=True)
    weights: NDArray[np.float64] = comparable / np.where(total > 0, total, np.nan)
    return weights


def null_divergence(
    weights: NDArray[np.float64], counts: NDArray[np.int64], reference: NDArray[np.int64]
) -> NDArray[np.float64]:
    """What equation 10 gives on average where both have the same data: 1/n + 1/m for n samples of a class against m.

    The squared difference of two means is (1/n + 1/m)·σ² on average, and half of it counts; that of the logarithms of
    two variances is 2/n + 2/m, and a quarter of it counts. Without it, small clients would look worse than large ones.
    """
    expected = 1 / np.maximum(counts, 1) + 1 / np.maximum(reference, 1)
    result: NDArray[np.float64] = (weights * expected).sum(1)
    return result


def floored_class_variances(
    variance: NDArray[np.float32], reference: NDArray[np.float32], counts: NDArray[np.int64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Variances [..., classes, elements] and the reference's, none below the floor (`VARIANCE_FLOOR`)."""
    exact = reference.astype(np.float64)
    typical = float(exact[counts > 0].mean()) if (counts > 0).any() else 1.0
    floor = max(VARIANCE_FLOOR * typical, ABSOLUTE_FLOOR)
    return np.maximum(variance.astype(np.float64), floor), np.maximum(exact, floor)
