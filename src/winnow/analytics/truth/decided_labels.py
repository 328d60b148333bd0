"""What an estimate says of each item: the most likely label, or the number, and how confident the method is."""

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.truth.answer_arrays import Numbers
from winnow.analytics.truth.truth_methods import TruthEstimate

TIE = 1e-4
"""Confidences that differ by no more are tied, and the label that comes first counts; fixed point decides nothing."""


def decided_items(
    items: Sequence[str],
    labels: Sequence[str],
    known: NDArray[np.bool_],
    estimate: TruthEstimate | None,
    *,
    scale: tuple[float, float],
) -> list[dict[str, Any]]:
    """A record for each item; of those that are not known, which the estimate may leave out, it has None.

    Without labels, truths are numbers, which [−1, 1] stands for on a scale from the least to the greatest.
    """
    records: list[dict[str, Any]] = [{"item": item, "truth": None, "confidence": None} for item in items]
    if estimate is None:
        return records
    confidence = estimate.confidence[known] if len(estimate.confidence) == len(items) else estimate.confidence
    truths, likely = _numbers(confidence, scale) if not labels else _labels(confidence, labels)
    for place, truth, sure in zip(np.flatnonzero(known), truths, likely, strict=True):
        records[place].update(truth=truth, confidence=sure)
    return records


def _numbers(confidence: Numbers, scale: tuple[float, float]) -> tuple[list[Any], list[Any]]:
    low, high = scale
    return [low + (float(x) + 1) / 2 * (high - low) for x in confidence[:, 0]], [None] * len(confidence)


def _labels(confidence: Numbers, labels: Sequence[str]) -> tuple[list[Any], list[Any]]:
    by_label = np.hstack([1 - confidence, confidence]) if confidence.shape[1] == 1 else confidence
    best = by_label >= by_label.max(axis=1, keepdims=True) - TIE
    chosen = np.argmax(best, axis=1)
    return [labels[each] for each in chosen], by_label[np.arange(len(chosen)), chosen].tolist()
