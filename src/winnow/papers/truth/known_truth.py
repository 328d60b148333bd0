"""Crowds whose truth is known, and how often a method finds it."""

import csv
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.truth.answer_arrays import Numbers
from winnow.analytics.truth.crowd_answers import CrowdAnswers, read_answers


def read_crowd(folder: Path) -> tuple[CrowdAnswers, NDArray[np.int64]]:
    """The answers of label.csv (item, worker, label), and which label truth.csv (item, truth) has for each item."""
    crowd = read_answers(folder / "label.csv", item="item", worker="worker", label="label")
    with (folder / "truth.csv").open(encoding="utf-8") as file:
        known = dict(list(csv.reader(file))[1:])
    return crowd, np.array([crowd.labels.index(known[item]) for item in crowd.items])


def accuracy(confidence: Numbers, truth: NDArray[np.int64]) -> float:
    """The share of right items, a tie shared evenly."""
    scores = np.hstack([1 - confidence, confidence]) if confidence.shape[1] == 1 else confidence
    best = scores >= scores.max(axis=1, keepdims=True) - 1e-9
    return float((best[np.arange(len(truth)), truth] / best.sum(axis=1)).mean())
