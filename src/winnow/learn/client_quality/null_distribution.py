"""What honest clients' statistics are like: rows drawn again and again from the reference's own.

Both sides are drawn anew, a client's n rows and the reference's N, so that the reference's finite size is accounted
for. Of each distribution its mean, variance and third central moment are kept: these add up over classes.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winnow.learn.client_quality.evidence import COLUMNS, OUTCOMES
from winnow.learn.client_quality.mixture import best_weights, mixed
from winnow.learn.client_quality.moment_differences import (
    FeatureScale,
    Reals,
    Sample,
    by_class,
    of_rows,
    towards_others,
)

GRID = (4, 12, 40, 150, 600)
"""Numbers of rows for which distributions are tabulated."""
DRAWS = 64
KNOWN_ROWS = 8
"""A class of which the reference has fewer rows is not compared."""
MOST_ROWS = 500
"""More rows of a class are not drawn from: they would add time and nothing else."""


@dataclass(frozen=True, kw_only=True, eq=False)
class BlockNull:
    """The null distributions of a block: central moments of order 1 to 3 of two statistics for each of GRID rows."""

    scale: FeatureScale
    by_class: Reals
    """[C, G, 2, 3], each class against the reference's; zeros for a class that the reference hardly has"""
    blind: Reals
    """[C + 1, G, 2, 3], rows seen without labels against a mixture of classes: rows of one class, and of all alike"""

    def at(self, rows: Reals) -> Reals:
        """By class, [C, 2, 3], for as many rows of each class."""
        return _between(self.by_class, rows)

    def blind_at(self, rows: float, mix: Reals) -> Reals:
        """[2, 3] for rows of this mix of classes [C], between that of one class and that of all alike."""
        known = self.by_class[..., 1].any(axis=(1, 2))
        tables = _between(self.blind, np.full(len(self.blind), rows))
        evenness = 1.0 if known.sum() < 2 else (1 - (mix**2).sum()) / (1 - 1 / known.sum())
        return np.asarray((1 - evenness) * np.tensordot(mix, tables[:-1], 1) + evenness * tables[-1])


def tabulate(
    x: Reals,
    classes: NDArray[np.int64],
    moments: Sample,
    rng: np.random.Generator,
    *,
    scale: FeatureScale,
    block: str,
) -> BlockNull:
    """From the reference's rows; `moments` are its own by class, [C, f]. Outcomes are not looked at without labels."""
    count = len(moments.rows)
    table, blind = np.zeros((count, len(GRID), 2, 3)), np.zeros((count + 1, len(GRID), 2, 3))
    known = np.flatnonzero(moments.rows >= KNOWN_ROWS)
    if not len(known):
        return BlockNull(scale=scale, by_class=table, blind=blind)
    rows = [_some(x[classes == label], rng) for label in known]
    sizes = moments.rows[known].astype(np.int64)
    again = _stacked([_drawn(own, np.full(DRAWS, size), rng) for own, size in zip(rows, sizes, strict=True)])
    drawn = _stacked([_drawn(own, np.repeat(GRID, DRAWS), rng) for own in rows]).reshaped(len(GRID), DRAWS)
    towards = towards_others(again, scale)
    table[known] = _central(by_class(drawn, again, scale, towards, outcomes=block == OUTCOMES))
    if block != OUTCOMES:
        samples = _with_all_alike(drawn, rows, rng)
        blind[[*known, count]] = _central(_blind(samples, again, scale, columns=block == COLUMNS))
    return BlockNull(scale=scale, by_class=table, blind=blind)


def _with_all_alike(drawn: Sample, rows: list[Reals], rng: np.random.Generator) -> Sample:
    """Rows of one class each [G, D, C, f], and after the last class as many rows of all classes alike."""
    counts = rng.multinomial(np.repeat(GRID, DRAWS), np.full(len(rows), 1 / len(rows)))
    parts = _stacked([_drawn(own, counts[:, position], rng) for position, own in enumerate(rows)])
    pooled = mixed(parts, counts / counts.sum(axis=1, keepdims=True))
    alike = Sample(counts.sum(axis=1).astype(float), pooled.mean, pooled.variance).reshaped(len(GRID), DRAWS)
    return Sample(
        np.concatenate([drawn.rows, alike.rows[:, :, None]], axis=2),
        np.concatenate([drawn.mean, alike.mean[:, :, None]], axis=2),
        np.concatenate([drawn.variance, alike.variance[:, :, None]], axis=2),
    )


def _blind(own: Sample, classes: Sample, scale: FeatureScale, *, columns: bool) -> Reals:
    """Statistics of samples [G, D, C + 1, f] against mixtures of classes [D, C, f]."""
    against = Sample(classes.rows[:, None], classes.mean[:, None], classes.variance[:, None])
    count = classes.rows.shape[1]
    start = np.concatenate([np.eye(count), np.full((1, count), 1 / count)])
    return of_rows(own, mixed(against, best_weights(own, against, scale, start)), scale, columns=columns)


def _some(rows: Reals, rng: np.random.Generator) -> Reals:
    return rows if len(rows) <= MOST_ROWS else rows[rng.permutation(len(rows))[:MOST_ROWS]]


def _drawn(rows: Reals, sizes: NDArray[np.int64] | Reals, rng: np.random.Generator) -> Sample:
    """For each size, the moments of so many of the rows, drawn with replacement."""
    sizes = sizes.astype(np.int64)
    share = rng.multinomial(sizes, np.full(len(rows), 1 / len(rows))) / np.maximum(sizes, 1)[:, None]
    mean = share @ rows
    return Sample(rows=sizes.astype(float), mean=mean, variance=np.maximum(share @ rows**2 - mean**2, 0.0))


def _stacked(samples: list[Sample]) -> Sample:
    return Sample(
        rows=np.stack([each.rows for each in samples], axis=1),
        mean=np.stack([each.mean for each in samples], axis=1),
        variance=np.stack([each.variance for each in samples], axis=1),
    )


def _central(values: Reals) -> Reals:
    """[G, draws, C, 2] to [C, G, 2, 3]."""
    mean = values.mean(axis=1)
    third = ((values - mean[:, None]) ** 3).mean(axis=1)
    return np.swapaxes(np.stack([mean, values.var(axis=1), third], axis=-1), 0, 1)


def _between(table: Reals, rows: Reals) -> Reals:
    place = np.interp(np.log(np.maximum(rows, 1)), np.log(GRID), np.arange(len(GRID)))
    low = np.minimum(place.astype(int), len(GRID) - 2)
    share = (place - low)[:, None, None]
    each = np.arange(len(table))
    return np.asarray((1 - share) * table[each, low] + share * table[each, low + 1])
