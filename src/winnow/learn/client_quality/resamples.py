"""Rows of the reference, drawn with replacement again and again, as honest clients' rows might have been."""

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from winnow.learn.client_quality.moment_differences import Reals, Sample

GRID = (4, 12, 40, 150, 600)
"""Numbers of rows for which null distributions are tabulated."""
DRAWS = 64
"""So many times the reference is drawn again under one model."""
KNOWN_ROWS = 8
"""A class of which the reference has fewer rows is not compared."""
MOST_ROWS = 500
"""More rows of a class are not drawn from: they would add time and nothing else."""

Shares = NDArray[np.float32]
"""For each draw [..., R] of R, which share every row [..., N] is of it."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Resamples:
    """The same draws for all features: D times the reference's rows, and each time GRID clients'."""

    draws: int
    known: NDArray[np.int64]
    """Classes of which the reference has enough rows."""
    counts: Reals
    """How many it has of each of these."""
    rows: list[NDArray[np.int64]]
    """Of each known class, those that are drawn from."""
    of_class: list[Shares]
    """[D * (1 + GRID), N] for each known class: as many rows as the reference has, and as a client has."""
    of_all: Shares
    """[D * GRID, N] of all known classes alike, whose rows come one class after another."""

    @classmethod
    def draw(
        cls, classes: NDArray[np.int64], class_count: int, rng: np.random.Generator, draws: int = DRAWS
    ) -> "Resamples":
        counts = np.bincount(classes, minlength=class_count)
        known = np.flatnonzero(counts >= KNOWN_ROWS)
        rows = [rng.permutation(np.flatnonzero(classes == label))[:MOST_ROWS] for label in known]
        sizes = np.tile(GRID, draws)
        return cls(
            draws=draws,
            known=known,
            counts=counts[known].astype(np.float32),
            rows=rows,
            of_class=[
                _of_class(int(counts[label]), sizes, len(own), rng) for label, own in zip(known, rows, strict=True)
            ],
            of_all=_of_all(sizes, np.array([len(own) for own in rows]), rng),
        )

    def by_class(self, x: NDArray[np.float32]) -> tuple[Sample, Sample]:
        """The reference's moments [D, C, f], and clients' [D, GRID, C, f]."""
        parts = [_moments(shares, x[own]) for shares, own in zip(self.of_class, self.rows, strict=True)]
        mean, variance = (
            np.stack(each, axis=1).reshape(self.draws, 1 + len(GRID), len(parts), -1)
            for each in zip(*parts, strict=True)
        )
        sizes = np.broadcast_to(np.array(GRID, np.float32)[:, None], (self.draws, len(GRID), len(parts)))
        return (
            Sample(np.broadcast_to(self.counts, (self.draws, len(parts))), mean[:, 0], variance[:, 0]),
            Sample(sizes, mean[:, 1:], variance[:, 1:]),
        )

    def without_labels(self, x: NDArray[np.float32]) -> Sample:
        """Clients' moments [D, GRID, f], of all classes alike."""
        mean, variance = (
            each.reshape(self.draws, len(GRID), -1) for each in _moments(self.of_all, x[np.concatenate(self.rows)])
        )
        return Sample(np.broadcast_to(np.array(GRID, np.float32), (self.draws, len(GRID))), mean, variance)


def _moments(shares: Shares, x: NDArray[np.float32]) -> tuple[Reals, Reals]:
    """Means and variances, [R, f]. By torch, which uses as many threads as the run may."""
    powers = torch.from_numpy(np.concatenate([x, x**2], axis=1))
    mean, second = np.split((torch.from_numpy(shares) @ powers).numpy(), 2, axis=1)
    return mean, np.maximum(second - mean**2, 0)


def _of_class(reference: int, sizes: NDArray[np.int64], rows: int, rng: np.random.Generator) -> Shares:
    draws = len(sizes) // len(GRID)
    again = rng.multinomial(np.full(draws, reference), np.full(rows, 1 / rows)) / reference
    clients = _shares(sizes, rng.integers(rows, size=sizes.sum()), rows)
    together = np.concatenate([again[:, None], clients.reshape(draws, len(GRID), rows)], axis=1)
    return together.reshape(-1, rows).astype(np.float32)


def _of_all(sizes: NDArray[np.int64], rows: NDArray[np.int64], rng: np.random.Generator) -> Shares:
    if not len(rows):
        return np.zeros((len(sizes), 0), np.float32)
    total = int(sizes.sum())
    which = rng.integers(len(rows), size=total)
    chosen = (np.cumsum(rows) - rows)[which] + (rng.random(total) * rows[which]).astype(np.int64)
    return _shares(sizes, chosen, int(rows.sum()))


def _shares(sizes: NDArray[np.int64], chosen: NDArray[np.int64], rows: int) -> Shares:
    """From the rows that were chosen, of one draw after another."""
    cells = np.repeat(np.arange(len(sizes)) * rows, sizes) + chosen
    counts = np.bincount(cells, minlength=len(sizes) * rows).reshape(len(sizes), rows)
    return (counts / sizes[:, None]).astype(np.float32)
