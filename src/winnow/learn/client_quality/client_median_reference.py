"""What the clients' data are typically like, where there are enough clients.

A reference set that was drawn from the clients' own rows holds bad rows, too, and clients may all differ from one that
was not. Then the clients' median is a better reference.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from winnow.learn.client_quality.class_moments import ClassMoments
from winnow.learn.client_quality.evidence import ClientEvidence
from winnow.learn.client_quality.moment_differences import FeatureScale
from winnow.learn.client_quality.reference_summary import ReferenceSummary
from winnow.learn.client_quality.score_table import MIN_CLIENTS

FAR = 5.0
"""In standard errors: there are many features."""
MANY = 0.1
"""If more than this share of features is far, all are taken for wrong."""


def typical_reference(reference: ReferenceSummary, clients: Collection[ClientEvidence]) -> ReferenceSummary:
    """The reference with the median over clients, by class and feature, in the place of its moments; its kurtoses stay.
    Of a class of which fewer than MIN_CLIENTS tell, the reference's own moments stay, too.

    Fewer than half of the clients being bad, whatever they tell, cannot move it far.
    """
    return _replaced(reference, clients, everywhere=True)


def corrected_reference(reference: ReferenceSummary, clients: Collection[ClientEvidence]) -> ReferenceSummary:
    """The same only where the reference is further from the clients' median than chance and their spread allow.

    Elsewhere a reference of checked rows is better: clients of whom several are bad do not move it at all.
    """
    return _replaced(reference, clients, everywhere=False)


def _replaced(
    reference: ReferenceSummary, clients: Collection[ClientEvidence], *, everywhere: bool
) -> ReferenceSummary:
    moments, fourth = dict(reference.moments), dict(reference.fourth)
    for block, known in reference.moments.items():
        told = [each.blocks[block] for each in clients if block in each.blocks]
        if len(told) < MIN_CLIENTS:
            continue
        moments[block] = _typical(known, told) if everywhere else _corrected(known, reference.nulls[block].scale, told)
        scale = moments[block].variance.astype(np.float64) / np.maximum(known.variance, 1e-30)
        scaled = np.minimum(fourth[block] * scale**2, np.finfo(np.float32).max)
        fourth[block] = np.where(known.variance > 0, scaled, fourth[block]).astype(np.float32)
    return replace(reference, moments=moments, fourth=fourth)


def _typical(known: ClassMoments, told: list[ClassMoments]) -> ClassMoments:
    mean, variance, rows = known.mean.copy(), known.variance.copy(), known.counts.copy()
    for which, own in _told_classes(told):
        mean[which] = np.median([each.mean[which] for each in own], axis=0)
        variance[which] = np.median([each.variance[which] for each in own], axis=0)
        rows[which] = max(
            1, sum(each.counts[which] for each in own) // 2
        )  # a median is worth 2/π of the rows, or fewer
    return ClassMoments(counts=rows, mean=mean, variance=variance)


def _corrected(known: ClassMoments, scale: FeatureScale, told: list[ClassMoments]) -> ClassMoments:
    """As in `moment_differences`, something is added to variances: features that hardly vary would decide.

    Where many features of a block are wrong, the rest is not trusted either.
    """
    typical, far = _typical(known, told), np.zeros(known.mean.shape, bool)
    for which, own in _told_classes(told):
        rows = np.maximum(known.counts[which], 1.0)
        means, variances = (
            np.array([getattr(each, part)[which] for each in own], np.float64) for part in ("mean", "variance")
        )
        floor = scale.floor(rows)
        doubt = scale.kurtosis * (1 + scale.kurtosis**2 / rows) / rows
        far[which] = _is_far(means, known.mean[which], (known.variance[which] + floor) / rows)
        far[which] |= _is_far(np.log(variances + floor), np.log(known.variance[which] + floor), doubt)
    far |= far.mean() > MANY
    return ClassMoments(
        counts=known.counts,
        mean=np.where(far, typical.mean, known.mean),
        variance=np.where(far, typical.variance, known.variance),
    )


def _is_far(told: NDArray[np.float64], known: NDArray[np.float64], error: NDArray[np.float64]) -> NDArray[np.bool_]:
    """Whether the median of what K clients told [K, f] is far from what is known [f] with this squared error."""
    median = np.median(told, axis=0)
    deviation = 1.4826 * np.median(np.abs(told - median), axis=0)
    far: NDArray[np.bool_] = (median - known) ** 2 > FAR**2 * (error + np.pi / 2 * deviation**2 / len(told))
    return far


def _told_classes(told: list[ClassMoments]) -> Iterator[tuple[int, list[ClassMoments]]]:
    """Classes of which enough clients tell, with these."""
    counts = np.stack([each.counts for each in told])
    for which in np.flatnonzero((counts > 0).sum(0) >= MIN_CLIENTS).tolist():
        yield which, [each for each in told if each.counts[which]]
