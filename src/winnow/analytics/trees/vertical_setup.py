"""What the parties of vertical trees know before any row: columns of both owners, the target, how trees grow."""

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.intersect.intersect_question import identifier_text
from winnow.analytics.program import run_plain
from winnow.analytics.trees.cut_points import find_cuts
from winnow.analytics.trees.growing_trees import GrowthSettings
from winnow.analytics.trees.masked_bins import WORDS_A_NODE
from winnow.analytics.trees.tree_columns import Cells, TreeColumn, TreeTarget, splittable_columns, tree_target
from winnow.core import ConfigError, DataError, suggest
from winnow.privacy.replicated_product import WORD_BYTES
from winnow.privacy.shares.step_messages import MESSAGE_BYTES

if TYPE_CHECKING:
    from winnow.analytics.question import MergedTerms
    from winnow.analytics.tables.declaration import TableDeclaration
    from winnow.analytics.tables.owner_table import OwnerTable
    from winnow.analytics.trees.trees_question import TreesQuestion

MAX_ROWS = MESSAGE_BYTES // (WORDS_A_NODE * WORD_BYTES)
"""In common: a node's words are in one message. (Sums of second derivatives and counts share a word up to 2¹⁹ rows.)"""
MAX_WORDS = 1 << 26
"""Of the masked bins that the third party holds."""


@dataclass(frozen=True, kw_only=True)
class VerticalSetup:
    key: str
    own: tuple[TreeColumn, ...]
    """Columns of the owner that has the target."""
    theirs: tuple[TreeColumn, ...]
    names: tuple[str, ...]
    """Of all columns, its own first; those that both tables have are named with their table."""
    target: TreeTarget
    growth: GrowthSettings
    minimum: int
    """Rows of a bin, where the owner has so many."""
    bins: int
    early_stopping: bool
    holdout: float
    seed: int
    rows: int
    """How many are in common."""

    @property
    def trees(self) -> int:
        """Of a round."""
        return len(self.target.classes) if len(self.target.classes) > 2 else 1


def parties_of(question: "TreesQuestion", terms: "MergedTerms") -> tuple[int, int]:
    """Places of the owners of labels and of features."""
    assert question.vertical is not None
    holders = [terms.holders[table] for table in (question.table, question.vertical)]
    for table, owners in zip((question.table, question.vertical), holders, strict=True):
        if len(owners) > 1:
            raise ConfigError(f"table '{table}' is at {len(owners)} owners; vertical trees take one for each table")
    if len(terms.owners) != 2 or holders[0] == holders[1]:
        raise ConfigError("vertical trees take two tables of two owners: one with the target, one with further columns")
    if terms.sizes_only is not None:
        raise ConfigError(
            f"{terms.sizes_only} tells only how many keys are in common; vertical trees need to know which"
        )
    return terms.owners.index(holders[0][0]), terms.owners.index(holders[1][0])


def asked_setup(question: "TreesQuestion", terms: "MergedTerms") -> tuple[VerticalSetup, tuple[str, ...]]:
    """Without the number of rows; and the names of columns that cannot be split."""
    assert question.vertical is not None
    assert question.key is not None
    tables = terms.tables(question.tables)
    known = [*(name for each in tables.values() for name in each.columns)]
    known += [f"{table}.{name}" for table, each in tables.items() for name in each.columns]
    if unknown := [name for name in question.columns if name not in known]:
        raise ConfigError(f"column '{unknown[0]}' is in neither table; {suggest(unknown[0], known, at_most=12)}")
    sides = [_side(tables[name], name, question) for name in question.tables]
    (own, out), (theirs, also_out) = sides
    both = {column.name for column in own} & {column.name for column in theirs}
    names = [
        f"{table}.{column.name}" if column.name in both else column.name
        for table, columns in zip(question.tables, (own, theirs), strict=True)
        for column in columns
    ]
    target = tree_target(tables[question.table], question.target, question.positive)
    setup = VerticalSetup(
        key=question.key,
        own=own,
        theirs=theirs,
        names=tuple(names),
        target=target,
        growth=question.growth(terms.minimum),
        minimum=terms.minimum,
        early_stopping=question.early_stopping is not None,
        bins=question.bins,
        holdout=question.holdout,
        seed=question.seed,
        rows=1,
    )
    return setup, out + also_out


def _side(
    declaration: "TableDeclaration", table: str, question: "TreesQuestion"
) -> tuple[tuple[TreeColumn, ...], tuple[str, ...]]:
    """The columns of one table that are split, and the names of those that cannot be."""
    assert question.key is not None
    if not declaration.column(question.key).key:
        raise ConfigError(
            f"column '{question.key}' of table '{table}' is not a key; declare key = true to match rows by it"
        )
    aside = {question.key, *([question.target] if table == question.table else [])}
    usable, left_out = splittable_columns(declaration, aside)
    named = {*question.columns}
    chosen = tuple(each for each in usable if not named or named & {each.name, f"{table}.{each.name}"})
    if not chosen:
        raise ConfigError(f"table '{table}' has no column to split: declare bounds or values, or name one in columns")
    return chosen, () if question.columns else left_out


def row_keys(table: "OwnerTable", column: str) -> list[str]:
    """What each row is matched by; empty if it has no key."""
    return ["" if cell is None else identifier_text(cell) for cell in table.rows.column(column).to_pylist()]


def matched_keys(table: "OwnerTable", column: str) -> list[str]:
    """The keys of all rows that have one; DataError if two rows share one."""
    found = [key for key in row_keys(table, column) if key]
    if len({*found}) < len(found):
        raise DataError(f"two of its rows have the same '{column}'; rows are matched one to one: keep one of each")
    return sorted(found)


def aligned_rows(table: "OwnerTable", column: str) -> "OwnerTable":
    """The rows that both owners have, in the order of their keys."""
    place_of = {key: place for place, key in enumerate(row_keys(table, column)) if key}
    try:
        places = [place_of[key] for key in table.matched]
    except KeyError:
        raise DataError("its rows are no longer those that were matched") from None
    return replace(table, rows=table.rows.take(places))


def own_cuts(columns: tuple[TreeColumn, ...], setup: VerticalSetup, table: "OwnerTable") -> list[Cells]:
    """An owner's cuts, from its own rows: as several owners of the same rows would find them together."""
    return run_plain(lambda: find_cuts(columns, setup.bins, setup.minimum, masked=False), [table])


def bin_codes(columns: tuple[TreeColumn, ...], cuts: list[Cells], table: "OwnerTable") -> NDArray[np.int64]:
    """Rows × columns; a missing cell has the number after the last bin."""
    codes = np.empty((len(table), len(columns)), np.int64)
    for place, (column, own) in enumerate(zip(columns, cuts, strict=True)):
        cells = column.cells(table)
        codes[:, place] = np.where(np.isnan(cells), len(own) + 1, np.searchsorted(own, cells, side="right"))
    return codes
