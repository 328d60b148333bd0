"""Moments of the values that are there, from moments of columns whose missing values were filled in.

Filled-in values are the same for all clients, so they hide how a client's own differ: a few values that are typical of
the reference lie among others that are not, which widens a column whose values are all too low or too high.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from winnow.learn.client_quality.class_moments import ClassMoments
from winnow.learn.client_quality.input_names import FeatureName

MAX_MISSING = 0.3
"""With more missing, the values that are there are too few to count as all the rows."""
_NO_VARIANCE = 1e-5
"""Of the variance: what rounding leaves where all values are alike."""


def observed_moments(
    client: ClassMoments, reference: ClassMoments, features: Sequence[FeatureName]
) -> tuple[ClassMoments, ClassMoments]:
    """Both without filled-in values, in columns of which neither misses more than MAX_MISSING."""
    places = [place for place, each in enumerate(features) if each.kind == "missing"]
    few = [p for p in places if max(_pooled_mean(client, p), _pooled_mean(reference, p)) <= MAX_MISSING]
    return _observed(client, few, features), _observed(reference, few, features)


def _pooled_mean(moments: ClassMoments, place: int) -> float:
    return float(moments.counts @ moments.mean[:, place].astype(np.float64) / max(moments.counts.sum(), 1))


def _observed(moments: ClassMoments, marks: Sequence[int], features: Sequence[FeatureName]) -> ClassMoments:
    """With a share m of values f, a mean a and a variance v, the others have the mean f + (a − f) / (1 − m) and the
    variance v / (1 − m) − m (a − f)² / (1 − m)². A column's mark of missing values is the feature after it.
    """
    mean, variance = moments.mean.astype(np.float64), moments.variance.astype(np.float64)
    for mark in marks:
        fill, there = features[mark].fill, 1 - np.clip(mean[:, mark], 0, 0.9)
        apart, own = (mean[:, mark - 1] - fill) / there, variance[:, mark - 1] / there
        left = own - (1 - there) * apart**2
        mean[:, mark - 1] = np.where(moments.counts > 0, fill + apart, 0)
        variance[:, mark - 1] = np.where(left > _NO_VARIANCE * own, left, 0)
    return replace(moments, mean=mean.astype(np.float32), variance=variance.astype(np.float32))
