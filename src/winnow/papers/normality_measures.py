"""How normal a sample is: a histogram and quantiles to look at, and two numbers."""

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr, ndtri

from winnow.core import ModelError
from winnow.papers.result_json_lines import DistributionResultLine, rounded

MAX_BINS = 40
QUANTILES = 25
LILLIEFORS_FACTOR = 0.895
"""At the 5 % level normality with estimated moments is rejected from about this over √n on (Lilliefors, 1967)."""

MIN_DEVIATION = 1e-12


def describe(values: NDArray[np.float64], *, item: str, row: str, column: str, series: str) -> DistributionResultLine:
    """The distribution of some values and how near it is to the normal one with their mean and deviation."""
    if not np.isfinite(values).all():
        raise ModelError(f"{item}, {row}, {column}: some values are not finite; lower local.learning_rate")
    ordered = np.sort(np.asarray(values, np.float64))
    mean, sd = float(ordered.mean()), float(ordered.std(ddof=1))
    bins = min(MAX_BINS, round(2 * len(ordered) ** (1 / 3)))  # Rice's rule
    density, edges = np.histogram(ordered, bins=bins, density=True)
    standard = (ordered - mean) / max(sd, MIN_DEVIATION)
    return DistributionResultLine(
        item=item,
        row=row,
        column=column,
        series=series,
        samples=len(ordered),
        mean=_digits(mean),
        sd=_digits(sd),
        low=_digits(float(edges[0])),
        high=_digits(float(edges[-1])),
        density=tuple(_digits(float(height), 3) for height in density),
        quantiles=rounded(np.quantile(standard, plotting_positions(QUANTILES)), 3),
        distance=round(distance(standard), 4),
        correlation=round(correlation(standard), 4),
    )


def distance(standard: NDArray[np.float64]) -> float:
    """sup |F_n − Φ| of standardised, ordered values: Lilliefors' statistic, the Kolmogorov–Smirnov distance to the
    fitted normal distribution.
    """
    n, expected = len(standard), ndtr(standard)
    above = np.arange(1, n + 1) / n - expected
    below = expected - np.arange(n) / n
    return float(max(above.max(), below.max()))


def correlation(standard: NDArray[np.float64]) -> float:
    """The correlation of a Q–Q plot (Filliben, 1975): 1 where all points lie on a line; 0 for a constant."""
    if standard[0] == standard[-1]:
        return 0.0
    return float(np.corrcoef(standard, ndtri(plotting_positions(len(standard))))[0, 1])


def plotting_positions(count: int) -> NDArray[np.float64]:
    positions: NDArray[np.float64] = (np.arange(count) + 0.5) / count
    return positions


def _digits(value: float, count: int = 5) -> float:
    return float(f"{value:.{count}g}")
