"""What the clients' data are typically like: the reference of findings where there are enough clients.

A reference set that was drawn from the clients' own rows holds bad rows, too, and clients may all differ from one that
was not. So scores are taken about the clients' median, and words have to be as well.
"""

from collections.abc import Collection
from dataclasses import replace

import numpy as np

from winnow.learn.client_quality.class_moments import ClassMoments
from winnow.learn.client_quality.evidence import ClientEvidence
from winnow.learn.client_quality.reference_summary import ReferenceSummary
from winnow.learn.client_quality.score_table import MIN_CLIENTS


def typical_reference(reference: ReferenceSummary, clients: Collection[ClientEvidence]) -> ReferenceSummary:
    """The reference with the median over clients, by class and feature, in the place of its moments; its kurtoses stay.
    Of a class of which fewer than MIN_CLIENTS tell, the reference's own moments stay, too.

    Fewer than half of the clients being bad, whatever they tell, cannot move it far.
    """
    moments, fourth = dict(reference.moments), dict(reference.fourth)
    for block, known in reference.moments.items():
        told = [each.blocks[block] for each in clients if block in each.blocks]
        if len(told) < MIN_CLIENTS:
            continue
        moments[block] = _typical(known, told)
        scale = moments[block].variance.astype(np.float64) / np.maximum(known.variance, 1e-30)
        fourth[block] = np.where(known.variance > 0, fourth[block] * scale**2, fourth[block]).astype(np.float32)
    return replace(reference, moments=moments, fourth=fourth)


def _typical(known: ClassMoments, told: list[ClassMoments]) -> ClassMoments:
    counts = np.stack([each.counts for each in told])
    mean, variance = known.mean.copy(), known.variance.copy()
    rows = known.counts.copy()
    for which in np.flatnonzero((counts > 0).sum(0) >= MIN_CLIENTS):
        own = [each for each in told if each.counts[which]]
        mean[which] = np.median([each.mean[which] for each in own], axis=0)
        variance[which] = np.median([each.variance[which] for each in own], axis=0)
        rows[which] = max(1, counts[:, which].sum() // 2)  # a median is worth about 2/π of the rows, or fewer
    return ClassMoments(counts=rows, mean=mean, variance=variance)
