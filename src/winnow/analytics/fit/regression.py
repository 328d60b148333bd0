"""Linear and ridge regression from XᵀX and Xᵀy, and generalised linear models by Newton's method on sums.

Linear: β = (XᵀX)⁻¹Xᵀy, Var β = σ²(XᵀX)⁻¹ with σ² = Σ(y - Xβ)²/(n - p).
Ridge, on columns of mean 0 and deviation 1: β = (XᵀX + λI)⁻¹Xᵀy, Var β = σ²(XᵀX + λI)⁻¹XᵀX(XᵀX + λI)⁻¹.
GLM (McCullagh and Nelder, 1989, section 2.5): β ← β + (XᵀWX)⁻¹Xᵀz with W and z from the family, until the step is
small; Var β = φ(XᵀWX)⁻¹, where φ is 1, or Pearson's χ²/(n - p) for gamma.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats

from winnow.analytics.fit.design import INTERCEPT, Matrix
from winnow.analytics.fit.families import DispersedFamily, Family
from winnow.analytics.fit.fit_rows import FitRows
from winnow.analytics.fit.whole_numbers import FixedPoint, symmetric, upper
from winnow.analytics.program import Program, Sum
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.core import ConfigError

MAX_STEPS = 50
CONVERGED = 1e-10
"""A Newton step that is this small against the standard errors' own size ends the search."""
SINGULAR = 1e-11
"""Reciprocal condition number of XᵀX below which columns count as collinear."""

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Coefficients:
    """In the scaled columns of the design."""

    values: Vector
    covariance: Matrix

    def table(self, sample: FitRows, statistic: str, freedom: float) -> list[dict[str, Any]]:
        """One record a term, in the units of the data."""
        units = sample.design.original_units()
        estimates, errors = units @ self.values, np.sqrt(np.diag(units @ self.covariance @ units.T))
        ratios = estimates / np.where(errors > 0, errors, np.nan)
        tail = stats.t(freedom).sf if statistic == "t" else stats.norm.sf
        columns = zip(sample.design.names, estimates, errors, ratios, 2 * tail(np.abs(ratios)), strict=True)
        keys = ("term", "estimate", "std_error", statistic, "p")
        return [
            {key: value if isinstance(value, str) else _finite(value) for key, value in zip(keys, each, strict=True)}
            for each in columns
        ]


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None


