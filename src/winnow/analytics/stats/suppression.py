"""Small counts stay hidden: which cells of a table of counts may be opened, decided by comparisons in shares.

A cell with 1 … minimum − 1 rows is hidden; an empty one is told. As totals are told as well, a hidden cell could be
worked out from its line (a row or column with its total), so other cells are hidden along with it until the hidden ones
of each line have `minimum` rows at least together (secondary suppression; Willenborg and de Waal, 2001, chapter 9).
Hidden cells are never summed.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.program import Compare, Program

if TYPE_CHECKING:
    from winnow.analytics.tables.owner_table import OwnerTable

EMPTY, SMALL, SHOWN, WITHHELD = range(4)
"""No rows; too few; enough; enough, and hidden to protect another one."""
States: TypeAlias = NDArray[np.int8]
TOTAL = -1
"""The place of a line's total."""


@dataclass(frozen=True, kw_only=True)
class CellTable:
    """Counts by category (rows) and group (columns); with totals, where a dimension has more than one entry."""

    shape: tuple[int, int]
    count: Callable[["OwnerTable"], NDArray[np.int64]]
    totals: bool = True

    @property
    def full_shape(self) -> tuple[int, int]:
        rows, groups = self.shape
        return (rows + (self.totals and rows > 1), groups + (self.totals and groups > 1))

    def full_count(self, table: "OwnerTable") -> NDArray[np.int64]:
        counts = self.count(table).reshape(self.shape)
        rows, groups = self.full_shape
        if rows > self.shape[0]:
            counts = np.vstack([counts, counts.sum(axis=0, keepdims=True)])
        if groups > self.shape[1]:
            counts = np.hstack([counts, counts.sum(axis=1, keepdims=True)])
        return counts

    def lines(self) -> list[NDArray[np.int64]]:
        """Places (in the flattened table) of the cells of each line, its total last; lines of totals come first."""
        rows, groups = self.full_shape
        places = np.arange(rows * groups).reshape(rows, groups)
        found = list[NDArray[np.int64]]()
        if groups > self.shape[1]:
            found += [places[row] for row in reversed(range(rows))]
        if rows > self.shape[0]:
            found += [places[:, group] for group in reversed(range(groups))]
        return found if rows > self.shape[0] or groups > self.shape[1] else []


def decide_cells(tables: Sequence[CellTable], minimum: int, bits: int) -> Program[list[States]]:
    """The state of every cell, after two comparisons of counts below 2**bits.

    The second one asks of each cell that is too small whether it is empty, and of each line whether its small cells
    have enough rows together.
    """

    def counts(table: "OwnerTable") -> NDArray[np.int64]:
        return np.concatenate([each.full_count(table).reshape(-1) for each in tables])

    sizes = [rows * groups for rows, groups in (each.full_shape for each in tables)]
    starts = np.cumsum([0, *sizes])
    enough = yield Compare(
        label="cells with enough rows", local=counts, thresholds=np.full(starts[-1], minimum, np.int64), bits=bits
    )
    lines = [start + line for start, each in zip(starts, tables, strict=False) for line in each.lines()]
    small = [line[:-1][~enough[line[:-1]]] for line in lines]
    below, unsure = np.flatnonzero(~enough), [number for number, cells in enumerate(small) if len(cells)]
    states, together = np.where(enough, SHOWN, EMPTY).astype(np.int8), np.ones(len(lines), bool)
    if len(below):

        def small_counts(table: "OwnerTable") -> NDArray[np.int64]:
            all_counts = counts(table)
            sums = [all_counts[small[number]].sum() for number in unsure]
            return np.concatenate([all_counts[below], np.array(sums, np.int64)])

        thresholds = np.r_[np.ones(len(below), np.int64), np.full(len(unsure), minimum, np.int64)]
        answers = yield Compare(label="cells without rows", local=small_counts, thresholds=thresholds, bits=bits)
        states[below] = np.where(answers[: len(below)], SMALL, EMPTY)
        together[unsure] = answers[len(below) :]
    decided, at = list[States](), 0
    for start, size, each in zip(starts, sizes, tables, strict=False):
        own = states[start : start + size]
        count = len(each.lines())
        withhold(own, each.lines(), together[at : at + count])
        decided.append(own.reshape(each.full_shape))
        at += count
    return decided


def withhold(states: States, lines: list[NDArray[np.int64]], together: NDArray[np.bool_]) -> None:
    """Hide further cells of a table until all its lines are safe, and no small cell follows from several lines."""
    useless = np.zeros(len(states), bool)
    while True:
        unsafe = [line for n, line in enumerate(lines) if not _safe(states[line], bool(together[n]))]
        unsafe = unsafe or _lines_of_determined(states, lines)
        if not unsafe:
            return
        around = _from_hidden(states, unsafe[0][:-1])
        free = [cell for line in unsafe for cell in _from_hidden(states, line[:-1]) if states[cell] == SHOWN]
        free = [cell for cell in free if not useless[cell]]
        if free:
            states[free[0]] = WITHHELD
        elif states[around[0]] == WITHHELD:  # it can be worked out, so hiding it protects nothing
            states[around[0]], useless[around[0]] = SHOWN, True
        else:  # nothing is left to hide behind
            states[states == SHOWN] = WITHHELD
            return


def _from_hidden(states: States, cells: NDArray[np.int64]) -> NDArray[np.int64]:
    """Cells of a line from its first hidden one on, backwards: lists often end with what is rare."""
    hidden = np.flatnonzero(np.isin(states[cells], (SMALL, WITHHELD)))
    begin = int(hidden[0]) if len(hidden) else 0
    return np.roll(cells[::-1], begin + 1)


def _lines_of_determined(states: States, lines: list[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    """The lines of the first small cell whose value follows from all lines together, if there is one.

    With A the lines' equations for hidden cells, cell i is determined if its unit vector is in A's row space: if the
    projection A⁺A has a one at (i, i).
    """
    hidden = np.flatnonzero(np.isin(states, (SMALL, WITHHELD)))
    if not lines or not (states == SMALL).any():
        return []
    equations = np.zeros((len(lines), len(hidden)))
    for number, line in enumerate(lines):
        equations[number] = np.isin(hidden, line[:-1]).astype(float) - (hidden == line[-1])
    inverse = np.linalg.pinv(equations @ equations.T, hermitian=True)
    certain = np.einsum("li,lk,ki->i", equations, inverse, equations, optimize=True) > 1 - 1e-6
    determined = hidden[certain & (states[hidden] == SMALL)]
    return [line for line in lines if len(determined) and determined[0] in line]


def _safe(line: States, together: bool) -> bool:
    """Whether the hidden cells of a line stay hidden from who knows the others."""
    hidden = line[(line == SMALL) | (line == WITHHELD)]
    if not len(hidden):
        return True
    if len(hidden) == 1:
        return bool(line[-1] == hidden[0] and line[-1] == SMALL)
    return bool((hidden == WITHHELD).any()) or together or bool(line[-1] == SMALL)


def hidden_count(states: Sequence[States]) -> int:
    return sum(int(np.isin(each, (SMALL, WITHHELD)).sum()) for each in states)


def shown_places(states: States) -> Iterator[tuple[int, int]]:
    yield from ((int(row), int(group)) for row, group in np.argwhere(states == SHOWN))
