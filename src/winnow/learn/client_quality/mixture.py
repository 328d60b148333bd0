"""Rows seen without their labels: the mixture of the reference's classes that fits them best.

First and second moments of a mixture are linear in its weights, so that the fit is a least squares over the simplex.
Rows that are right but wrongly labelled fit; rows unlike any class of the reference do not.
"""

import numpy as np

from winnow.learn.client_quality.comparison import Reals, Sample

STEPS = 100


def mixed(classes: Sample, weights: Reals) -> Sample:
    """The mixtures of classes [..., C, f] by weights [..., C]. They are known as well as 1 / Σ w² / N rows are."""
    mean = np.einsum("...c,...cf->...f", weights, classes.mean)
    second = np.einsum("...c,...cf->...f", weights, classes.variance + classes.mean**2)
    rows = 1 / (weights**2 / np.maximum(classes.rows, 1)).sum(axis=-1)
    return Sample(rows=rows, mean=mean, variance=np.maximum(second - mean**2, 0.0))


def best_weights(sample: Sample, classes: Sample, floor: Reals) -> Reals:
    """Weights [R, C] of the mixtures of classes [R or 1, C, f] that are nearest to samples [R, f].

    Moments are taken about the classes' common mean in units of their common spread, second ones halved as their
    errors are larger; by accelerated projected gradients.
    """
    origin = classes.mean.mean(axis=-2, keepdims=True)
    width = np.sqrt(classes.variance.mean(axis=-2, keepdims=True) + floor)
    design = _moments((classes.mean - origin) / width, classes.variance / width**2)
    wanted = _moments((sample.mean[:, None] - origin) / width, sample.variance[:, None] / width**2)
    wanted = np.clip(wanted, -100, 100)
    gram = design @ np.swapaxes(design, 1, 2)
    pull = (wanted @ np.swapaxes(design, 1, 2))[:, 0]
    step = 1 / np.maximum(np.linalg.eigvalsh(gram)[:, -1:], 1e-12)
    weights = np.full(pull.shape, 1 / design.shape[1])
    ahead, momentum = weights, 1.0
    for _ in range(STEPS):
        following = _onto_simplex(ahead - step * ((ahead[:, None] @ gram)[:, 0] - pull))
        faster = (1 + np.sqrt(1 + 4 * momentum**2)) / 2
        ahead = following + (momentum - 1) / faster * (following - weights)
        weights, momentum = following, faster
    return weights


def _moments(mean: Reals, variance: Reals) -> Reals:
    return np.concatenate([mean, (variance + mean**2) / 2], axis=-1)


def _onto_simplex(points: Reals) -> Reals:
    """The nearest points with non-negative coordinates that sum to 1 (Duchi et al. 2008, figure 1)."""
    ordered = -np.sort(-points, axis=1)
    excess = (np.cumsum(ordered, axis=1) - 1) / np.arange(1, points.shape[1] + 1)
    last = np.count_nonzero(ordered > excess, axis=1) - 1
    return np.maximum(points - np.take_along_axis(excess, last[:, None], axis=1), 0.0)
