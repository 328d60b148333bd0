"""Rows of the reference, drawn with replacement again and again, as honest clients' rows might have been."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winnow.learn.client_quality.mixture import mixed
from winnow.learn.client_quality.moment_differences import Reals, Sample

GRID = (4, 12, 40, 150, 600)
"""Numbers of rows for which null distributions are tabulated."""
DRAWS = 64
KNOWN_ROWS = 8
"""A class of which the reference has fewer rows is not compared."""
MOST_ROWS = 500
"""More rows of a class are not drawn from: they would add time and nothing else."""


@dataclass(frozen=True, eq=False)
class ClassDraws:
    """Draws out of one class: of each how many rows it has [R], and which share every row is of it [R, N]."""

    rows: NDArray[np.int64]
    sizes: NDArray[np.int64]
    shares: Reals

    @classmethod
    def of(cls, rows: NDArray[np.int64], sizes: NDArray[np.int64], rng: np.random.Generator) -> "ClassDraws":
        counts = rng.multinomial(sizes, np.full(len(rows), 1 / len(rows)))
        return cls(rows, sizes, counts / np.maximum(sizes, 1)[:, None])

    def moments(self, x: Reals) -> Sample:
        """[R, f]"""
        own = x[self.rows]
        mean = self.shares @ own
        return Sample(self.sizes.astype(float), mean, np.maximum(self.shares @ own**2 - mean**2, 0.0))


@dataclass(frozen=True, kw_only=True, eq=False)
class Resamples:
    """The same draws for all features. Lists are by known class."""

    known: NDArray[np.int64]
    """Classes of which the reference has enough rows."""
    reference: list[ClassDraws]
    """As many rows as the reference has, DRAWS times."""
    clients: list[ClassDraws]
    """For each of GRID rows, DRAWS times."""
    mixed_clients: list[ClassDraws]
    """Likewise, of all classes alike: the numbers of rows add up to those of GRID."""

    @classmethod
    def draw(cls, classes: NDArray[np.int64], class_count: int, rng: np.random.Generator) -> "Resamples":
        counts = np.bincount(classes, minlength=class_count)
        known = np.flatnonzero(counts >= KNOWN_ROWS)
        rows = [rng.permutation(np.flatnonzero(classes == label))[:MOST_ROWS] for label in known]
        sizes = np.repeat(GRID, DRAWS)
        alike = rng.multinomial(sizes, np.full(len(known), 1 / len(known))) if len(known) else np.empty((0, 0), int)
        return cls(
            known=known,
            reference=[
                ClassDraws.of(own, np.full(DRAWS, counts[label]), rng) for own, label in zip(rows, known, strict=True)
            ],
            clients=[ClassDraws.of(own, sizes, rng) for own in rows],
            mixed_clients=[ClassDraws.of(own, alike[:, place], rng) for place, own in enumerate(rows)],
        )

    def reference_moments(self, x: Reals) -> Sample:
        """[DRAWS, C, f]"""
        return _stacked([draws.moments(x) for draws in self.reference])

    def client_moments(self, x: Reals) -> Sample:
        """[GRID, DRAWS, C, f], of one class each."""
        return _stacked([draws.moments(x) for draws in self.clients]).reshaped(len(GRID), DRAWS)

    def mixed_moments(self, x: Reals) -> Sample:
        """[GRID, DRAWS, f], of all classes alike."""
        parts = _stacked([draws.moments(x) for draws in self.mixed_clients])
        total = parts.rows.sum(axis=1)
        pooled = mixed(parts, parts.rows / total[:, None])
        return Sample(total, pooled.mean, pooled.variance).reshaped(len(GRID), DRAWS)


def _stacked(samples: list[Sample]) -> Sample:
    return Sample(
        rows=np.stack([each.rows for each in samples], axis=1),
        mean=np.stack([each.mean for each in samples], axis=1),
        variance=np.stack([each.variance for each in samples], axis=1),
    )
