"""ORDER BY over the rows of all owners: every key of a row becomes a whole number that sorts as DuckDB would.

A floating-point number sorts like its own bits, read as a whole number, with those of negative numbers turned over. So
a search among them is exact: it ends at one number, and not at an interval.
"""

from dataclasses import dataclass
from math import isfinite

import numpy as np
import pyarrow as arrow
from numpy.typing import NDArray
from sqlglot import exp

from winnow.analytics.sql.allowed_nodes import refused
from winnow.analytics.sql.describe_expression import describe_expression
from winnow.analytics.sql.described import Columns
from winnow.analytics.sql.spatial_functions import is_spatial
from winnow.analytics.sql.sql_text import shown_text, text_of, tried

LARGEST = (1 << 63) - 4
MICROSECONDS_A_DAY = 86_400_000_000
SIGN = np.int64(0x7FFFFFFFFFFFFFFF)
TAG_BITS = 62
FIRST_EDGES = 63


@dataclass(frozen=True, kw_only=True)
class OrderKey:
    """A key of ORDER BY. Ranks are between `lowest` and `highest`, NULL's are one beyond."""

    name: str
    sql: str
    whole: bool
    lowest: int
    highest: int
    descending: bool = False
    nulls_first: bool = False
    spatial: bool = False
    """Whether it is a distance, which is never negative."""

    @property
    def least(self) -> int:
        """The smallest rank that there is."""
        return self.lowest - self.nulls_first

    @property
    def most(self) -> int:
        return self.highest + (not self.nulls_first)

    def ranks(self, cells: arrow.ChunkedArray) -> NDArray[np.int64]:
        missing = cells.is_null().to_numpy()
        if self.whole:
            found: NDArray[np.int64] = cells.fill_null(0).to_numpy().astype(np.int64)
        else:
            numbers = cells.fill_null(0.0).to_numpy().astype(np.float64)
            missing, found = missing | np.isnan(numbers), _rank_of(np.nan_to_num(numbers))
        found = np.clip(~found if self.descending else found, self.lowest, self.highest)
        return np.where(missing, self.least if self.nulls_first else self.most, found)

    def first_edges(self) -> list[int]:
        """Where a search begins: the next half power of two below the largest distance, and so on; else nowhere."""
        if not self.spatial or self.descending:
            return []
        largest = float(np.int64(self.highest).view(np.float64))
        edges = largest * 2.0 ** (-np.arange(FIRST_EDGES)[::-1] / 2)
        return sorted({int(each) for each in _rank_of(edges)})


TAG = OrderKey(name="tag", sql="", whole=True, lowest=0, highest=(1 << TAG_BITS) - 1)
"""The last key, by lot: of rows that are equal in all others, each is as likely to come first."""


def order_keys(order: exp.Order | None, columns: Columns) -> tuple[OrderKey, ...]:
    """The keys of ORDER BY, whose columns have their own names already; a ConfigError says what cannot be sorted by."""
    nodes: list[exp.Ordered] = list(order.expressions) if order is not None else []
    return tuple(_key(f"o{place}", node, columns) for place, node in enumerate(nodes))


def _key(name: str, node: exp.Ordered, columns: Columns) -> OrderKey:
    value, known = node.this, describe_expression(node.this, columns)
    shown = shown_text(value)
    for each in value.find_all(exp.Column):
        if columns(each).level == "private":
            raise refused(value, f"column '{each.name}' is private and cannot be sorted by; it may stand in WHERE")
    whole, low, high, spatial = known.type in ("integer", "boolean", "date"), known.low, known.high, is_spatial(value)
    if known.type == "date":
        value = exp.Anonymous(this="epoch_us", expressions=[exp.cast(value.copy(), "TIMESTAMP")])
        low, high = low * MICROSECONDS_A_DAY, high * MICROSECONDS_A_DAY
    elif known.type not in ("number", "integer", "boolean"):
        raise refused(node, f"ORDER BY {shown}: rows of several owners can be sorted by numbers, dates and booleans")
    low = 0.0 if spatial else low
    if whole:
        lowest, highest = (
            int(each) if isfinite(each) else int(np.sign(each)) * LARGEST for each in (low - 1, high + 1)
        )
    else:
        lowest, highest = (int(each) for each in _rank_of(np.array([low, high])))
    if node.args.get("desc"):
        lowest, highest = ~highest, ~lowest
    return OrderKey(
        name=name,
        sql=text_of(tried(value, "BIGINT" if whole else "DOUBLE")),
        whole=whole,
        lowest=max(lowest, -LARGEST),
        highest=min(highest, LARGEST),
        descending=bool(node.args.get("desc")),
        nulls_first=bool(node.args.get("nulls_first")),
        spatial=spatial,
    )


def _rank_of(numbers: NDArray[np.float64]) -> NDArray[np.int64]:
    """Whole numbers in the order of these: −0 and 0 have the same."""
    bits = np.ascontiguousarray(numbers + 0.0).view(np.int64)
    return np.where(bits < 0, bits ^ SIGN, bits)
