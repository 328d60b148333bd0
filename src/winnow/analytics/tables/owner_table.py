"""One owner's rows, as far as they are declared."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as arrow
from numpy.typing import NDArray
from pyarrow import compute

from winnow.analytics.tables.declaration import TableDeclaration
from winnow.core import ConfigError

MISSING = -1
OTHER = -2
MICROSECONDS_A_DAY = 86_400_000_000


@dataclass(frozen=True)
class OwnerTable:
    """Typed rows. Every column of the declaration is there and no other; its types are filled in from the rows."""

    declaration: TableDeclaration
    rows: arrow.Table
    beside: Mapping[str, "OwnerTable"] = field(default_factory=dict)
    """The owner's other tables, by name, where a question is about several."""
    place: int = 0
    """Among the owners of a question."""
    matched: tuple[str, ...] = ()
    """The identifiers that a set intersection found, sorted, where the owner may know them."""
    kept: bytes = b""
    """What a protocol left to this owner alone."""
    secret: bytes = b""
    """Of this owner and a submission: what is drawn from it nobody else can foresee."""

    def __len__(self) -> int:
        return int(self.rows.num_rows)

    def numbers(self, column: str) -> NDArray[np.float64]:
        """NaN where missing; clipped to bounds where they are declared. Dates are days since 1970."""
        declared = self.declaration.column(column)
        cells = self.rows.column(column)
        if arrow.types.is_string(cells.type):
            raise ConfigError(f"column '{column}' is text; it has no numbers")
        if arrow.types.is_timestamp(cells.type):
            numbers = _floats(cells.cast(arrow.int64())) / MICROSECONDS_A_DAY
        else:
            numbers = _floats(cells)
        return numbers if declared.bounds is None else np.clip(numbers, *declared.bounds)

    def codes(self, column: str) -> NDArray[np.int64]:
        """The place of each cell in the declared values; MISSING (-1), or OTHER (-2) for a value that is not listed."""
        categories = self.declaration.column(column).categories
        if categories is None:
            raise ConfigError(f"column '{column}' has no list of values; declare values = […]")
        cells = self.rows.column(column)
        if arrow.types.is_boolean(cells.type):
            cells = compute.if_else(cells, "true", "false")
        if isinstance(categories[0], str):
            cells, known = cells.cast(arrow.string()), arrow.array(categories, arrow.string())
        else:
            cells, known = cells.cast(arrow.float64()), arrow.array([float(each) for each in categories])
        places = compute.index_in(cells, value_set=known)
        missing = cells.is_null().to_numpy()
        codes = places.fill_null(OTHER).to_numpy().astype(np.int64)
        return np.where(missing, MISSING, codes)

    def limited(self) -> "OwnerTable":
        """At most `declaration.rows` rows of each unit: the first. Rows without a unit count as one unit's."""
        if self.declaration.unit is None or self.declaration.rows is None:
            return self
        units = self.rows.column(self.declaration.unit).combine_chunks()
        codes = units.dictionary_encode().indices.fill_null(-1).to_numpy(zero_copy_only=False)
        order = np.argsort(codes, kind="stable")
        sorted_codes = codes[order]
        starts = np.flatnonzero(np.r_[True, sorted_codes[1:] != sorted_codes[:-1]]) if len(codes) else np.array([], int)
        rank = np.empty(len(codes), np.int64)
        rank[order] = np.arange(len(codes)) - np.repeat(starts, np.diff(np.r_[starts, len(codes)]))
        return replace(self, rows=self.rows.filter(arrow.array(rank < self.declaration.rows)))


def _floats(cells: arrow.ChunkedArray) -> NDArray[np.float64]:
    floats: NDArray[np.float64] = cells.cast(arrow.float64(), safe=False).to_numpy()
    return np.where(cells.is_null().to_numpy(), np.nan, floats)
