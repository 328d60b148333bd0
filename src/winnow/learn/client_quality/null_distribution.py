"""What honest clients' statistics are like: rows drawn again and again from the reference's own.

Both sides are drawn anew, a client's n rows and the reference's N, so that the reference's finite size is accounted
for. Of each distribution its mean, variance and third central moment are kept: these add up over classes.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winnow.learn.client_quality.evidence import COLUMNS, OUTCOMES
from winnow.learn.client_quality.fit_class_mixture import best_weights, mixed
from winnow.learn.client_quality.moment_differences import (
    FeatureScale,
    Reals,
    Sample,
    class_statistics,
    row_statistics,
    towards_others,
)
from winnow.learn.client_quality.resamples import GRID, Resamples


@dataclass(frozen=True, kw_only=True, eq=False)
class BlockNull:
    """The null distributions of a block: central moments of order 1 to 3 of two statistics for each of GRID rows."""

    scale: FeatureScale
    by_class: Reals
    """[C, G, 2, 3], each class against the reference's; zeros for a class that the reference hardly has"""
    blind: Reals
    """[C + 1, G, 2, 3], rows seen without labels against a mixture of classes: rows of one class, and of all alike"""

    @property
    def known(self) -> NDArray[np.bool_]:
        """[C], the classes that were drawn from."""
        return np.asarray(self.by_class[..., 1].any(axis=(1, 2)))

    def at(self, rows: Reals) -> Reals:
        """By class, [K, C, 2, 3], for as many rows [K, C] of each class."""
        return _between(self.by_class, rows)

    def blind_at(self, rows: Reals, mix: Reals) -> Reals:
        """[K, 2, 3] for rows [K] of this mix of classes [K, C], between that of one class and that of all alike."""
        known = self.known
        tables = _between(self.blind, np.repeat(rows[:, None], len(self.blind), axis=1))
        evenness = np.ones(len(mix)) if known.sum() < 2 else (1 - (mix**2).sum(axis=1)) / (1 - 1 / known.sum())
        alone = np.einsum("kc,kcsm->ksm", mix, tables[:, :-1])
        evenness = evenness[:, None, None]
        return np.asarray((1 - evenness) * alone + evenness * tables[:, -1])


def tabulate(x: Reals, resamples: Resamples, class_count: int, *, scale: FeatureScale, block: str) -> BlockNull:
    """From the reference's rows and draws out of them. Outcomes are not looked at without labels.

    In standard units, in which single precision does.
    """
    table, blind = np.zeros((class_count, len(GRID), 2, 3)), np.zeros((class_count + 1, len(GRID), 2, 3))
    known = resamples.known
    if not len(known):
        return BlockNull(scale=scale, by_class=table, blind=blind)
    standard = ((x - x.mean(axis=0)) / np.sqrt(scale.variance)).astype(np.float32)
    unit = FeatureScale(variance=np.ones(x.shape[1], np.float32), kurtosis=scale.kurtosis.astype(np.float32))
    again, drawn = resamples.by_class(standard)
    table[known] = _central(
        class_statistics(drawn, again[:, None], unit, towards_others(again, unit)[:, None], outcomes=block == OUTCOMES)
    )
    if block != OUTCOMES:
        samples = _beside(drawn, resamples.without_labels(standard))
        blind[[*known, class_count]] = _central(_blind(samples, again, unit, columns=block == COLUMNS))
    return BlockNull(scale=scale, by_class=table, blind=blind)


def _beside(drawn: Sample, alike: Sample) -> Sample:
    """Rows of one class each [D, G, C, f], and after the last class those of all classes [D, G, f]."""
    return Sample(
        np.concatenate([drawn.rows, alike.rows[:, :, None]], axis=2),
        np.concatenate([drawn.mean, alike.mean[:, :, None]], axis=2),
        np.concatenate([drawn.variance, alike.variance[:, :, None]], axis=2),
    )


def _blind(own: Sample, classes: Sample, scale: FeatureScale, *, columns: bool) -> Reals:
    """Statistics of samples [D, G, C + 1, f] against mixtures of classes [D, C, f]."""
    (draws, grid, groups), count = own.rows.shape, classes.rows.shape[1]
    samples = own.reshaped(draws, grid * groups)
    start = np.tile(np.concatenate([np.eye(count), np.full((1, count), 1 / count)]), (grid, 1))
    found = row_statistics(
        samples, mixed(classes, best_weights(samples, classes, scale, start)), scale, columns=columns
    )
    return found.reshape(draws, grid, groups, 2)


def _central(values: Reals) -> Reals:
    """[draws, G, C, 2] to [C, G, 2, 3]."""
    values = values.astype(np.float64)
    mean = values.mean(axis=0)
    third = ((values - mean) ** 3).mean(axis=0)
    return np.swapaxes(np.stack([mean, values.var(axis=0), third], axis=-1), 0, 1)


def _between(table: Reals, rows: Reals) -> Reals:
    """[K, C, 2, 3] out of tables [C, G, 2, 3], for rows [K, C]."""
    place = np.interp(np.log(np.maximum(rows, 1)), np.log(GRID), np.arange(len(GRID)))
    low = np.minimum(place.astype(int), len(GRID) - 2)
    share = (place - low)[..., None, None]
    each = np.arange(len(table))
    return np.asarray((1 - share) * table[each, low] + share * table[each, low + 1])