def linear_program(sample: FitRows, half: float, penalty: float = 0.0) -> Program[dict[str, Any]]:
    """`half` bounds the response: it is between -half and half."""
    names, count = sample.design.names, len(sample.design.names)
    moments = FixedPoint(float(sample.rows))

    def products(table: OwnerTable) -> NDArray[np.int64]:
        matrix, response = sample.complete(table)
        both = np.concatenate([matrix, response[:, None] / half], axis=1)
        return moments.whole(upper(both.T @ both))

    opened = yield Sum(label="XᵀX, Xᵀy and yᵀy", local=products, length=(count + 1) * (count + 2) // 2)
    both = symmetric(moments.real(opened), count + 1)
    gram, cross = both[:count, :count], both[:count, count]
    _refuse_collinear(gram, names)
    penalties = _ridge_penalties(gram, names, penalty, sample.rows)
    inverse = np.linalg.inv(gram + penalties)
    scaled = inverse @ cross
    squares = FixedPoint(16.0 * sample.rows * (1 + float(np.abs(scaled).sum()) ** 2))

    def residuals(table: OwnerTable) -> NDArray[np.int64]:
        matrix, response = sample.complete(table)
        return squares.whole(np.array([np.sum((response / half - matrix @ scaled) ** 2)]))

    (opened_squares,) = squares.real((yield Sum(label="squared residuals", local=residuals, length=1)))
    freedom = float(sample.rows - np.trace(inverse @ gram))
    if freedom < 1:
        raise ConfigError(f"{sample.rows} rows are too few for {count} terms")
    variance = opened_squares / freedom
    found = Coefficients(scaled * half, inverse @ gram @ inverse * variance * half**2)
    total = both[count, count] - (both[0, count] ** 2 / sample.rows if names[0] == INTERCEPT else 0.0)
    return {
        "statistic": "t",
        "terms": found.table(sample, "t", freedom),
        "r2": _finite(1 - opened_squares / total) if total > 0 else None,
        "residual_sd": float(np.sqrt(variance) * half),
        "degrees_of_freedom": freedom,
    }


def _ridge_penalties(gram: Matrix, names: tuple[str, ...], penalty: float, rows: int) -> Matrix:
    """λI for columns of deviation 1: λ·variance for the columns as they are. The intercept goes free."""
    if names[0] == INTERCEPT:
        variances = np.diag(gram) / rows - (gram[0] / rows) ** 2
        variances[0] = 0.0
    else:
        variances = np.diag(gram) / rows
    return np.diag(penalty * variances)


def _refuse_collinear(gram: Matrix, names: tuple[str, ...]) -> None:
    sizes = np.sqrt(np.diag(gram))
    if not (sizes > 0).all():
        raise ConfigError(f"'{names[int(np.argmin(sizes))]}' is 0 in every row; leave it out of the formula")
    values, vectors = np.linalg.eigh(gram / np.outer(sizes, sizes))
    if values[0] < SINGULAR * values[-1]:
        among = [name for name, weight in zip(names, np.abs(vectors[:, 0]), strict=True) if weight > 0.1]
        raise ConfigError(f"these terms are collinear: {', '.join(among)}; leave one of them out")


def glm_program(sample: FitRows, family: Family) -> Program[dict[str, Any]]:
    names, count = sample.design.names, len(sample.design.names)
    entries = count * (count + 1) // 2
    sums = FixedPoint(sample.rows * family.largest)
    beta = yield from _start(sample, family)
    before, tried, best = np.inf, 0, beta
    for steps in range(1, MAX_STEPS + 1):

        def local(table: OwnerTable, beta: Vector = beta) -> NDArray[np.int64]:
            matrix, response = sample.complete(table)
            weights, scores, deviances = family.terms(response, family.mean(matrix @ beta))
            parts = [upper(matrix.T @ (weights[:, None] * matrix)), matrix.T @ scores, np.array([deviances.sum()])]
            return sums.whole(np.concatenate(parts))

        opened = sums.real((yield Sum(label=f"Newton step {steps}", local=local, length=entries + count + 1)))
        information, score, deviance = symmetric(opened[:entries], count), opened[entries:-1], float(opened[-1])
        if deviance > before + 1e-9 * abs(before) and tried < 10:
            beta, tried = (best + beta) / 2, tried + 1
            continue
        _refuse_collinear(information, names)
        step = np.linalg.solve(information, score)
        best, before, tried = beta, deviance, 0
        if float(step @ score) <= CONVERGED**1.5 * sample.rows or steps == MAX_STEPS:
            break
        beta = beta + step
    else:
        raise AssertionError
    if float(step @ score) > 1e-6 * sample.rows:
        raise ConfigError(
            f"no convergence after {MAX_STEPS} steps: some input may separate the outcomes perfectly; leave terms out"
        )
    final: Vector = best + step
    covariance: Matrix = np.asarray(np.linalg.inv(information), np.float64)
    dispersion = yield from _dispersion(sample, family, final)
    return {
        "statistic": "z",
        "terms": Coefficients(final, covariance * dispersion).table(sample, "z", np.inf),
        "deviance": deviance,
        "dispersion": dispersion,
        "steps": steps,
    }


def _start(sample: FitRows, family: Family) -> Program[Vector]:
    """The coefficients whose predictor is nearest to that of the mean response in every row."""
    count = len(sample.design.names)
    entries = count * (count + 1) // 2
    sums = FixedPoint(sample.rows * max(family.high, 1.0))

    def local(table: OwnerTable) -> NDArray[np.int64]:
        matrix, response = sample.complete(table)
        return sums.whole(np.concatenate([upper(matrix.T @ matrix), matrix.sum(axis=0), np.array([response.sum()])]))

    opened = sums.real((yield Sum(label="XᵀX and the mean response", local=local, length=entries + count + 1)))
    gram, totals = symmetric(opened[:entries], count), opened[entries:-1]
    _refuse_collinear(gram, sample.design.names)
    return np.asarray(np.linalg.solve(gram, totals) * family.link(float(opened[-1]) / sample.rows), np.float64)


def _dispersion(sample: FitRows, family: Family, beta: Vector) -> Program[float]:
    if not isinstance(family, DispersedFamily):
        return 1.0
    sums = FixedPoint(sample.rows * family.largest**2)

    def pearson(table: OwnerTable) -> NDArray[np.int64]:
        matrix, response = sample.complete(table)
        return sums.whole(np.array([family.pearson(response, family.mean(matrix @ beta)).sum()]))

    (chi_squared,) = sums.real((yield Sum(label="Pearson's χ²", local=pearson, length=1)))
    return float(chi_squared / (sample.rows - len(beta)))
