"""Support vector classification without support vectors, which are rows: random Fourier features stand for the kernel
(Rahimi and Recht, 2007), and Newton's method finds the minimum of ½‖w‖² + C·Σ max(0, 1 - y·f(x))² from sums.

Sums of two steps differ by the rows that crossed the margin in between: the search ends when these are fewer than the
minimum, against any earlier step.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.fit.decomposition import moments_program, scaling_record
from winnow.analytics.fit.design import Matrix
from winnow.analytics.fit.fit_rows import FitRows
from winnow.analytics.fit.whole_numbers import FixedPoint, symmetric, upper
from winnow.analytics.program import Compare, Program, Sum
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.core import stream

MAX_STEPS = 25
CONVERGED = 1e-9

Vector = NDArray[np.float64]


def svm_program(
    sample: FitRows, minimum: int, *, features: int, width: float | None, cost: float, seed: int
) -> Program[dict[str, Any]]:
    """`features` cosines of random directions; `width` is γ of exp(-γ‖x - x'‖²), 1/columns if it is not given."""
    moments = yield from moments_program(sample)
    count = len(moments.mean)
    gamma = 1 / count if width is None else width
    rng = stream(seed, "random features")
    directions = np.sqrt(2 * gamma) * rng.standard_normal((count, features))
    phases = rng.uniform(0, 2 * np.pi, features)
    sums = FixedPoint(sample.rows * 4.0 * (1 + np.sqrt(2 * features)))

    def mapped(table: OwnerTable) -> tuple[Matrix, Vector]:
        """Features with a constant in the last place, and labels -1 and 1."""
        matrix, response = sample.complete(table)
        rows = (matrix - moments.mean) / moments.deviation
        waves = np.sqrt(2 / features) * np.cos(rows @ directions + phases)
        return np.concatenate([waves, np.ones((len(rows), 1))], axis=1), 2 * response - 1

    weights: Vector = np.zeros(features + 1)
    size = features + 1
    penalty = np.diag(np.r_[np.ones(features), 0.0])
    steps = 0
    tried = list[Vector]()
    for steps in range(1, MAX_STEPS + 1):
        enough = yield Compare(
            label=f"enough rows cross the margin, step {steps}",
            local=partial(_crossed, mapped, weights, tuple(tried)),
            thresholds=np.full(1 + len(tried), minimum),
        )
        if not enough.all():
            break
        tried.append(weights)

        def local(table: OwnerTable, weights: Vector = weights) -> NDArray[np.int64]:
            matrix, labels = mapped(table)
            inside = _inside(matrix, labels, weights)
            matrix, labels = matrix[inside], labels[inside]
            return sums.whole(np.concatenate([upper(matrix.T @ matrix), matrix.T @ labels]))

        opened = sums.real(
            (yield Sum(label=f"rows inside the margin, step {steps}", local=local, length=size * (size + 3) // 2))
        )
        gram, cross = symmetric(opened[:-size], size), opened[-size:]
        moved = np.linalg.lstsq(penalty + 2 * cost * gram, 2 * cost * cross, rcond=None)[0]
        change = float(np.abs(moved - weights).max())
        weights = np.asarray(moved, np.float64)
        if change < CONVERGED * max(1.0, float(np.abs(weights).max())):
            break
    return {
        **scaling_record(sample, moments),
        "directions": directions.tolist(),
        "phases": phases.tolist(),
        "weights": weights[:-1].tolist(),
        "intercept": float(weights[-1]),
        "gamma": gamma,
        "cost": cost,
        "steps": steps,
    }


def _crossed(
    mapped: Callable[[OwnerTable], tuple[Matrix, Vector]], weights: Vector, tried: Sequence[Vector], table: OwnerTable
) -> NDArray[np.int64]:
    """Rows inside the margin, and of each earlier step those that are inside at one of both alone."""
    matrix, labels = mapped(table)
    inside = _inside(matrix, labels, weights)
    return np.array([inside.sum(), *((inside != _inside(matrix, labels, each)).sum() for each in tried)])


def _inside(matrix: Matrix, labels: Vector, weights: Vector) -> NDArray[np.bool_]:
    """Rows on the wrong side of their margin: only these have a loss."""
    inside: NDArray[np.bool_] = labels * (matrix @ weights) < 1
    return inside
