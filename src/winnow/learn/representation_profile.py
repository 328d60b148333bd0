"""Representation profiles: what a model makes of a data set, as one Gaussian per element (FedProf, section 4).

A profile is the mean and the variance of each element of a layer's output before activation, over the samples of one
client (equation 8). It is computed in one streaming forward pass, in float64, and sent as two float32 vectors, q × 8
bytes.

Whatever the data, a profile is finite. Outputs that are NaN, infinite or absurdly large count as ±LIMIT, so a client
with such data lies very far from any sound reference. A single sample, a constant feature or a dead neuron has variance
zero; equation 10 then uses a floor (see `divergence`).
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from winnow.core import Arrays, Outcome, Reply, Task
from winnow.core.array_spec import ArraySpec, spec_of

OUTPUT_LIMIT = 1e18
"""Outputs are cut off here: the square still fits into a float32."""

ELEMENT_BYTES = 8
"""A profile has two single-precision numbers an element."""

FAR_MEAN_RATIO = 1e6
"""A group whose mean lies a thousand of its standard deviations away is summed around its own mean."""

FAR_VALUE_RATIO = 1e12
"""A group of one sample has no spread: it counts as far if it lies a million times its own size away."""

RELATIVE_FLOOR = 1e-6
ABSOLUTE_FLOOR = 1e-12


ReplyCheck: TypeAlias = Callable[[Reply], str | None]
"""What is wrong with a reply, for whoever asked; None if nothing is."""


class SendTasks(Protocol):
    """Holds an exchange: hands out tasks, gives back the sound replies; `check` says which are, besides."""

    def __call__(self, tasks: Sequence[Task], check: ReplyCheck | None = None) -> list[Outcome]: ...


class ReferenceProfile(ABC):
    """The profile of the reference set as the server has it: what clients' profiles are compared with."""

    @property
    @abstractmethod
    def nbytes(self) -> int:
        """What a client's profile weighs on its way here."""

    @abstractmethod
    def fault(self, part: Arrays, samples: int) -> str | None:
        """What is wrong with the profile of a client with so many samples, as it came; None if it can be compared with
        this one.
        """

    @abstractmethod
    def divergences(self, parts: Sequence[Arrays], ask: SendTasks) -> NDArray[np.float64]:
        """div(RP_k, RP_V) for each of these profiles, as they came; NaN for one that cannot be trusted."""

    @abstractmethod
    def state(self) -> Arrays:
        """Named arrays for a checkpoint; none if this profile is of no use to a run that is continued."""


@dataclass(frozen=True, kw_only=True)
class Profile(ReferenceProfile):
    """RP(θ, D) of equation 8: N(mean_i, variance_i) for each of q elements."""

    mean: NDArray[np.float32]
    variance: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.mean)

    @classmethod
    def of(cls, part: Arrays) -> "Profile":
        """The profile that named arrays hold."""
        return cls(mean=np.asarray(part["mean"], np.float32), variance=np.asarray(part["variance"], np.float32))

    @property
    def nbytes(self) -> int:
        return self.mean.nbytes + self.variance.nbytes

    def fault(self, part: Arrays, samples: int) -> str | None:
        return profile_fault(part, len(self))

    def divergences(self, parts: Sequence[Arrays], ask: SendTasks) -> NDArray[np.float64]:
        return divergence([Profile.of(part) for part in parts], self)

    def state(self) -> Arrays:
        return {"mean": self.mean, "variance": self.variance}


def profile_fault(part: Arrays, elements: int) -> str | None:
    """What is wrong with a profile of so many elements, as it came; None if it can be worked with."""
    for name in ("mean", "variance"):
        if name not in part or spec_of(part, name) != ArraySpec("float32", (elements,)):
            return "the profile has the wrong length or type"
    mean, variance = np.asarray(part["mean"]), np.asarray(part["variance"])
    if not (
        (np.abs(mean) <= 2 * OUTPUT_LIMIT).all() and (variance >= 0).all() and (variance <= 2 * OUTPUT_LIMIT**2).all()
    ):
        return "the profile is not finite or has negative variances"
    return None


