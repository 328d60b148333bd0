"""k-means over a few weighted points that everybody knows: seeds by k-means++ (Arthur and Vassilvitskii, 2007).

Every party runs it with the same random numbers and gets the same centres.
"""

import numpy as np
from numpy.typing import NDArray

ITERATIONS = 50

Matrix = NDArray[np.float64]
Vector = NDArray[np.float64]


def best_centres(
    points: Matrix, weights: Vector, clusters: int, rng: np.random.Generator, *, tries: int, kept: int
) -> Matrix:
    """The centres of the best `kept` of so many tries: kept × clusters × columns."""
    found = [_lloyd(points, weights, _seeds(points, weights, clusters, rng)) for _ in range(tries)]
    order = sorted(range(tries), key=lambda place: found[place][1])
    return np.stack([found[place][0] for place in order[:kept]])


def squared_distances(points: Matrix, centres: Matrix) -> Matrix:
    distances: Matrix = (points**2).sum(axis=1)[:, None] - 2 * points @ centres.T + (centres**2).sum(axis=1)
    return np.maximum(distances, 0.0)


def _seeds(points: Matrix, weights: Vector, clusters: int, rng: np.random.Generator) -> Matrix:
    chosen = [_drawn(weights, rng)]
    nearest = squared_distances(points, points[chosen])[:, 0]
    while len(chosen) < clusters:
        probability = weights * nearest
        chosen.append(_drawn(probability if probability.sum() > 0 else weights, rng))
        nearest = np.minimum(nearest, squared_distances(points, points[chosen[-1:]])[:, 0])
    return points[chosen]


def _drawn(probability: Vector, rng: np.random.Generator) -> int:
    return int(
        np.searchsorted(np.cumsum(probability), rng.uniform() * probability.sum(), side="right").clip(
            0, len(probability) - 1
        )
    )


def _lloyd(points: Matrix, weights: Vector, centres: Matrix) -> tuple[Matrix, float]:
    """Centres that stand still, and their inertia."""
    for _ in range(ITERATIONS):
        nearest = np.argmin(squared_distances(points, centres), axis=1)
        member = (nearest[:, None] == np.arange(len(centres))) * weights[:, None]
        total = member.sum(axis=0)
        moved = np.where(total[:, None] > 0, member.T @ points / np.maximum(total, 1e-12)[:, None], centres)
        if np.allclose(moved, centres, atol=1e-9):
            break
        centres = moved
    return centres, float((weights * squared_distances(points, centres).min(axis=1)).sum())
