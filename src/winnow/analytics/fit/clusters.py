"""k-means over owners: every iteration sums rows by cluster (Lloyd, 1982).

Starts are drawn from the columns' means and covariances, so that no row is a centre: `STARTS` searches go on side by
side, every `HALVED_AFTER` iterations the worse half of them ends, and the one with the least inertia wins. A centre
that fewer than the minimum of rows belong to is moved beside the centre of the widest cluster, and its rows are never
summed.
"""

from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.fit.decomposition import Moments, moments_program, scaling_record
from winnow.analytics.fit.design import Matrix
from winnow.analytics.fit.sample import Sample
from winnow.analytics.fit.whole_numbers import FixedPoint
from winnow.analytics.program import Compare, Program, Sum
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.core import ConfigError, stream

STARTS = 8
HALVED_AFTER = 5
MAX_ITERATIONS = 60
STILL = 1e-3
"""A search ends when no centre moves by more than this share of a column's deviation."""


def kmeans_program(sample: Sample, clusters: int, minimum: int, seed: int) -> Program[dict[str, Any]]:
    moments = yield from moments_program(sample)
    centres = _starts(moments, clusters, seed)
    moving = np.ones(STARTS, bool)
    sums = FixedPoint(4 * sample.rows * float(((2 / moments.deviation) ** 2).sum()))
    inertia, counts = np.full(STARTS, np.inf), np.zeros((STARTS, clusters), np.int64)
    for iteration in range(1, MAX_ITERATIONS + 1):
        active = np.flatnonzero(moving)
        if not len(active):
            break
        present = centres[active]
        enough = yield Compare(
            label=f"enough rows in each cluster, iteration {iteration}",
            local=partial(_sizes, sample, moments, present),
            thresholds=np.full(len(active) * clusters, minimum),
        )
        shown = enough.astype(bool)

        def local(table: OwnerTable, present: NDArray[np.float64] = present, shown: Any = shown) -> NDArray[np.int64]:
            sizes, totals, squares = _assigned(sample, moments, present, table)
            real = np.concatenate([totals, squares[..., None]], axis=-1).reshape(-1, totals.shape[-1] + 1)[shown]
            whole = np.concatenate([sizes.reshape(-1)[shown][:, None], sums.whole(real)], axis=1)
            return whole.reshape(-1)

        width = centres.shape[2] + 2
        opened = yield Sum(
            label=f"sums of each cluster, iteration {iteration}",
            local=local,
            length=int(shown.sum()) * width,
            hidden=int((~shown).sum()),
        )
        table = opened.reshape(-1, width)
        for place, start in enumerate(active):
            here = shown.reshape(len(active), clusters)[place]
            first = int(shown.reshape(len(active), clusters)[:place].sum())
            rows = table[first : first + int(here.sum())]
            moved, counts[start], inertia[start] = _moved(centres[start], here, rows, sums)
            moving[start] = bool(np.abs(moved - centres[start]).max() > STILL) and iteration < MAX_ITERATIONS
            if moving[start]:
                centres[start] = moved
        if iteration % HALVED_AFTER == 0 and moving.sum() > 1:
            order = np.argsort(np.where(moving, inertia, np.inf), kind="stable")
            moving[order[-(-int(moving.sum()) // 2) :]] = False
    best = int(np.argmin(inertia))
    if not np.isfinite(inertia[best]):
        raise ConfigError(f"some of {clusters} clusters always have fewer than {minimum} rows; ask for fewer clusters")
    record = scaling_record(sample, moments)
    return {
        **record,
        "centres": (centres[best] * np.array(record["sd"]) + np.array(record["mean"])).tolist(),
        "scaled_centres": centres[best].tolist(),
        "sizes": [int(each) if each else None for each in counts[best]],
        "inertia": float(inertia[best]),
        "steps": iteration,
    }


def _starts(moments: Moments, clusters: int, seed: int) -> NDArray[np.float64]:
    """Centres in units of deviations: drawn from the normal distribution of the columns' correlations."""
    deviation = moments.deviation
    correlation = moments.covariance / np.outer(deviation, deviation)
    values, vectors = np.linalg.eigh(correlation)
    root = vectors * np.sqrt(np.maximum(values, 0.0))
    drawn = stream(seed, "k-means starts").standard_normal((STARTS, clusters, len(deviation)))
    return np.asarray(drawn @ root.T, np.float64)


def _scaled(sample: Sample, moments: Moments, table: OwnerTable) -> Matrix:
    matrix, _ = sample.complete(table)
    return (matrix - moments.mean) / moments.deviation


def _nearest(rows: Matrix, centres: Matrix) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    distances = (centres**2).sum(axis=1) - 2 * rows @ centres.T
    nearest = np.argmin(distances, axis=1)
    return nearest, np.maximum(distances[np.arange(len(rows)), nearest] + (rows**2).sum(axis=1), 0.0)


def _sizes(sample: Sample, moments: Moments, starts: NDArray[np.float64], table: OwnerTable) -> NDArray[np.int64]:
    rows = _scaled(sample, moments, table)
    return np.concatenate([np.bincount(_nearest(rows, each)[0], minlength=len(each)) for each in starts])


def _assigned(
    sample: Sample, moments: Moments, starts: NDArray[np.float64], table: OwnerTable
) -> tuple[NDArray[np.int64], NDArray[np.float64], NDArray[np.float64]]:
    """Rows, their sums, and their squared distances, by start and cluster."""
    rows = _scaled(sample, moments, table)
    sizes, totals, squares = [], [], []
    for centres in starts:
        nearest, distances = _nearest(rows, centres)
        sizes.append(np.bincount(nearest, minlength=len(centres)))
        indicator = nearest[:, None] == np.arange(len(centres))
        totals.append(indicator.T.astype(float) @ rows)
        squares.append(np.bincount(nearest, weights=distances, minlength=len(centres)))
    return np.stack(sizes), np.stack(totals), np.stack(squares)


def _moved(
    centres: Matrix, shown: NDArray[np.bool_], opened: NDArray[np.object_], sums: FixedPoint
) -> tuple[Matrix, NDArray[np.int64], float]:
    """New centres, sizes (0 where too few), and the inertia of the old ones."""
    sizes = np.zeros(len(centres), np.int64)
    sizes[shown] = opened[:, 0].astype(np.int64)
    real = sums.real(opened[:, 1:].reshape(-1)).reshape(len(opened), -1)
    moved = centres.copy()
    moved[shown] = real[:, :-1] / sizes[shown][:, None]
    inertia = float(real[:, -1].sum())
    if not shown.all():
        spread = np.sqrt(real[:, -1] / sizes[shown])
        widest = np.flatnonzero(shown)[np.argsort(-real[:, -1])]
        for place, lonely in enumerate(np.flatnonzero(~shown)):
            beside = int(widest[place % len(widest)])
            step = 0.5 * float(spread[np.flatnonzero(shown) == beside][0]) / np.sqrt(centres.shape[1])
            moved[lonely] = moved[beside] + step * (-1.0) ** np.arange(centres.shape[1])
        inertia = np.inf
    return moved, sizes, inertia
