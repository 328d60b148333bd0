"""Parquet files, read with pyarrow: an extra that is imported on use."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from numpy.typing import NDArray

from winnow.core import DataError
from winnow.core.installed_package import install_command
from winnow.data.dataframe_adapters import FrameTable

try:
    import pyarrow as arrow
    import pyarrow.parquet
except ImportError as missing:
    raise DataError(f"Parquet files need pyarrow: {install_command('parquet')}") from missing


class ParquetTable:
    """A Parquet file."""

    def __init__(self, path: Path) -> None:
        self.where = str(path)
        try:
            self._table = arrow.parquet.read_table(path)
        except (arrow.ArrowInvalid, OSError) as error:
            reason = str(error).splitlines()[0]
            raise DataError(f"{path} is not a readable Parquet file: {reason}") from error
        self.columns: Sequence[str] = self._table.column_names
        if self._table.num_rows == 0:
            raise DataError(f"{path} has no rows")

    def column(self, name: str) -> NDArray[Any]:
        cells = self._table.column(name).combine_chunks()
        kind = cells.type
        if arrow.types.is_integer(kind) or arrow.types.is_floating(kind):
            numbers: NDArray[Any] = (cells.cast(arrow.float64()) if cells.null_count else cells).to_numpy(
                zero_copy_only=False
            )
            return numbers
        return FrameTable({name: cells}, self.where).column(name)

    def read(self, names: Sequence[str]) -> list[NDArray[Any]]:
        return [self.column(name) for name in names]
