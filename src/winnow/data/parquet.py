"""Parquet files, read with pyarrow: an extra that is imported on use."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.core import DataError
from winnow.core.distribution import install_command
from winnow.data.tables import Numbers, check_finite

try:
    import pyarrow as arrow
    import pyarrow.parquet
except ImportError as missing:
    raise DataError(f"Parquet files need pyarrow: {install_command('parquet')}") from missing


class ParquetTable:
    """A Parquet file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        try:
            self._table = arrow.parquet.read_table(path)
        except (arrow.ArrowInvalid, OSError) as error:
            reason = str(error).splitlines()[0]
            raise DataError(f"{path} is not a readable Parquet file: {reason}") from error
        self.columns: Sequence[str] = self._table.column_names
        if self._table.num_rows == 0:
            raise DataError(f"{path} has no rows")

    def numbers(self, columns: Sequence[str]) -> Numbers:
        for name in columns:
            kind = self._table.schema.field(name).type
            if not (arrow.types.is_integer(kind) or arrow.types.is_floating(kind) or arrow.types.is_boolean(kind)):
                raise DataError(
                    f"{self.path}: column '{name}' holds {kind}, not numbers; convert it or leave it out of features"
                )
        numbers = np.stack(
            [self._column(name).cast(arrow.float64()).to_numpy(zero_copy_only=False) for name in columns], axis=1
        )
        return check_finite(numbers, columns, self.path)

    def values(self, column: str) -> NDArray[Any]:
        cells = self._column(column)
        if cells.null_count:
            row = int(np.flatnonzero(cells.is_null().to_numpy(zero_copy_only=False))[0])
            raise DataError(f"{self.path}: column '{column}', data row {row + 1} is empty; remove such rows first")
        values: NDArray[Any] = cells.to_numpy(zero_copy_only=False)
        return values.astype(np.str_) if values.dtype == object else values

    def _column(self, name: str) -> Any:
        return self._table.column(name).combine_chunks()
