"""k-means over owners: every iteration sums rows by cluster (Lloyd, 1982). No row is ever a centre.

Seeds as in k-means‖ (Bahmani et al., 2012), but from sums: rows are divided among many cells around points drawn from
the columns' means and covariances; the cells' means, with how many rows each has, are few enough for everybody to look
for the best seeds among them. A cell or cluster that fewer rows than the minimum belong to is never summed; its centre
moves elsewhere.
"""

from functools import partial
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.fit.decomposition import Moments, moments_program, scaling_record
from winnow.analytics.fit.design import Matrix
from winnow.analytics.fit.fit_rows import FitRows
from winnow.analytics.fit.weighted_kmeans import best_centres, squared_distances
from winnow.analytics.fit.whole_numbers import FixedPoint
from winnow.analytics.program import Compare, Program, Sum
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.core import ConfigError, stream

CELLS = 30
"""Cells for each cluster, from which seeds are found."""
MAX_CELLS = 400
CELL_PASSES = 3
TRIES = 40
SEARCHES = 2
"""Searches that go on side by side; the tighter one wins."""
MAX_ITERATIONS = 60
STILL = 1e-3
"""A search ends when no centre moves by more than this share of a column's deviation."""


class Assigned(NamedTuple):
    """What is known of each centre's rows; nothing of those with too few."""

    shown: NDArray[np.bool_]
    sizes: NDArray[np.int64]
    means: Matrix
    squares: NDArray[np.float64]
    """Squared distances of the rows from the centre, summed."""


class _Rows:
    """Rows in units of the columns' deviations, summed by their nearest centre."""

    def __init__(self, sample: FitRows, moments: Moments, minimum: int) -> None:
        self._sample, self._moments, self._minimum = sample, moments, minimum
        self._sums = FixedPoint(4 * sample.rows * float(((2 / moments.deviation) ** 2).sum()))

    def assign(
        self, groups: NDArray[np.float64], label: str, before: NDArray[np.float64] | None = None
    ) -> Program[list[Assigned]]:
        """For each group of centres (groups × centres × columns).

        Sums over all rows are known. So the rows of centres with too few must be none or enough together, or those of
        another centre are not summed either. The sums of the centres `before` are known, too: where too few rows have
        changed to another centre since, nothing is summed.
        """
        count, centres, columns = groups.shape
        shown = yield Compare(
            label=f"enough rows, {label}",
            local=partial(self._sizes, groups),
            thresholds=np.full(count * centres, self._minimum),
        )
        hidden = ~shown.reshape(count, centres)

        def others(table: OwnerTable) -> NDArray[np.int64]:
            left_over = (self._sizes(groups, table).reshape(hidden.shape) * hidden).sum(axis=1)
            changed = self._changed(groups, before, table)
            return np.stack([left_over, left_over, changed], axis=1).reshape(-1)

        thresholds = np.tile([1, self._minimum, self._minimum], count)
        bits = yield Compare(label=f"rows of all others, {label}", local=others, thresholds=thresholds)
        for group, (some, enough, changed) in enumerate(bits.reshape(count, 3)):
            of_group = shown[group * centres : (group + 1) * centres]
            if not changed:
                of_group[:] = False
            elif some and not enough:
                of_group[int(np.argmax(of_group))] = False
        opened = yield Sum(
            label=f"sums, {label}",
            local=partial(self._totals, groups, shown),
            length=int(shown.sum()) * (columns + 2),
            hidden=int((~shown).sum()),
        )
        table = np.zeros((count * centres, columns + 2), object)
        table[shown] = opened.reshape(-1, columns + 2)
        real = self._sums.real(table[:, 1:].reshape(-1)).reshape(count, centres, columns + 1)
        sizes, shown = table[:, 0].astype(np.int64).reshape(count, centres), shown.reshape(count, centres)
        means = real[..., :-1] / np.maximum(sizes, 1)[..., None]
        return [Assigned(shown[i], sizes[i], means[i], real[i, :, -1]) for i in range(count)]

    def _scaled(self, table: OwnerTable) -> Matrix:
        matrix, _ = self._sample.complete(table)
        return (matrix - self._moments.mean) / self._moments.deviation

    def _sizes(self, groups: NDArray[np.float64], table: OwnerTable) -> NDArray[np.int64]:
        rows = self._scaled(table)
        return np.concatenate(
            [np.bincount(np.argmin(squared_distances(rows, each), axis=1), minlength=len(each)) for each in groups]
        )

    def _changed(
        self, groups: NDArray[np.float64], before: NDArray[np.float64] | None, table: OwnerTable
    ) -> NDArray[np.int64]:
        """Rows whose nearest centre is another one than before; all of them if there was none."""
        rows = self._scaled(table)
        if before is None:
            return np.full(len(groups), len(rows))
        nearest = [[np.argmin(squared_distances(rows, each), axis=1) for each in both] for both in (groups, before)]
        return np.array([(now != then).sum() for now, then in zip(*nearest, strict=True)], np.int64)

    def _totals(self, groups: NDArray[np.float64], shown: NDArray[np.bool_], table: OwnerTable) -> NDArray[np.int64]:
        rows, found = self._scaled(table), []
        for centres in groups:
            distances = squared_distances(rows, centres)
            nearest = np.argmin(distances, axis=1)
            totals = np.zeros((len(centres), rows.shape[1] + 1))
            np.add.at(totals, nearest, np.concatenate([rows, distances.min(axis=1, keepdims=True)], axis=1))
            sizes = np.bincount(nearest, minlength=len(centres))
            found.append(np.concatenate([sizes[:, None], self._sums.whole(totals)], axis=1))
        return np.concatenate(found)[shown].reshape(-1)


