"""The rows that a model is fitted to: those with nothing missing, and no combination of levels that too few have."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.fit.design import Design, Matrix
from winnow.analytics.tables.owner_table import OwnerTable

Response = Callable[[OwnerTable], NDArray[np.float64]]
"""The response of each row, NaN where it is missing; of classes their numbers."""
Cell = tuple[str, tuple[int, ...]]
"""A column and some of its levels."""


@dataclass(frozen=True)
class FitRows:
    """A design, a response, and how many complete rows there are of each class (one number without classes)."""

    design: Design
    response: Response | None
    classes: int
    counts: tuple[int, ...] = ()
    pooled: tuple[str, ...] = ()
    rare: tuple[tuple[Cell, ...], ...] = ()
    """Combinations of levels whose rows are left out."""

    @property
    def rows(self) -> int:
        return sum(self.counts)

    def complete(self, table: OwnerTable) -> tuple[Matrix, NDArray[np.float64]]:
        """The matrix and the response (zeros if there is none) of rows with nothing missing, and nothing rare."""
        matrix, response, kept = self._selected(table)
        return matrix[kept], response[kept]

    def _selected(self, table: OwnerTable) -> tuple[Matrix, NDArray[np.float64], NDArray[np.bool_]]:
        """Matrix, response, and which rows are kept."""
        matrix = self.design.matrix(table)
        response = np.zeros(len(table)) if self.response is None else self.response(table)
        kept = np.isfinite(matrix).all(axis=1) & np.isfinite(response)
        codes = {column: table.codes(column) for column in _columns_of(self.rare)}
        for cell in self.rare:
            kept &= ~_has_levels(codes, cell)
        return matrix, response, kept

    def class_counts(self, table: OwnerTable) -> NDArray[np.int64]:
        """Complete rows of each class."""
        _, response = self.complete(table)
        return np.bincount(self._class_of(response), minlength=self.classes)

    def level_counts(self, table: OwnerTable, cells: Sequence[Sequence[Cell]]) -> NDArray[np.int64]:
        """Complete rows of each class (second) that have all the levels of a cell (first)."""
        _, response, kept = self._selected(table)
        classes = self._class_of(response[kept])
        codes = {column: table.codes(column)[kept] for column in _columns_of(cells)}
        found = [np.bincount(classes[_has_levels(codes, cell)], minlength=self.classes) for cell in cells]
        return np.stack(found)

    def cell_counts(self, cells: Sequence[Sequence[Cell]], table: OwnerTable) -> NDArray[np.int64]:
        """Complete rows that have all the levels of each cell."""
        _, _, kept = self._selected(table)
        codes = {column: table.codes(column)[kept] for column in _columns_of(cells)}
        return np.array([_has_levels(codes, cell).sum() for cell in cells], np.int64)

    def _class_of(self, response: NDArray[np.float64]) -> NDArray[np.int64]:
        return response.astype(np.int64) if self.classes > 1 else np.zeros(len(response), np.int64)


def _columns_of(cells: Sequence[Sequence[Cell]]) -> list[str]:
    return list(dict.fromkeys(column for cell in cells for column, _ in cell))


def _has_levels(codes: Mapping[str, NDArray[np.int64]], cell: Sequence[Cell]) -> NDArray[np.bool_]:
    """Which rows have all the levels of a cell."""
    found: NDArray[np.bool_] = np.all([np.isin(codes[column], levels) for column, levels in cell], axis=0)
    return found
