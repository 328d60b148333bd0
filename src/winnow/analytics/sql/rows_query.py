"""The program of a statement that shows rows: which they are by comparisons, and then a mix of sealed rows.

Rows are shown if the owners' minimum of rows is selected, and no more of them than every owner's rule says.
"""

import json
from base64 import b64encode
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as arrow
from numpy.typing import NDArray

from winnow.analytics.program import Compare, Mix, Program
from winnow.analytics.question import MergedTerms
from winnow.analytics.sql.execute_at_owner import execute_at_owner
from winnow.analytics.sql.finish_query import plain_value
from winnow.analytics.sql.first_rows import Place, not_beyond, open_end, with_lots
from winnow.analytics.sql.identity_cache import IdentityCache
from winnow.analytics.sql.plan_rows import MAX_SHOWN_ROWS, RowsPlan
from winnow.analytics.stats.size_up import MAX_ROW_BITS, ROW_BITS
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.core import ConfigError, DataError

if TYPE_CHECKING:
    from winnow.analytics.tables.owner_table import OwnerTable

SIZES = (32, 64, 96, 128, 192, 256, 384, 512, 768, 1024, 2048, 4096)
"""Bytes of a row: everybody learns the next of these above the longest."""


def shown_limit(plan: RowsPlan, terms: MergedTerms) -> int:
    """How many rows are shown at most."""
    return min(MAX_SHOWN_ROWS, terms.rows, MAX_SHOWN_ROWS if plan.limit is None else plan.limit)


def rows_query(plan: RowsPlan, terms: MergedTerms, reader: bytes) -> Program[dict[str, Any]]:
    """The sealed rows; whether there are more, and whether there are too few to show any."""
    if plan.private and terms.minimum > 1:  # WHERE id = … OR …, with ORDER BY, would show the row of a person
        raise ConfigError(
            "rows that a private column chooses are not shown; ask for aggregates, or leave it out of WHERE"
        )
    limit, selected = shown_limit(plan, terms), _SelectedRows(plan, terms.declaration)
    answer: dict[str, Any] = {"rows": [], "errors": [], "left_out": 0, "hidden_values": 0, "unlisted_rows": False}
    beyond = max(limit + 1, terms.minimum)
    thresholds = np.array([*(1 << bits for bits in ROW_BITS), terms.minimum, beyond], np.int64)
    opened = yield Compare(
        label="how many rows",
        local=lambda table: np.full(len(thresholds), selected.count(table), np.int64),
        thresholds=thresholds,
        bits=MAX_ROW_BITS,
    )
    bits = (*ROW_BITS, MAX_ROW_BITS - 1)[int(opened[:-2].sum())] + 1
    enough, more = bool(opened[-2]), bool(opened[-1])
    if not enough or limit == 0:
        return {**answer, "sealed": [], "too_few_rows": not enough, "more_rows": enough}
    end = (yield from open_end(plan.order, selected.ranks, limit, bits)) if more else None
    longer = yield Compare(
        label="how long rows are",
        local=lambda table: selected.longer(table, end),
        thresholds=np.ones(len(SIZES), np.int64),
        bits=MAX_ROW_BITS,
    )
    if longer[-1]:
        raise DataError(f"a row is longer than {SIZES[-1]:,} bytes; ask for fewer columns")
    size = SIZES[int(longer.sum())]
    boxes = yield Mix(
        label="rows", local=lambda table: selected.texts(table, end), slots=limit, size=size, reader=reader
    )
    mixed = boxes.reshape(limit * len(terms.owners), -1)
    sealed = [b64encode(box.tobytes()).decode() for box in mixed]
    return {**answer, "sealed": sealed, "too_few_rows": False, "more_rows": more}


class _SelectedRows:
    """The rows of a table that a statement selects. They are kept: every step asks for them."""

    def __init__(self, plan: RowsPlan, declaration: TableDeclaration) -> None:
        self._plan, self._declaration = plan, declaration
        self._kept = IdentityCache[tuple[arrow.Table, list[NDArray[np.int64]]]]()

    def count(self, table: "OwnerTable") -> int:
        return int(self._found(table)[0].num_rows)

    def ranks(self, table: "OwnerTable") -> list[NDArray[np.int64]]:
        return self._found(table)[1]

    def texts(self, table: "OwnerTable", end: Place | None) -> list[bytes]:
        """The rows that are shown: what each shows, and its ranks, which its reader sorts by."""
        rows, ranks = self._found(table)
        places = np.arange(rows.num_rows) if end is None else np.flatnonzero(not_beyond(ranks, end))
        cells = [rows.column(f"s{place}").take(places).to_pylist() for place in range(len(self._plan.columns))]
        keys = [[int(each) for each in own[places]] for own in ranks[: len(self._plan.order)]]
        return [
            json.dumps(
                [[plain_value(column[row]) for column in cells], [key[row] for key in keys]],
                ensure_ascii=False,
                separators=(",", ":"),
            ).encode()
            for row in range(len(places))
        ]

    def longer(self, table: "OwnerTable", end: Place | None) -> NDArray[np.int64]:
        lengths = np.array([len(text) for text in self.texts(table, end)], np.int64)
        return np.array([int((lengths > size).sum()) for size in SIZES], np.int64)

    def _found(self, table: "OwnerTable") -> tuple[arrow.Table, list[NDArray[np.int64]]]:
        return self._kept.get(table, lambda: self._read(table))

    def _read(self, table: "OwnerTable") -> tuple[arrow.Table, list[NDArray[np.int64]]]:
        plan = self._plan
        rows = execute_at_owner(table, {plan.table: self._declaration}, plan.local_sql, plan.sample)
        ranks = [key.ranks(rows.column(key.name)) for key in plan.order]
        return rows, with_lots(ranks, rows.num_rows, table)
