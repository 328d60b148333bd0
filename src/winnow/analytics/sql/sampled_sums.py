"""Estimates from a sample, and how wrong they may be.

A row of the sample stands for w rows, so Σw and Σwx estimate a count and a sum. Their variances and covariance are,
where each row was drawn on its own with the chance 1/w (Horvitz and Thompson, 1952, with w for 1/π),

    V(x, y) = Σ w (w − 1) x y,

where n of the N rows of a group were drawn at an owner

    V(x, y) = N² (1 − n/N) s(x, y)/n,

and where m of M owners were drawn, with totals X and Y of each and the part Z of all rows that it has: a total is
estimated in proportion to rows, by T = ΣX/ΣZ (a ratio estimator; Cochran, 1977, section 6). It moves by
D = (X − TZ)/(ΣZ − Z) if an owner is left out, so by the jackknife

    V(x, y) = (1 − m/M) (m − 1)/m Σ D(x) D(y).

Owners compute their part of it, and only sums over all of them are opened. That of a mean R = Σwx/Σw is, to first
order, (V(x, x) − 2R V(x, 1) + R² V(1, 1))/(Σw)².

Two of these are too small as they stand. In a count of rows with a property, s² = p(1 − p)n/(n − 1) is 0 for an owner
of whose rows all or none were drawn with it, however many others it has: the error is smallest where the estimate is
farthest off. So p is that of all owners together, with two more rows that have the property and two that do not
(Agresti and Coull, 1998):

    V(1, 1) = p(1 − p) Σ N(N − n)/n,  p = (Σx + 2)/(Σn + 4).

And few owners know little of how they differ, fewer still where one has most of the rows: D² has about as many degrees
of freedom as that many owners of equal size would have, ν = (ΣZ)²/ΣZ² − 1 (Kish, 1965; with equal sizes m − 1). The
error is multiplied by t(ν)/t(∞), quantiles of Student's t, so that it holds the truth as often as it would with many
owners (as Imbens and Kolesár, 2016, adjust errors of few clusters). They take the quantile at 0.975, for twice the
error; ours, 0.9, was found by simulation: with 0.975 stated errors were too large, with 0.84 too small.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, log2, sqrt
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.program import Program, Sum
from winnow.analytics.sql.aggregate_values import Estimate
from winnow.analytics.sql.owner_rows import WEIGHT
from winnow.analytics.sql.query_plan import SAMPLED, QueryAggregate
from winnow.analytics.sql.row_sets import counted_rows
from winnow.analytics.sql.selected_rows import QueryGroups, SelectedRows
from winnow.analytics.sql.table_sample import TableSample
from winnow.analytics.stats.moments import MAX_FRACTION_BITS, fixed

if TYPE_CHECKING:
    from winnow.analytics.tables.owner_table import OwnerTable

SUMS = 5
"""Σw, Σwu, V(1, 1), V(1, u), V(u, u); u is a number in units of its range. Of counts by group, see `_of_count`."""
OWNER_SUMS = 4
"""Of owners that were drawn: ΣX, ΣU, ΣZ, ΣZ²."""
SPREADS = 3
"""Σ D(1)², Σ D(1) D(u), Σ D(u)²."""
LEAST_REST = 0.1
"""Of ΣZ: where one owner has nearly all rows that were drawn, leaving it out tells nothing."""
ADDED = 2
"""Rows with a property, and as many without it, that a count adds to find its error."""
FEW_OWNERS_QUANTILE = 0.9
Numbers: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class SampleScale:
    """How numbers of a sample become whole ones, and owners that were drawn all."""

    sample: TableSample
    count_bits: int
    owners: int

    @property
    def bits(self) -> int:
        """V is below n·w²: of all rows a quarter as many as that times 2⁶¹ fit."""
        return max(0, min(MAX_FRACTION_BITS, 60 - self.count_bits - 2 * ceil(log2(self.sample.most))))

    @property
    def drawn(self) -> int:
        return self.sample.owners_drawn(self.owners)


def open_sampled(
    aggregates: Sequence[QueryAggregate], told: Mapping[str, list[int]], selected: SelectedRows, scale: SampleScale
) -> Program[dict[tuple[str, int], Estimate]]:
    """By aggregate and group, of those functions that have an error."""
    asked = [(each, group) for each in aggregates if each.function in SAMPLED for group in told[each.name]]
    chosen = list(dict.fromkeys(each for each, _ in asked))

    def local(table: "OwnerTable") -> Numbers:
        rows = selected.rows(table)
        own = {each.name: _local(each, rows, selected.groups, scale.sample) for each in chosen}
        return np.array([own[each.name][:, group] for each, group in asked])

    if not asked:
        return {}
    if scale.sample.method == "SYSTEM":
        numbers = yield from _open_owners(local, len(asked), selected, scale)
    else:
        numbers = yield from _open_fixed("sums of the sample", local, (len(asked), SUMS), scale.bits)
    return {
        (each.name, group): _estimate(each, own, scale.sample)
        for (each, group), own in zip(asked, numbers, strict=True)
    }


def _open_fixed(
    label: str, local: "Callable[[OwnerTable], Numbers]", shape: tuple[int, int], bits: int
) -> Program[Numbers]:
    opened = yield Sum(
        label=label, local=lambda table: fixed(local(table).reshape(-1), bits), length=shape[0] * shape[1]
    )
    numbers: Numbers = np.array([int(each) for each in opened], float).reshape(shape) / 2.0**bits
    return numbers


def _open_owners(
    totals: "Callable[[OwnerTable], Numbers]", asked: int, selected: SelectedRows, scale: SampleScale
) -> Program[Numbers]:
    """What owners who were drawn say for all of them, as SUMS."""
    (rows,) = yield Sum(label="rows of all owners", local=lambda table: np.array([len(table)]), length=1)
    everything = max(1, int(rows))

    def with_part(table: "OwnerTable") -> Numbers:
        part = len(table) / everything if selected.drawn(table) else 0.0
        return np.concatenate([totals(table), np.tile([part, part**2], (asked, 1))], axis=1)

    bits = max(0, min(MAX_FRACTION_BITS, 60 - everything.bit_length()))
    opened = yield from _open_fixed("sums of owners that were drawn", with_part, (asked, OWNER_SUMS), bits)
    x, u, z, squares = opened.T
    z = np.maximum(z, 1 / everything)

    def moved(table: "OwnerTable") -> Numbers:
        own_x, own_u, own_z, _ = with_part(table).T
        rest = np.maximum(z - own_z, LEAST_REST * z)
        dx, du = (own_x - x / z * own_z) / rest, (own_u - u / z * own_z) / rest
        return np.stack([dx * dx, dx * du, du * du], axis=1)

    bits = max(0, min(MAX_FRACTION_BITS, 52 - 2 * everything.bit_length()))  # D is below ten times all rows
    spreads = yield from _open_fixed("how owners that were drawn differ", moved, (asked, SPREADS), bits)
    drawn = scale.drawn
    factor = (1 - drawn / scale.owners) * (drawn - 1) / drawn * _few_owners(float(z[0]), float(squares[0])) ** 2
    return np.concatenate([np.stack([x / z, u / z], axis=1), factor * spreads], axis=1)


def _few_owners(parts: float, squares: float) -> float:
    """t(ν)/t(∞) with ν = (ΣZ)²/ΣZ² − 1, at least 1."""
    from scipy.special import stdtrit  # noqa: PLC0415 - SciPy takes long to import

    freedom = max(1.0, parts**2 / max(squares, parts**2 * 1e-9) - 1)
    return float(stdtrit(freedom, FEW_OWNERS_QUANTILE) / stdtrit(np.inf, FEW_OWNERS_QUANTILE))


def _local(aggregate: QueryAggregate, rows: "OwnerTable", groups: QueryGroups, sample: TableSample) -> Numbers:
    """SUMS × groups, of one owner."""
    codes, mask = groups.codes(rows), counted_rows(aggregate).mask(rows)
    weights = np.asarray(rows.rows.column(WEIGHT))
    one = mask.astype(float)
    units = np.zeros(len(codes))
    if aggregate.function != "count":
        units[mask] = aggregate.arguments[0].column.units(rows)[mask]

    def by_group(values: Numbers) -> Numbers:
        return np.bincount(codes, weights=values, minlength=groups.count).astype(np.float64)

    pairs = ((one, one), (one, units), (units, units))
    if sample.method == "SYSTEM":  # whole owners: every row counts once
        return np.array([by_group(one), by_group(units)])
    totals = by_group(weights * one), by_group(weights * units)
    if not sample.by_group:
        return np.array([*totals, *(by_group(weights * (weights - 1) * x * y) for x, y in pairs)])
    taken, all_rows = by_group(np.ones(len(codes))), by_group(weights)
    if aggregate.function == "count":
        return _of_count(totals[0], by_group(one), taken, all_rows, certain=not aggregate.inputs)
    return np.array([*totals, *(_of_strata(by_group, x, y, taken, all_rows) for x, y in pairs)])


def _of_strata(by_group: Callable[[Numbers], Numbers], x: Numbers, y: Numbers, n: Numbers, N: Numbers) -> Numbers:
    least = np.maximum(n, 2)
    spread = (by_group(x * y) - by_group(x) * by_group(y) / least) / (least - 1)
    return np.where(n > 1, N * (N - n) * spread / least, 0.0)


def _of_count(total: Numbers, x: Numbers, n: Numbers, N: Numbers, *, certain: bool) -> Numbers:
    """Σ Nx/n, and what its variance follows from: Σx, Σn and Σ N(N − n)/n, which is 0 where every row counts."""
    unseen = np.zeros(len(n)) if certain else N * (N - n) / np.maximum(n, 1)
    return np.array([total, x, n, unseen, np.zeros(len(n))])


def _count(sums: Numbers) -> Estimate:
    total, x, n, unseen, _ = (float(each) for each in sums)
    p = (x + ADDED) / (n + 2 * ADDED)
    return Estimate(round(total), _root(p * (1 - p) * unseen))


def _estimate(aggregate: QueryAggregate, sums: Numbers, sample: TableSample) -> Estimate:
    if aggregate.function == "count" and sample.by_group:
        return _count(sums)
    rows, units, count_variance, covariance, variance = (float(each) for each in sums)
    if aggregate.function == "count":
        return Estimate(round(rows), _root(count_variance))
    if rows < 0.5:
        return Estimate(None)
    column = aggregate.arguments[0].column
    middle, scale = column.middle, column.range
    if aggregate.function == "sum":
        total = rows * middle + scale * units
        error = _root(middle**2 * count_variance + 2 * middle * scale * covariance + scale**2 * variance)
        return Estimate(round(total) if column.whole else total, error)
    ratio = units / rows
    spread = _root(variance - 2 * ratio * covariance + ratio**2 * count_variance)
    return Estimate(middle + scale * ratio, scale * spread / rows)


def _root(value: float) -> float:
    """Rounding may leave a little less than nothing."""
    return sqrt(max(0.0, value))
