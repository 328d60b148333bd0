"""Small counts stay hidden: which cells of tables of counts may be opened, decided by comparisons in shares.

A cell with 1 … minimum − 1 rows is hidden; an empty one is told. As totals are told as well, a hidden cell could be
worked out from its line (a row or column with its total), so other cells are hidden along with it until the hidden ones
of each line have `minimum` rows at least together (secondary suppression; Willenborg and de Waal, 2001, chapter 9).
Hidden cells are never summed.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from math import prod
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.program import Compare, Program

if TYPE_CHECKING:
    from winnow.analytics.tables.owner_table import OwnerTable

EMPTY, SMALL, SHOWN, WITHHELD = range(4)
"""No rows; too few; enough; enough, or not asked for, and hidden."""
HIDDEN = (SMALL, WITHHELD)
States: TypeAlias = NDArray[np.int8]
Key: TypeAlias = tuple[str, ...]
"""What is counted, of which column, by which columns: ("bins", "age", "sex")."""
Condition: TypeAlias = tuple[str, ...]
"""What is true of rows: ("ward", "value", "2")."""
CellName: TypeAlias = tuple[Condition, ...]
TOTAL = -1
"""The place of a line's total."""


@dataclass(frozen=True, kw_only=True)
class CellTable:
    """Counts by category (rows) and group (columns). Totals over categories are told, where there are several; those
    over groups are told for the total alone: the others follow, where no group's cell is hidden.
    """

    key: Key
    shape: tuple[int, int]
    count: Callable[["OwnerTable"], NDArray[np.int64]]
    complete: bool = False
    """Whether every row has a value of the column."""
    listed: tuple[int, ...] = ()
    """Of each column that groups are made of, how many values it lists; what is in none of these groups comes last."""

    @property
    def full_shape(self) -> tuple[int, int]:
        rows, groups = self.shape
        return rows + (rows > 1), groups + (groups > 1)

    def full_count(self, table: "OwnerTable") -> NDArray[np.int64]:
        counts = self.count(table).reshape(self.shape)
        rows, groups = self.full_shape
        if rows > self.shape[0]:
            counts = np.vstack([counts, counts.sum(axis=0, keepdims=True)])
        if groups > self.shape[1]:
            counts = np.hstack([counts, counts.sum(axis=1, keepdims=True)])
        return counts

    def names(self) -> list[CellName]:
        """What the rows of each cell have in common: cells of several tables that count the same have the same name."""
        kind, column, *_ = self.key
        rows, groups = self.full_shape
        word = "bin" if kind == "bins" else "value"
        of_rows: list[set[Condition]] = [{(column, word, str(row))} for row in range(self.shape[0])] if rows > 1 else []
        total: set[Condition] = set() if self.complete else {(column, "present")}
        if kind in ("missing", "without"):
            total = {(column, "missing")} | ({(self.key[2], "present")} if kind == "without" else set())
        of_groups = [self._group(group) for group in range(self.shape[1])] if groups > 1 else []
        return [_name(row | group) for row in (*of_rows, total) for group in (*of_groups, set())]

    def _group(self, group: int) -> set[Condition]:
        """A group by its columns' values."""
        by = self.key[2:]
        if not self.listed or group >= prod(self.listed):
            return {(",".join(by), "rest" if self.listed else "group", str(group))}
        places = np.unravel_index(group, self.listed)
        return {(column, "value", str(place)) for column, place in zip(by, places, strict=True)}

    def told(self) -> NDArray[np.bool_]:
        told = np.ones(self.full_shape, bool)
        if min(self.full_shape) > 1:
            told[:-1, -1] = False
        return told

    def lines(self) -> list[NDArray[np.int64]]:
        """Places (in the flattened table) of the cells of each line, its total last; lines of totals come first."""
        rows, groups = self.full_shape
        places = np.arange(rows * groups).reshape(rows, groups)
        found = [places[row] for row in reversed(range(rows))] if groups > 1 else []
        return found + ([places[:, group] for group in reversed(range(groups))] if rows > 1 else [])


class CellIndex:
    """The cells of several tables, each once."""

    def __init__(self, tables: Mapping[Key, CellTable]) -> None:
        self.tables = tables
        names = {key: table.names() for key, table in tables.items()}
        place = {name: at for at, name in enumerate(dict.fromkeys(name for each in names.values() for name in each))}
        self.places = {key: np.array([place[name] for name in each], np.int64) for key, each in names.items()}
        self.told = np.zeros(len(place), bool)
        for key, table in tables.items():
            self.told[self.places[key][table.told().reshape(-1)]] = True

    def counts(self, table: "OwnerTable") -> NDArray[np.int64]:
        found = np.zeros(len(self.told), np.int64)
        for key, each in self.tables.items():
            found[self.places[key]] = each.full_count(table).reshape(-1)
        return found

    def lines(self) -> list[NDArray[np.int64]]:
        """Those of all tables. A line with a cell that is told nowhere, and is in no other table, says nothing."""
        tables_of = np.zeros(len(self.told), np.int64)
        for places in self.places.values():
            tables_of[places] += 1
        useful = self.told | (tables_of > 1)
        found = [self.places[key][line] for key, table in self.tables.items() for line in table.lines()]
        return [line for line in found if useful[line].all()]


def _name(conditions: set[Condition]) -> CellName:
    """A value of a column says that there is one."""
    valued = {condition[0] for condition in conditions if condition[1] in ("value", "bin")}
    return tuple(sorted(each for each in conditions if each[1] != "present" or each[0] not in valued))