class StreamingMoments:
    """Streaming mean and variance of q elements for K groups of samples, exact for any batch size.

    Batches are merged by Chan's rule: with counts n, m and a mean difference d, M2 grows by M2' + d²·n·m/(n+m).
    """

    def __init__(self, groups: int) -> None:
        self._groups = groups
        self._count = torch.zeros(0)
        self._mean = torch.zeros(0)
        self._m2 = torch.zeros(0)

    def add(self, values: Tensor, group: Tensor) -> None:
        """Fold in samples [n, q], each belonging to the group with that number; the numbers are on the CPU."""
        if not len(self._mean):
            self._count = values.new_zeros(self._groups, 1, dtype=torch.float64)
            self._mean = values.new_zeros(self._groups, values.shape[1], dtype=torch.float64)
            self._m2 = torch.zeros_like(self._mean)
        first = int(group.min())
        index = group - first
        count = torch.bincount(index).unsqueeze(1).double().to(values.device)
        span = slice(first, first + len(count))  # groups in it may have no samples here: they stay as they are
        mean, m2 = _batch_moments(values, index.to(values.device), count)
        known, delta = self._count[span], mean - self._mean[span]
        total = known + count
        divisor = total.clamp(min=1)
        self._mean[span] += delta * (count / divisor)
        self._m2[span] += m2 + delta.square() * (known * count / divisor)
        self._count[span] = total

    def moments(self) -> tuple[NDArray[np.int64], NDArray[np.float32], NDArray[np.float32]]:
        """How many samples each group has [K], their mean and their variance (the population's: divided by n) [K, q].

        A group without samples has zeros.
        """
        variance = self._m2 / self._count.clamp(min=1)
        return (
            self._count.long().flatten().cpu().numpy(),
            self._mean.float().cpu().numpy(),
            variance.float().cpu().numpy(),
        )

    def profiles(self) -> list[Profile]:
        """One profile a group."""
        _, mean, variance = self.moments()
        return [Profile(mean=m, variance=v) for m, v in zip(mean, variance, strict=True)]


def _batch_moments(values: Tensor, index: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """Mean and M2 of each group in a batch, [groups, q]; those of a group without samples mean nothing.

    In one pass around the batch's first sample. Where that loses digits, because a group lies far from that sample
    for its spread or holds what is no number, the sums show it, and two passes are made for that group instead.
    """
    alone, count = count <= 1, count.clamp(min=1)
    if values.is_cuda:  # to look at a sum would wait for the device, which has arithmetic to spare
        return _tame_moments(values, index, count)
    pivot = values[0].double()
    deviation = values.double().sub_(pivot)
    zeros = values.new_zeros(len(count), values.shape[1], dtype=torch.float64)
    first = zeros.index_add(0, index, deviation)
    second = zeros.index_add_(0, index, deviation.square_())
    shift = first.square() / count
    mean, m2 = pivot + first / count, second - shift
    near = torch.where(alone, FAR_VALUE_RATIO * mean.square(), FAR_MEAN_RATIO * m2)
    exact = ((second <= OUTPUT_LIMIT**2) & (shift <= near) & (pivot.abs() <= OUTPUT_LIMIT)).all(1)
    if not bool(exact.all()):
        rows, groups = (~exact)[index], exact.unsqueeze(1)
        tame_mean, tame_m2 = _tame_moments(values[rows], index[rows], count)
        mean, m2 = torch.where(groups, mean, tame_mean), torch.where(groups, m2, tame_m2)
    return mean, m2


def _tame_moments(values: Tensor, index: Tensor, count: Tensor) -> tuple[Tensor, Tensor]:
    """The same for values of any kind: cut off at the limit, and in two passes, so that nothing cancels."""
    tame = (
        torch.nan_to_num(values, nan=OUTPUT_LIMIT, posinf=OUTPUT_LIMIT, neginf=-OUTPUT_LIMIT)
        .clamp_(-OUTPUT_LIMIT, OUTPUT_LIMIT)
        .double()
    )
    zeros = tame.new_zeros(len(count), tame.shape[1])
    mean = zeros.index_add(0, index, tame) / count
    return mean, zeros.index_add_(0, index, (tame - mean[index]).square_())


def pool_profiles(profiles: Sequence[Profile], counts: Sequence[int]) -> Profile:
    """The profile of several holders' data taken together."""
    weights = np.asarray(counts, np.float64)[:, None] / sum(counts)
    means = np.stack([p.mean for p in profiles]).astype(np.float64)
    mean = (weights * means).sum(0)
    variance = (weights * (np.stack([p.variance for p in profiles]) + (means - mean) ** 2)).sum(0)
    return Profile(mean=mean.astype(np.float32), variance=variance.astype(np.float32))


def divergence(profiles: Sequence[Profile], reference: Profile) -> NDArray[np.float64]:
    """div(RP_k, RP_V) for each profile: the mean over elements of KL(N_k || N_V), equations 9 and 10.

    Variances below a floor count as the floor: 1e-6 of the reference's mean variance, and at least 1e-12. The result is
    finite for any finite profiles, and zero only where means are equal and variances are equal or below the floor.
    """
    mean = np.stack([p.mean for p in profiles]).astype(np.float64)
    v, v0 = floored_variances(np.stack([p.variance for p in profiles]), reference.variance)
    kl = 0.5 * (np.log(v0 / v) + (v - v0) / v0 + (mean - reference.mean.astype(np.float64)) ** 2 / v0)
    result: NDArray[np.float64] = kl.mean(axis=1)
    return result


def floored_variances(
    variance: NDArray[np.float32], reference: NDArray[np.float32]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Variances and the reference's, none below the floor that `divergence` tells of."""
    exact = reference.astype(np.float64)
    floor = max(RELATIVE_FLOOR * float(exact.mean()), ABSOLUTE_FLOOR)
    return np.maximum(variance.astype(np.float64), floor), np.maximum(exact, floor)