def kmeans_program(sample: FitRows, clusters: int, minimum: int, seed: int) -> Program[dict[str, Any]]:
    moments = yield from moments_program(sample)
    rows = _Rows(sample, moments, minimum)
    centres = yield from _seeds(rows, moments, clusters, seed)
    best: tuple[float, Matrix, NDArray[np.int64]] | None = None
    moving = np.ones(len(centres), bool)
    steps, before = 0, centres
    while moving.any() and steps < MAX_ITERATIONS:
        steps += 1
        active = np.flatnonzero(moving)
        known = before[active] if steps > 1 else None
        assigned = yield from rows.assign(centres[active], f"iteration {steps}", known)
        before = centres.copy()
        for place, here in zip(active, assigned, strict=True):
            moved = _moved(centres[place], here)
            inertia = float((here.squares - here.sizes * ((moved - centres[place]) ** 2).sum(axis=1)).sum())
            if here.shown.all() and (best is None or inertia < best[0]):
                best = (inertia, moved.copy(), here.sizes)
            moving[place] = bool(np.abs(moved - centres[place]).max() > STILL)
            centres[place] = moved
    if best is None:
        raise ConfigError(f"some of {clusters} clusters always have fewer than {minimum} rows; ask for fewer clusters")
    inertia, scaled, sizes = best
    record = scaling_record(sample, moments)
    return {
        **record,
        "centres": (scaled * np.array(record["sd"]) + np.array(record["mean"])).tolist(),
        "scaled_centres": scaled.tolist(),
        "sizes": sizes.tolist(),
        "inertia": inertia,
        "steps": steps,
    }


def _seeds(rows: _Rows, moments: Moments, clusters: int, seed: int) -> Program[NDArray[np.float64]]:
    """Centres to start from, in units of deviations: searches × clusters × columns."""
    deviation, rng = moments.deviation, stream(seed, "k-means")
    values, vectors = np.linalg.eigh(moments.covariance / np.outer(deviation, deviation))
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    cells = rng.standard_normal((min(CELLS * clusters, MAX_CELLS), len(deviation))) @ root.T
    points, weights = np.zeros((0, len(deviation))), np.zeros(0)
    for number in range(1, CELL_PASSES + 1):
        ((shown, sizes, means, _),) = yield from rows.assign(cells[None], f"cells {number}")
        points, weights = means[shown], sizes[shown].astype(float)
        if not len(points):
            break
        # Cells with too few rows move to where there are many.
        beside = np.searchsorted(np.cumsum(weights), rng.uniform(0, weights.sum(), len(cells)), side="right")
        around = points[beside.clip(0, len(points) - 1)] + 0.5 * rng.standard_normal(cells.shape)
        cells = np.where(shown[:, None], means, around)
    if len(points) < clusters:
        raise ConfigError(f"too few rows for {clusters} clusters; ask for fewer clusters")
    return best_centres(points, weights, clusters, rng, tries=TRIES, kept=SEARCHES)


def _moved(centres: Matrix, here: Assigned) -> Matrix:
    """Every centre to the mean of its rows; one with too few beside that of the widest cluster."""
    moved = np.where(here.shown[:, None], here.means, centres)
    if here.shown.any():
        widest = int(np.argmax(np.where(here.shown, here.squares, -np.inf)))
        spread = np.sqrt(here.squares[widest] / here.sizes[widest] / centres.shape[1])
        for number, lonely in enumerate(np.flatnonzero(~here.shown), 1):
            moved[lonely] = moved[widest] + number * 0.5 * spread * (-1.0) ** np.arange(centres.shape[1])
    return moved
