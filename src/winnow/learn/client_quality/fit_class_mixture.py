"""Rows seen without their labels: the mixture of the reference's classes that fits them best.

First and second moments of a mixture are linear in its weights, so that the fit is a least squares over the simplex.
Rows that are right but wrongly labelled fit; rows unlike any class of the reference do not.
"""

import numpy as np

from winnow.learn.client_quality.moment_differences import FeatureScale, Reals, Sample

STEPS = 40
"""As many for everyone: a client's fit must not depend on whom it is fitted with."""
MOST = 100.0
"""Beyond so many standard deviations nothing pulls harder."""


def mixed(classes: Sample, weights: Reals) -> Sample:
    """M mixtures of classes [..., C, f] by weights [..., M, C]. They are known as well as 1 / Σ w² / N rows are."""
    mean = weights @ classes.mean
    second = weights @ (classes.variance + classes.mean**2)
    rows = 1 / (weights**2 / np.maximum(classes.rows, 1)[..., None, :]).sum(axis=-1)
    return Sample(rows=rows, mean=mean, variance=np.maximum(second - mean**2, 0.0))


def best_weights(samples: Sample, classes: Sample, scale: FeatureScale, start: Reals) -> Reals:
    """Weights [..., M, C] of the mixtures of classes [..., C, f] that are nearest to samples [..., M, f].

    Moments are taken about the classes' common mean, and weighted by the inverse of their own standard errors; by
    accelerated projected gradients from the weights `start` [..., M, C].
    """
    origin = classes.mean.mean(axis=-2, keepdims=True)
    design = _moments(classes.mean - origin, classes.variance, scale)
    wanted = np.clip(_moments(samples.mean - origin, samples.variance, scale), -MOST, MOST)
    gram = design @ np.swapaxes(design, -1, -2)
    step = 1 / np.maximum(np.linalg.eigvalsh(gram)[..., -1:, None], 1e-12)
    pull = _classes_first(step * (wanted @ np.swapaxes(design, -1, -2)))
    shrink = np.eye(gram.shape[-1], dtype=gram.dtype) - step * gram
    weights = _classes_first(np.broadcast_to(start, (*samples.rows.shape, gram.shape[-1])).astype(gram.dtype))
    ahead, momentum = weights, 1.0
    for _ in range(STEPS):
        following = _onto_simplex(np.moveaxis(shrink @ np.moveaxis(ahead, 0, -2), -2, 0) + pull)
        faster = (1 + (1 + 4 * momentum**2) ** 0.5) / 2
        ahead = following + (momentum - 1) / faster * (following - weights)
        weights, momentum = following, faster
    return np.moveaxis(weights, 0, -1)


def _classes_first(weights: Reals) -> Reals:
    """[..., M, C] to [C, ..., M]: sums over classes are then sums of long vectors."""
    return np.ascontiguousarray(np.moveaxis(weights, -1, 0))


def _moments(mean: Reals, variance: Reals, scale: FeatureScale) -> Reals:
    second = (variance + mean**2) / (scale.variance * np.sqrt(scale.kurtosis))
    return np.concatenate([mean / np.sqrt(scale.variance), second], axis=-1)


def _onto_simplex(points: Reals) -> Reals:
    """The nearest points [C, ...] with non-negative coordinates that sum to 1 over C: max(p - θ, 0).

    Σ max(p - θ, 0) is convex and falls in θ: Newton's steps from below end where it is 1 (Michelot 1986).
    """
    points = np.ascontiguousarray(points)
    threshold = (points.sum(axis=0) - 1) / len(points)
    for _ in range(len(points)):
        inside = points > threshold
        count = np.maximum(np.count_nonzero(inside, axis=0), 1).astype(points.dtype)
        raised = ((points * inside).sum(axis=0) - 1) / count
        if not (raised > threshold).any():
            break
        threshold = raised
    return np.asarray(np.maximum(points - threshold, 0))
