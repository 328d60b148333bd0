"""How far moments lie from the reference's, feature by feature, in standard errors of two finite samples.

With n rows of mean m and variance v against N reference rows of mean M and variance V, and with a = nN / (n + N):

    z_mean  = √a (m - M) / √P          P the pooled variance (n v + N V) / (n + N)
    z_scale = √a log(v / V) / √κ       κ the reference's kurtosis less 1: n times the variance of log v

Where κ is large beside the rows, as of a rare category, κ (1 + κ² / n) takes its place: then it is hardly known.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Reals = NDArray[np.float64]

CAP = 5.0
"""No feature counts for more than this in the mean of squares: one wild column shows in the largest instead."""
LEAST = 0.01
"""The least variance of a feature within a class, as a share of its variance over all rows."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FeatureScale:
    """What differences of a feature are measured by; [f] each."""

    variance: Reals
    """Over all of the reference's rows."""
    kurtosis: Reals
    """Less 1, within classes. Large for what is rare, as a category that few rows have."""

    @classmethod
    def of(cls, x: Reals, square: Reals) -> "FeatureScale":
        """From the reference's rows, squared distances from their class's mean, and one row more that lies a typical
        deviation away in every feature: what no row has may still occur.
        """
        typical = x.var(axis=0).mean() + 1e-12
        within = square.mean(axis=0) + typical / len(x)
        fourth = (square**2).mean(axis=0) + typical**2 / len(x)
        return cls(variance=x.var(axis=0) + typical / len(x), kurtosis=np.maximum(fourth / within**2 - 1, 0.5))

    def floor(self, rows: Reals) -> Reals:
        """What is added to variances that were estimated from few rows, [..., f]: without it, a feature that hardly
        varies, or one of which so few rows cannot tell how it varies, would decide.
        """
        return self.variance * (LEAST + np.minimum(1.0, self.kurtosis / rows[..., None]))


@dataclass(frozen=True, eq=False)
class Sample:
    """Moments of some rows, [..., f]; `rows` is [...]."""

    rows: Reals
    mean: Reals
    variance: Reals

    def reshaped(self, *shape: int) -> "Sample":
        """With the first dimension divided into several."""
        return Sample(*(each.reshape(*shape, *each.shape[1:]) for each in (self.rows, self.mean, self.variance)))


def precision(sample: Sample, reference: Sample) -> Reals:
    """a = nN / (n + N), [...]: a difference of means has the variance P / a."""
    return sample.rows * reference.rows / (sample.rows + reference.rows)


def differences(sample: Sample, reference: Sample, scale: FeatureScale) -> tuple[Reals, Reals]:
    """z_mean and z_scale, [..., f] each."""
    n, big_n = sample.rows[..., None], reference.rows[..., None]
    fewer = np.minimum(sample.rows, reference.rows)
    floor = scale.floor(fewer)
    pooled = (n * sample.variance + big_n * reference.variance) / (n + big_n) + floor
    ratio = np.log(sample.variance + floor) - np.log(reference.variance + floor)
    error = scale.kurtosis * (1 + scale.kurtosis**2 / fewer[..., None])
    root = np.sqrt(precision(sample, reference))[..., None]
    return root * (sample.mean - reference.mean) / np.sqrt(pooled), root * ratio / np.sqrt(error)


def row_statistics(sample: Sample, reference: Sample, scale: FeatureScale, *, columns: bool) -> Reals:
    """[..., 2] of rows seen without labels: the mean of the capped squares, and the largest in absolute value.

    Of columns, variances count, too. Those of a representation do not: one long tail in the inputs is in all its units.
    """
    z_mean, z_scale = differences(sample, reference, scale)
    size = np.abs(np.concatenate([z_mean, z_scale], axis=-1) if columns else z_mean)
    return np.stack([(np.minimum(size, CAP) ** 2).mean(axis=-1), size.max(axis=-1)], axis=-1)


def towards_others(classes: Sample, scale: FeatureScale) -> Reals:
    """[..., C, f]: what a difference from a class's mean M is multiplied by to give the share of rows that look like
    those of other classes, (m - M)·h: the direction from M to the mean of the others, which a share of 1 reaches. Zeros
    if there is one class.
    """
    count = classes.mean.shape[-2]
    if count < 2:
        return np.zeros_like(classes.mean)
    others = (classes.mean.sum(axis=-2, keepdims=True) - classes.mean) / (count - 1)
    apart = others - classes.mean
    direction = apart / (classes.variance + scale.floor(classes.rows))
    return np.asarray(direction / np.maximum((direction * apart).sum(axis=-1, keepdims=True), 1e-12))


def class_statistics(
    sample: Sample, reference: Sample, scale: FeatureScale, towards: Reals, *, outcomes: bool
) -> Reals:
    """[..., 2] of classes against the reference's of the same class: the mean of the capped squares of z_mean; and the
    share of rows that look like other classes', or of outcomes, in which the loss comes last, how far that is above.
    """
    z_mean, _ = differences(sample, reference, scale)
    squares = (np.minimum(np.abs(z_mean), CAP) ** 2).mean(axis=-1)
    share = z_mean[..., -1] if outcomes else ((sample.mean - reference.mean) * towards).sum(axis=-1)
    return np.stack([squares, share], axis=-1)
