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
        masks = _masks(table, self.rare)
        for cell in self.rare:
            kept &= ~_has_levels(masks, cell)
        return matrix, response, kept

    def class_counts(self, table: OwnerTable) -> NDArray[np.int64]:
        """Complete rows of each class."""
        _, response = self.complete(table)
        return np.bincount(self._class_of(response), minlength=self.classes)

    def level_counts(self, table: OwnerTable, cells: Sequence[Sequence[Cell]]) -> NDArray[np.int64]:
        """Complete rows of each class (second) that have all the levels of a cell (first)."""
        _, response, kept = self._selected(table)
        classes = self._class_of(response[kept])
        masks = {each: mask[kept] for each, mask in _masks(table, cells).items()}
        found = [np.bincount(classes[_has_levels(masks, cell)], minlength=self.classes) for cell in cells]
        return np.stack(found)

    def cell_counts(self, cells: Sequence[Sequence[Cell]], table: OwnerTable) -> NDArray[np.int64]:
        """Complete rows that have all the levels of each cell."""
        _, _, kept = self._selected(table)
        masks = {each: mask[kept] for each, mask in _masks(table, cells).items()}
        return np.array([np.count_nonzero(_has_levels(masks, cell)) for cell in cells], np.int64)

    def _class_of(self, response: NDArray[np.float64]) -> NDArray[np.int64]:
        return response.astype(np.int64) if self.classes > 1 else np.zeros(len(response), np.int64)


def _masks(table: OwnerTable, cells: Sequence[Sequence[Cell]]) -> dict[Cell, NDArray[np.bool_]]:
    """For each column and levels in the cells, which rows have one of them."""
    wanted = dict.fromkeys(each for cell in cells for each in cell)
    codes = {column: table.codes(column) for column in dict.fromkeys(column for column, _ in wanted)}
    return {(column, levels): np.isin(codes[column], levels) for column, levels in wanted}


def _has_levels(masks: Mapping[Cell, NDArray[np.bool_]], cell: Sequence[Cell]) -> NDArray[np.bool_]:
    """Which rows have all the levels of a cell."""
    found: NDArray[np.bool_] = np.logical_and.reduce([masks[each] for each in cell])
    return found
