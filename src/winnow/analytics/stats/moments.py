"""Means, standard deviations and correlations from sums of whole numbers.

Owners sum in floating point and round the sum to 2⁻ᶠ, with f as large as the largest count allows; what follows from
the opened sums is computed in whole numbers, where nothing cancels.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.program import Program, Sum
from winnow.analytics.stats.local_sums import moment_sums, pair_sums
from winnow.analytics.stats.plan import Grouping, NumberColumn

if TYPE_CHECKING:
    from winnow.analytics.tables.owner_table import OwnerTable

MAX_FRACTION_BITS = 44
Pair: TypeAlias = tuple[NumberColumn, NumberColumn]


@dataclass(frozen=True, kw_only=True)
class Spread:
    """n, mean and standard deviation (n − 1) of a column in a group."""

    n: int
    mean: float
    sd: float


@dataclass(frozen=True, kw_only=True)
class GroupedColumn:
    """A column by group, and how many rows each group has: None where that is hidden; all rows come last."""

    column: NumberColumn
    grouping: Grouping
    counts: Sequence[int | None]

    @property
    def shown(self) -> list[int]:
        return [group for group, count in enumerate(self.counts) if count]


def fraction_bits(count_bits: int) -> int:
    """f such that a sum of fewer than 2**count_bits numbers of size ½ stays below 2⁶¹."""
    return min(MAX_FRACTION_BITS, 61 - count_bits)


def fixed(values: NDArray[np.float64], bits: int) -> NDArray[np.int64]:
    return np.rint(np.ldexp(values, bits)).astype(np.int64)


def open_moments(
    profiles: Sequence[GroupedColumn], pairs: Mapping[Pair, int], count_bits: int
) -> Program[tuple[list[list[Spread | None]], dict[Pair, float | None]]]:
    """Spreads of every profile by group, and correlations of pairs of columns (with the rows that have both)."""
    bits = fraction_bits(count_bits)

    def sums(table: "OwnerTable") -> NDArray[np.int64]:
        parts = [moment_sums(each.column, each.grouping, table)[:, each.shown].reshape(-1) for each in profiles]
        parts += [pair_sums(pair, table)[1:] for pair in pairs]
        return fixed(np.concatenate(parts), bits)

    length = sum(2 * len(each.shown) for each in profiles) + 5 * len(pairs)
    opened = list((yield Sum(label="moments", local=sums, length=length))) if length else []
    spreads = list[list[Spread | None]]()
    for profile in profiles:
        count = len(profile.shown)
        first, second, opened = opened[:count], opened[count : 2 * count], opened[2 * count :]
        found: list[Spread | None] = [None] * len(profile.counts)
        for group, one, two in zip(profile.shown, first, second, strict=True):
            rows = profile.counts[group]
            assert rows is not None
            found[group] = spread(profile.column, rows, one, two, bits)
        spreads.append(found)
    correlations = dict[Pair, float | None]()
    for at, (pair, rows) in enumerate(pairs.items()):
        correlations[pair] = correlation(rows, opened[5 * at : 5 * at + 5], bits)
    return spreads, correlations


def spread(column: NumberColumn, rows: int, first: int, second: int, bits: int) -> Spread:
    """mean = c + r·Σu/n;  var = r²·(n·Σu² − (Σu)²)/(n·(n − 1))."""
    squares = max(0, (rows * second << bits) - first * first)
    deviation = sqrt(squares / (rows * (rows - 1))) / 2.0**bits if rows > 1 else 0.0
    return Spread(n=rows, mean=column.middle + column.range * (first / rows / 2.0**bits), sd=column.range * deviation)


def correlation(rows: int, sums: Sequence[int], bits: int) -> float | None:
    """(n·Σuv − Σu·Σv) / √((n·Σu² − (Σu)²)(n·Σv² − (Σv)²)); None where a column is constant."""
    u, v, uu, vv, uv = sums
    spread_u, spread_v = (rows * uu << bits) - u * u, (rows * vv << bits) - v * v
    least = rows * rows << (bits + 1)  # what rounding alone can make of a constant column
    if spread_u <= least or spread_v <= least:
        return None
    return max(-1.0, min(1.0, ((rows * uv << bits) - u * v) / sqrt(spread_u) / sqrt(spread_v)))