def decide_cells(cells: CellIndex, minimum: int, bits: int) -> Program[States]:
    """The state of every cell, after two comparisons of counts below 2**bits.

    The second one asks of each cell that is too small whether it is empty, and of each line whether its small cells
    have enough rows together.
    """
    asked = np.flatnonzero(cells.told)
    bits_opened = yield Compare(
        label="cells with enough rows",
        local=lambda table: cells.counts(table)[asked],
        thresholds=np.full(len(asked), minimum, np.int64),
        bits=bits,
    )
    states = np.full(len(cells.told), WITHHELD, np.int8)
    states[asked] = np.where(bits_opened, SHOWN, EMPTY)
    lines = cells.lines()
    small = [line[:-1][states[line[:-1]] == EMPTY] for line in lines]
    below, unsure = np.flatnonzero(states == EMPTY), [number for number, own in enumerate(small) if len(own)]
    together = np.ones(len(lines), bool)
    if len(below):

        def small_counts(table: "OwnerTable") -> NDArray[np.int64]:
            counts = cells.counts(table)
            return np.concatenate(
                [counts[below], np.array([counts[small[number]].sum() for number in unsure], np.int64)]
            )

        thresholds = np.r_[np.ones(len(below), np.int64), np.full(len(unsure), minimum, np.int64)]
        answers = yield Compare(label="cells without rows", local=small_counts, thresholds=thresholds, bits=bits)
        states[below] = np.where(answers[: len(below)], SMALL, EMPTY)
        together[unsure] = answers[len(below) :]
    withhold(states, cells.told, lines, together)
    return states


def withhold(
    states: States, told: NDArray[np.bool_], lines: list[NDArray[np.int64]], together: NDArray[np.bool_]
) -> None:
    """Hide further cells of lines, until its small cells are safe; what is known all the same is told."""
    while True:
        certain = _certain(states, lines)
        unsafe = [line for n, line in enumerate(lines) if not _safe(states[line], certain[line], bool(together[n]))]
        touched, partners = set[int](), list[int]()
        for line in unsafe:
            if touched.isdisjoint(line.tolist()) and (partner := _partner(states, [line], lines)) is not None:
                partners.append(partner)
                touched.update(line.tolist(), (partner,))
        if not partners:
            break
        states[partners] = WITHHELD
    states[_certain(states, lines) & told & (states == WITHHELD)] = SHOWN


def _partner(states: States, reached: list[NDArray[np.int64]], lines: list[NDArray[np.int64]]) -> int | None:
    """The next cell to hide: of a line that is `reached`, or else of the nearest one that hidden cells connect it
    with; totals come last.
    """
    while True:
        for line in reached:
            for cell in _from_hidden(states, line[:-1]):
                if states[cell] == SHOWN:
                    return int(cell)
        hidden = np.unique(np.concatenate([line[np.isin(states[line], HIDDEN)] for line in reached]))
        further = [line for line in lines if np.isin(line, hidden).any()]
        if len(further) <= len(reached):
            return next((int(line[-1]) for line in reached if states[line[-1]] == SHOWN), None)
        reached = further


def _from_hidden(states: States, cells: NDArray[np.int64]) -> NDArray[np.int64]:
    """Cells of a line from its first hidden one on, backwards: lists often end with what is rare."""
    hidden = np.flatnonzero(np.isin(states[cells], HIDDEN))
    begin = int(hidden[0]) if len(hidden) else 0
    return np.roll(cells[::-1], begin + 1)


def _certain(states: States, lines: list[NDArray[np.int64]]) -> NDArray[np.bool_]:
    """Which hidden cells follow from all that is told.

    With A the lines' equations for hidden cells, cell i does if its unit vector is in A's row space: if the projection
    A⁺A has a one at (i, i).
    """
    certain = np.zeros(len(states), bool)
    for own in _connected(states, lines):
        hidden = np.unique(np.concatenate([line[np.isin(states[line], HIDDEN)] for line in own]))
        equations = np.zeros((len(own), len(hidden)))
        for number, line in enumerate(own):
            equations[number] = np.isin(hidden, line[:-1]).astype(float) - (hidden == line[-1])
        inverse = np.linalg.pinv(equations @ equations.T, hermitian=True)
        certain[hidden] = np.einsum("li,lk,ki->i", equations, inverse, equations, optimize=True) > 1 - 1e-6
    return certain


def _connected(states: States, lines: list[NDArray[np.int64]]) -> list[list[NDArray[np.int64]]]:
    """Lines that have hidden cells in common, each time together: other lines say nothing of these."""
    joined = list[tuple[set[int], list[NDArray[np.int64]]]]()
    for line in lines:
        cells, own = {*line[(states[line] == SMALL) | (states[line] == WITHHELD)].tolist()}, [line]
        apart = list[tuple[set[int], list[NDArray[np.int64]]]]()
        for other_cells, others in joined:
            if cells & other_cells:
                cells, own = cells | other_cells, others + own
            else:
                apart.append((other_cells, others))
        joined = [*apart, (cells, own)] if cells else joined
    return [own for _, own in joined]


def _safe(line: States, certain: NDArray[np.bool_], together: bool) -> bool:
    """Whether its small cells stay hidden, and have company: a larger one, or enough rows together."""
    small = line == SMALL
    if not small.any():
        return True
    if (small & certain).any():
        return False
    return bool(((line == WITHHELD) & ~certain).any()) or together or bool(small[-1])
