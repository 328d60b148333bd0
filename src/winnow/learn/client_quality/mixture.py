"""Rows seen without their labels: the mixture of the reference's classes that fits them best.

First and second moments of a mixture are linear in its weights, so that the fit is a least squares over the simplex.
Rows that are right but wrongly labelled fit; rows unlike any class of the reference do not.
"""

import numpy as np

from winnow.learn.client_quality.moment_differences import FeatureScale, Reals, Sample

STEPS, CONVERGED = 40, 3e-5
MOST = 100.0
"""Beyond so many standard deviations nothing pulls harder."""


def mixed(classes: Sample, weights: Reals) -> Sample:
    """The mixtures of classes [..., C, f] by weights [..., C]. They are known as well as 1 / Σ w² / N rows are."""
    mean = np.einsum("...c,...cf->...f", weights, classes.mean)
    second = np.einsum("...c,...cf->...f", weights, classes.variance + classes.mean**2)
    rows = 1 / (weights**2 / np.maximum(classes.rows, 1)).sum(axis=-1)
    return Sample(rows=rows, mean=mean, variance=np.maximum(second - mean**2, 0.0))


def best_weights(sample: Sample, classes: Sample, scale: FeatureScale, start: Reals) -> Reals:
    """Weights [..., C] of the mixtures of classes [..., C, f] that are nearest to samples [..., f].

    Moments are taken about the classes' common mean, and weighted by the inverse of their own standard errors; by
    accelerated projected gradients from the weights `start` [..., C].
    """
    origin = classes.mean.mean(axis=-2, keepdims=True)
    design = np.swapaxes(_moments(classes.mean - origin, classes.variance, scale), -1, -2)
    wanted = _moments(sample.mean[..., None, :] - origin, sample.variance[..., None, :], scale)
    pull = (np.clip(wanted, -MOST, MOST) @ design)[..., 0, :]
    gram = np.swapaxes(design, -1, -2) @ design
    step = 1 / np.maximum(np.linalg.eigvalsh(gram)[..., -1:], 1e-12)
    weights = np.broadcast_to(start, pull.shape)
    ahead, momentum = weights, 1.0
    for _ in range(STEPS):
        following = _onto_simplex(ahead - step * ((ahead[..., None, :] @ gram)[..., 0, :] - pull))
        faster = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        change = following - weights
        ahead = following + (momentum - 1) / faster * change
        weights, momentum = following, faster
        if np.abs(change).max() < CONVERGED:
            break
    return weights


def _moments(mean: Reals, variance: Reals, scale: FeatureScale) -> Reals:
    second = (variance + mean**2) / (scale.variance * np.sqrt(scale.kurtosis))
    return np.concatenate([mean / np.sqrt(scale.variance), second], axis=-1)


def _onto_simplex(points: Reals) -> Reals:
    """The nearest points with non-negative coordinates that sum to 1 (Duchi et al. 2008, figure 1)."""
    ordered = -np.sort(-points, axis=-1)
    excess = (np.cumsum(ordered, axis=-1) - 1) / np.arange(1, points.shape[-1] + 1)
    last = np.count_nonzero(ordered > excess, axis=-1, keepdims=True) - 1
    return np.maximum(points - np.take_along_axis(excess, last, axis=-1), 0.0)
