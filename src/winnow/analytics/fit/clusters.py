"""k-means over owners: every iteration sums rows by cluster (Lloyd, 1982). No row is ever a centre.

Seeds as in k-means‖ (Bahmani et al., 2012), but from sums: rows are divided among many cells around points drawn from
the columns' means and covariances; the cells' means, with how many rows each has, are few enough for everybody to look
for the best seeds among them. A cell or cluster that fewer rows than the minimum belong to is never summed; its centre
moves elsewhere. As all rows together are known, another cluster is not summed either where those left out would be too
few together; and as two iterations differ by the rows that change their cluster, a search ends when these are too few.
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

    few: NDArray[np.bool_]
    shown: NDArray[np.bool_]
    """Those that were summed: not all others have too few rows."""
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
        """For each group of centres (groups × centres × columns). Nothing is shown of a group to which too few rows
        came since its centres were those `before`.
        """
        count, centres, columns = groups.shape
        enough = yield Compare(
            label=f"enough rows, {label}",
            local=partial(self._sizes_and_changes, groups, before),
            thresholds=np.full(count * centres + (0 if before is None else count), self._minimum),
        )
        few = ~enough[: count * centres].astype(bool).reshape(count, centres)
        shown = ~few if before is None else ~few & enough[count * centres :].astype(bool)[:, None]
        shown = (yield from self._with_company(groups, few, shown, label)).reshape(-1)
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
        return [Assigned(few[i], shown[i], sizes[i], means[i], real[i, :, -1]) for i in range(count)]

    def _with_company(
        self, groups: NDArray[np.float64], few: NDArray[np.bool_], shown: NDArray[np.bool_], label: str
    ) -> Program[NDArray[np.bool_]]:
        """Which centres may be summed: one less where the rows of those with too few are too few together."""
        unsure = np.flatnonzero(few.any(axis=1) & shown.any(axis=1))
        if not len(unsure):
            return shown
        together = yield Compare(
            label=f"rows left out, {label}",
            local=lambda table: np.tile((self._sizes(groups[unsure], table) * few[unsure]).sum(axis=1), 2),
            thresholds=np.repeat([self._minimum, 1], len(unsure)),
        )
        enough, some = together.astype(bool).reshape(2, -1)
        shown = shown.copy()
        for group in unsure[some & ~enough]:
            shown[group, np.argmax(shown[group])] = False
        return shown

    def _scaled(self, table: OwnerTable) -> Matrix:
        matrix, _ = self._sample.complete(table)
        return (matrix - self._moments.mean) / self._moments.deviation

    def _nearest(self, groups: NDArray[np.float64], table: OwnerTable) -> NDArray[np.int64]:
        """The place of each row's centre, by group."""
        rows = self._scaled(table)
        return np.stack([np.argmin(squared_distances(rows, each), axis=1) for each in groups])

    def _sizes(self, groups: NDArray[np.float64], table: OwnerTable) -> NDArray[np.int64]:
        return np.stack([np.bincount(each, minlength=groups.shape[1]) for each in self._nearest(groups, table)])

    def _sizes_and_changes(
        self, groups: NDArray[np.float64], before: NDArray[np.float64] | None, table: OwnerTable
    ) -> NDArray[np.int64]:
        sizes = self._sizes(groups, table).reshape(-1)
        if before is None:
            return sizes
        changed = self._nearest(groups, table) != self._nearest(before, table)
        return np.concatenate([sizes, changed.sum(axis=1)])

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
    steps, before = 0, None
    while moving.any() and steps < MAX_ITERATIONS:
        steps += 1
        active = np.flatnonzero(moving)
        earlier = None if before is None else before[active]
        assigned = yield from rows.assign(centres[active], f"iteration {steps}", earlier)
        before = centres.copy()
        for place, here in zip(active, assigned, strict=True):
            inertia = float(here.squares.sum())
            if here.shown.all() and (best is None or inertia < best[0]):
                best = (inertia, centres[place].copy(), here.sizes)
            moved = _moved(centres[place], here)
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
        ((few, shown, sizes, means, _),) = yield from rows.assign(cells[None], f"cells {number}")
        points, weights = means[shown], sizes[shown].astype(float)
        if not len(points):
            break
        # Cells with too few rows move to where there are many.
        beside = np.searchsorted(np.cumsum(weights), rng.uniform(0, weights.sum(), len(cells)), side="right")
        around = points[beside.clip(0, len(points) - 1)] + 0.5 * rng.standard_normal(cells.shape)
        cells = np.where(shown[:, None], means, np.where(few[:, None], around, cells))
    if len(points) < clusters:
        raise ConfigError(f"too few rows for {clusters} clusters; ask for fewer clusters")
    return best_centres(points, weights, clusters, rng, tries=TRIES, kept=SEARCHES)


def _moved(centres: Matrix, here: Assigned) -> Matrix:
    """Every centre to the mean of its rows, where that is shown; one with too few beside that of the widest cluster."""
    moved = np.where(here.shown[:, None], here.means, centres)
    if here.shown.any():
        widest = int(np.argmax(np.where(here.shown, here.squares, -np.inf)))
        spread = np.sqrt(here.squares[widest] / here.sizes[widest] / centres.shape[1])
        for number, lonely in enumerate(np.flatnonzero(here.few), 1):
            moved[lonely] = moved[widest] + number * 0.5 * spread * (-1.0) ** np.arange(centres.shape[1])
    return moved
