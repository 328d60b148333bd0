"""evaluation.json: the scores of a finished run's model, class by class and client by client."""

import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Self

import msgspec
import numpy as np

from winnow.core import RunError

MAX_BYTES = 1 << 28
"""A larger file is not read."""
MAX_CLASSES, MAX_COUNT = 1000, 1 << 53
"""Of a confusion matrix: a report draws each cell, and sums fit into 64 bits."""


@dataclass(frozen=True, kw_only=True)
class SampleScores:
    """Scores on some samples; None where a metric is undefined. `confusion[i][j]` counts samples of class i that were
    taken for class j.
    """

    name: str
    samples: int
    metrics: dict[str, float | None]
    confusion: list[list[int]] | None = None


@dataclass(frozen=True, kw_only=True)
class PseudoLabelScores:
    """Of so many samples whose labels a simulation has hidden from clients, the share that the last model is sure of,
    and the share of these that it labels right; None where there are none.
    """

    samples: int
    sure: float
    right: float | None


@dataclass(frozen=True, kw_only=True)
class EvaluationRecord:
    """What evaluation.json holds; docs/run-folder.md says what each entry means."""

    schema: Literal[1] = 1
    round: int
    overall: SampleScores | None
    by_client: list[SampleScores] = field(default_factory=list)
    classes: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    pseudo_labels: PseudoLabelScores | None = None

    def __post_init__(self) -> None:
        for scores in (*self.by_client, *([self.overall] if self.overall else [])):
            rows, classes = scores.confusion, len(self.classes)
            if rows is None:
                continue
            if not 0 < classes <= MAX_CLASSES or len(rows) != classes or any(len(row) != classes for row in rows):
                raise ValueError(f"the confusion matrix of {scores.name[:50]!r} does not fit the classes")
            if any(not 0 <= count <= MAX_COUNT for row in rows for count in row):
                raise ValueError(f"the confusion matrix of {scores.name[:50]!r} does not hold counts")

    def to_json(self) -> bytes:
        """As text; what is not a finite number is written as null."""
        return msgspec.json.encode(self) + b"\n"

    @classmethod
    def read(cls, path: Path) -> Self | None:
        """The record in a file; None where there is no file."""
        if not path.is_file():
            return None
        try:
            if path.stat().st_size > MAX_BYTES:
                raise ValueError(f"it is larger than {MAX_BYTES:,} bytes")
            return msgspec.json.decode(path.read_bytes(), type=cls)
        except ValueError as error:
            raise RunError(f"{path} is damaged: {error}") from None

    @property
    def per_class(self) -> list[dict[str, Any]]:
        """For each class: samples, precision, recall, F1; NaN where there is nothing to divide by."""
        if self.overall is None or self.overall.confusion is None:
            return []
        counts = np.array(self.overall.confusion, np.float64)
        right, of_class, taken = counts.diagonal(), counts.sum(axis=1), counts.sum(axis=0)
        with np.errstate(invalid="ignore", divide="ignore"):
            precision, recall, f1 = right / taken, right / of_class, 2 * right / (of_class + taken)
        columns = (of_class.astype(int), precision, recall, f1)
        names = ("samples", "precision", "recall", "f1")
        return [
            {"class": label, **{name: column[k].item() for name, column in zip(names, columns, strict=True)}}
            for k, label in enumerate(self.classes)
        ]

    @property
    def client_rows(self) -> list[dict[str, Any]]:
        """One row a client, for a data frame: name, samples, every metric, and the confusion matrix if there is one."""
        return [
            {
                "name": scores.name,
                "samples": scores.samples,
                **{name: math.nan if value is None else value for name, value in scores.metrics.items()},
                **({} if scores.confusion is None else {"confusion": scores.confusion}),
            }
            for scores in self.by_client
        ]
