"""What honest clients' statistics are like: rows drawn again and again from the reference's own.

Both sides are drawn anew, a client's n rows and the reference's N, so that the reference's finite size is accounted
for. Of each distribution its mean, variance and third central moment are kept: these add up over classes.
"""

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winnow.learn.client_quality.comparison import LEAST, FeatureScale, Reals, Sample, differences
from winnow.learn.client_quality.mixture import best_weights, mixed

GRID = (4, 8, 16, 32, 64, 128, 512, 2048)
"""Numbers of rows for which distributions are tabulated."""
DRAWS = 100
KNOWN_ROWS = 8
"""A class of which the reference has fewer rows is not compared."""
MOST_ROWS = 500
"""More rows of a class are not drawn from: they would add time and nothing else."""

Statistics = Callable[[Reals, Reals], Reals]


@dataclass(frozen=True, kw_only=True, eq=False)
class BlockNull:
    """The null distributions of a block: central moments of order 1 to 3 of two statistics for each of GRID rows."""

    scale: FeatureScale
    by_class: Reals
    """[C, G, 2, 3]; zeros for a class that the reference hardly has"""
    blind: Reals
    """[G, 2, 3], for rows seen without labels, as a mixture of classes"""

    def at(self, rows: Reals) -> Reals:
        """By class, [C, 2, 3], for as many rows of each class; between the rows of the table by their logarithm."""
        return _between(self.by_class, rows)

    def blind_at(self, rows: float) -> Reals:
        """[2, 3]"""
        return _between(self.blind[None], np.array([rows]))[0]


def tabulate(
    x: Reals,
    classes: NDArray[np.int64],
    scale: FeatureScale,
    moments: Sample,
    statistics: Statistics,
    rng: np.random.Generator,
) -> BlockNull:
    """From the reference's rows; `moments` are its own by class, [C, f]."""
    count = len(moments.rows)
    by_class, blind = np.zeros((count, len(GRID), 2, 3)), np.zeros((len(GRID), 2, 3))
    known = np.flatnonzero(moments.rows >= KNOWN_ROWS)
    if not len(known):
        return BlockNull(scale=scale, by_class=by_class, blind=blind)
    rows = [_some(x[classes == label], rng) for label in known]
    again = _stacked(
        [_drawn(own, np.full(DRAWS, size), rng) for own, size in zip(rows, moments.rows[known], strict=True)]
    )
    for place, n in enumerate(GRID):
        for position, label in enumerate(known):
            own = _drawn(rows[position], np.full(DRAWS, n), rng)
            against = Sample(*(each[:, position] for each in (again.rows, again.mean, again.variance)))
            by_class[label, place] = _central(statistics(*differences(own, against, scale)))
        mixes = rng.dirichlet(np.ones(len(known)), DRAWS)
        counts = rng.multinomial(n, mixes)
        parts = _stacked([_drawn(own, counts[:, position], rng) for position, own in enumerate(rows)])
        own = Sample(rows=np.full(DRAWS, float(n)), mean=(m := mixed(parts, counts / n)).mean, variance=m.variance)
        fitted = mixed(again, best_weights(own, again, LEAST * scale.variance))
        blind[place] = _central(statistics(*differences(own, fitted, scale)))
    return BlockNull(scale=scale, by_class=by_class, blind=blind)


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
    """[draws, 2] to [2, 3]."""
    mean = values.mean(axis=0)
    return np.stack([mean, values.var(axis=0), ((values - mean) ** 3).mean(axis=0)], axis=-1)


def _between(table: Reals, rows: Reals) -> Reals:
    place = np.interp(np.log(np.maximum(rows, 1)), np.log(GRID), np.arange(len(GRID)))
    low = np.minimum(place.astype(int), len(GRID) - 2)
    share = (place - low)[:, None, None]
    each = np.arange(len(table))
    return (1 - share) * table[each, low] + share * table[each, low + 1]
