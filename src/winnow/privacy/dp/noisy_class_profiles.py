"""Profiles by class under differential privacy: what a client releases of one, and how that is read.

A client with n samples, n_c of class c with mean μ_c and variance v_c, releases for each class the share p_c = n_c/n
and the sums s_c = p_c·μ_c and t_c = p_c·v_c: a class counts for as much as it has samples.

Bound: all representations are scaled by one factor, as those of a marginal profile, to a mean square norm
Σ_c p_c·(‖μ_c‖² + ‖v_c‖₁) of at most C². In units of C and C², with τ = ‖t‖₁ and β_c² = ‖s_c‖²/p_c, this says
‖β‖² ≤ 1 − τ; besides, p ≥ 0, t ≥ 0 and ‖p‖₁ ≤ 1.

Sensitivity: two such (p, s, t) are at most 2 apart, so shares and variances are released at no extra cost. Let class c
have the largest p_c + p'_c, with a = p_c and b = p'_c. By Cauchy and Schwarz

    ‖s − s'‖² ≤ Σ_c (√p_c·β_c + √p'_c·β'_c)² ≤ Σ_c (p_c + p'_c)·(β_c² + β'_c²) ≤ (a + b)·(2 − τ − τ').

What is not negative has no negative inner product, so ‖t − t'‖² ≤ τ² + τ'² and, over class c and the others,
‖p − p'‖² ≤ (a − b)² + (1 − a)² + (1 − b)². The sum of these three bounds is convex in each of a, b, τ and τ', so it is
largest where each is 0 or 1, and there it is at most 4.
"""

from dataclasses import dataclass
from math import sqrt

import numpy as np
from numpy.typing import NDArray

from winnow.learn.profile_by_class import ClassProfile

Values = NDArray[np.float64]

TOLD_DEVIATIONS = 3.0
"""A class counts as told if its noisy share is so many standard deviations of the noise above zero: of classes without
samples, one in 740 is.
"""


@dataclass(frozen=True, kw_only=True)
class ClassSums:
    """(p, s/C, t/C²): [classes], and twice [classes, elements]."""

    shares: Values
    first: Values
    second: Values

    def vector(self) -> Values:
        return np.concatenate([self.shares, self.first.ravel(), self.second.ravel()])


def bounded_class_sums(profile: ClassProfile, samples: int, clip: float) -> ClassSums:
    """What a client with so many samples may release of its profile, before noise."""
    shares = profile.counts / samples
    mean, variance = profile.mean.astype(np.float64), profile.variance.astype(np.float64)
    size = sqrt(float(shares @ ((mean**2).sum(1) + variance.sum(1))))
    factor = min(1 / clip, 1 / size) if size else 1 / clip
    weights = shares[:, None]
    return ClassSums(shares=shares, first=factor * weights * mean, second=factor**2 * weights * variance)


def noisy_class_profile(
    profile: ClassProfile, samples: int, clip: float, deviation: float, rng: np.random.Generator
) -> ClassProfile:
    """What a client releases of its profile, with noise of this standard deviation in the units of `ClassSums`."""
    exact = bounded_class_sums(profile, samples, clip)
    noisy = ClassSums(
        shares=exact.shares + rng.normal(0.0, deviation, exact.shares.shape),
        first=exact.first + rng.normal(0.0, deviation, exact.first.shape),
        second=exact.second + rng.normal(0.0, deviation, exact.second.shape),
    )
    return _read(noisy, samples, clip, TOLD_DEVIATIONS * deviation)


def _read(noisy: ClassSums, samples: int, clip: float, least_share: float) -> ClassProfile:
    """The profile that noisy sums tell of. It looks at nothing else, and so costs no privacy: `samples` is public."""
    shares = np.where(noisy.shares >= max(least_share, 0.5 / samples), noisy.shares, 0.0)
    shares /= max(1.0, shares.sum())
    counts = np.diff(np.rint(samples * np.cumsum(shares)), prepend=0.0).astype(np.int64)  # never more than `samples`
    told = (counts > 0)[:, None]
    divisor = np.where(told, shares[:, None], 1.0)
    mean = np.where(told, clip * noisy.first / divisor, 0.0)
    variance = np.where(told, clip**2 * np.maximum(noisy.second, 0.0) / divisor, 0.0)
    return ClassProfile(counts=counts, mean=mean.astype(np.float32), variance=variance.astype(np.float32))
