"""How each feature of a client differs from what is expected of it: in place, in spread, and by class."""

from dataclasses import dataclass
from statistics import NormalDist

import numpy as np
from numpy.typing import NDArray

from winnow.learn.client_quality.class_moments import ClassMoments
from winnow.learn.client_quality.label_free_expected_moments import ExpectedMoments, Reals

FALSE_FINDINGS = 1e-3
"""With what probability an honest client, whose rows are drawn as the reference's are, has any feature too far off."""
NEEDED_SHIFT = 0.5
"""In standard deviations within classes: less is common between honest clients."""
NEEDED_SPREAD = float(np.log(1.3))
"""Of the standard deviation."""
_LIGHT_TAILS = 10.0
_TAIL_ROWS = 50.0
"""Above the kurtosis of light tails, so many times as many reference rows are needed to know a feature's moments."""


@dataclass(frozen=True, kw_only=True)
class ColumnDifferences:
    """For f features, over the classes that the client told of; all [f]."""

    rows: float
    """How many independent rows there are in all."""
    reference_rows: float
    """As how many of the reference's rows the expectation is worth."""
    mean: Reals
    expected_mean: Reals
    deviation: Reals
    """Within classes."""
    expected_deviation: Reals
    total_deviation: Reals
    """Over all rows."""
    expected_total: Reals
    kurtosis: Reals
    shift: Reals
    """(mean − expected) / expected deviation."""
    shift_z: Reals
    share_z: Reals
    """The same for features that are 0 or 1, whose tails are known."""
    spread: Reals
    """log(deviation / expected)."""
    spread_error: Reals
    spread_z: Reals
    by_class: Reals
    """Root mean square over classes of the shifts in each, less what chance adds."""
    by_class_z: Reals
    needed_z: float

    @property
    def place_strength(self) -> Reals:
        strength: Reals = np.minimum(np.abs(self.shift_z) / self.needed_z, np.abs(self.shift) / NEEDED_SHIFT)
        return strength

    @property
    def spread_strength(self) -> Reals:
        strength: Reals = np.minimum(np.abs(self.spread_z) / self.needed_z, np.abs(self.spread) / NEEDED_SPREAD)
        return strength

    @property
    def strength(self) -> Reals:
        """How sure and how large: 1 is worth saying; of place, spread and place by class the strongest."""
        classes = np.minimum(self.by_class_z / self.needed_z, self.by_class / NEEDED_SHIFT)
        strongest: Reals = np.maximum(np.maximum(self.place_strength, self.spread_strength), classes)
        return strongest


def column_differences(client: ClassMoments, expected: ExpectedMoments) -> ColumnDifferences:
    """The standard errors take heavy tails into account: by the kurtosis κ, n rows of a feature are as uncertain as

    sd(mean) = s √((1/n + 1/N)(1 + κ/n)),   variance / expected ~ χ²(ν) / ν, 2/ν = (κ − 1 + 2/(n − 1))(1/n + 1/N),

    and more so where the reference is too small to know the tails.
    """
    n, known = expected.counts[:, None], expected.reference_rows[:, None]
    mean, variance = (part[expected.told].astype(np.float64) for part in (client.mean, client.variance))
    share = n / n.sum()
    kurtosis = np.maximum(expected.fourth / np.maximum(expected.variance, 1e-300) ** 2, 1.0)
    inflation = 1 + kurtosis / n
    difference, error = mean - expected.mean, expected.variance * (1 / n + 1 / known) * inflation
    within, pooled_error = (share * expected.variance).sum(0), (share**2 * error).sum(0)
    chi, degrees = (difference**2 / error).sum(0), len(n)
    free = np.maximum(n - 1, 0)
    rows_free = max(float(free.sum()), 1.0)
    found = (n * variance).sum(0) / rows_free
    wanted = (free * expected.variance).sum(0) / rows_free if free.sum() else within
    total, reference_total = float(n.sum()), float(1 / (share**2 / known).sum())
    typical = (share * kurtosis).sum(0)
    doubt = 1 + np.maximum(typical - _LIGHT_TAILS, 0) * _TAIL_ROWS / reference_total
    means, expected_means = (share * mean).sum(0), (share * expected.mean).sum(0)
    least = (free * expected.least_variance).sum(0) / rows_free if free.sum() else wanted
    wanted = np.clip(found, least, wanted)  # between the two nothing is strange
    floor = 1e-6 * within
    freedom = 2 / ((np.maximum(typical - 1, 0.5) + 2 / rows_free) * (1 / total + 1 / reference_total))
    return ColumnDifferences(
        rows=total,
        reference_rows=reference_total,
        mean=means,
        expected_mean=expected_means,
        deviation=np.sqrt(found),
        expected_deviation=np.sqrt(wanted),
        total_deviation=np.sqrt((share * (variance + (mean - means) ** 2)).sum(0)),
        expected_total=np.sqrt((share * (expected.variance + (expected.mean - expected_means) ** 2)).sum(0)),
        kurtosis=typical,
        shift=(means - expected_means) / np.sqrt(within),
        shift_z=(means - expected_means) / np.sqrt(pooled_error) / doubt,
        share_z=(means - expected_means) / np.sqrt(pooled_error),
        spread=0.5 * np.log((found + floor) / (wanted + floor)),
        spread_error=np.sqrt(0.5 / freedom) * doubt,
        spread_z=_normal_equivalent((found + floor) / (wanted + floor) * freedom, freedom) / doubt,
        by_class=np.sqrt(np.maximum((share * (difference**2 - error) / expected.variance).sum(0), 0)),
        by_class_z=np.maximum(_normal_equivalent(chi, np.full(len(chi), float(degrees))), 0) / doubt,
        needed_z=-NormalDist().inv_cdf(FALSE_FINDINGS / 6 / mean.shape[1]),
    )


def _normal_equivalent(chi: Reals, degrees: Reals) -> Reals:
    """By how many standard deviations a χ² of so many degrees of freedom is too large, by Wilson and Hilferty."""
    c = 2 / (9 * degrees)
    z: NDArray[np.float64] = (np.cbrt(chi / degrees) - (1 - c)) / np.sqrt(c)
    return z
