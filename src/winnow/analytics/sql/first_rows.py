"""The first k rows of all owners by some order: where they end, found by comparisons of counts alone.

A search tries up to 63 places at once, and opens of each whether k rows, and whether more than k, come no later. It
ends at a place up to which there are exactly k. Rows that are equal in all keys are told apart by a number that their
owner draws.
"""

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.program import Compare, Program
from winnow.analytics.sql.order_keys import TAG, TAG_BITS, OrderKey
from winnow.analytics.stats.size_up import MAX_ROW_BITS, ROW_BITS
from winnow.core import ConfigError
from winnow.learn.secure_randomness import secure_generator

if TYPE_CHECKING:
    from winnow.analytics.sql.owner_rows import RowSelection
    from winnow.analytics.sql.plan_first_rows import FirstRows
    from winnow.analytics.tables.owner_table import OwnerTable

ARITY = 64
Place: TypeAlias = tuple[int, ...]
"""Ranks of the first keys: whatever the others are, a row with these ranks or smaller ones is not beyond."""
Ranks: TypeAlias = Callable[["OwnerTable"], list[NDArray[np.int64]]]
"""The ranks of an owner's rows by each key, and their lots."""


def with_lots(ranks: Sequence[NDArray[np.int64]], rows: int, table: "OwnerTable") -> list[NDArray[np.int64]]:
    return [*ranks, secure_generator(table.secret.ljust(32, b"\0")).integers(0, 1 << TAG_BITS, rows)]


def open_end(keys: Sequence[OrderKey], ranks: Ranks, count: int, bits: int) -> Program[Place]:
    """The place where the first `count` rows end, of which there are more; counts are below 2**bits."""
    found: Place = ()
    for key in (*keys, TAG):
        low, high = key.least - 1, key.most
        edges = key.first_edges()
        while high - low > 1:
            tried = edges or tried_places(low, high)
            edges = []

            def counts(table: "OwnerTable", tried: list[int] = tried, found: Place = found) -> NDArray[np.int64]:
                within = rows_within(ranks(table), found, tried)
                return np.concatenate([within, within])

            thresholds = np.repeat([count, count + 1], len(tried))
            opened = yield Compare(label="where the first rows end", local=counts, thresholds=thresholds, bits=bits)
            enough, more = opened.reshape(2, len(tried))
            for place, exact in zip(tried, enough & ~more, strict=True):
                if exact:
                    return (*found, place)
            high = min([high, *(each for each, reached in zip(tried, enough, strict=True) if reached)])
            low = max([low, *(each for each, reached in zip(tried, enough, strict=True) if not reached)])
        found = (*found, high)
    return found


def open_first(first: "FirstRows", selection: "RowSelection", minimum: int) -> Program[Place | None]:
    """Where the first rows end that a statement is about; None if these are all."""
    if first.count < minimum:
        raise ConfigError(
            f"LIMIT {first.count} in a subquery: no number is told about fewer than {minimum} rows, the owners' minimum"
        )
    thresholds = np.array([*(1 << bits for bits in ROW_BITS), first.count + 1], np.int64)
    opened = yield Compare(
        label="how many rows",
        local=lambda table: np.full(len(thresholds), selection.count(table), np.int64),
        thresholds=thresholds,
        bits=MAX_ROW_BITS,
    )
    if not opened[-1]:
        return None
    bits = (*ROW_BITS, MAX_ROW_BITS - 1)[int(opened[:-1].sum())] + 1
    return (yield from open_end(first.keys, selection.ranks, first.count, bits))


def tried_places(low: int, high: int, arity: int = ARITY) -> list[int]:
    """Places between `low` and `high`, at equal distances."""
    return sorted({low + (high - low) * part // arity for part in range(1, arity)} - {low})


def rows_within(ranks: Sequence[NDArray[np.int64]], found: Place, tried: Sequence[int]) -> NDArray[np.int64]:
    """How many rows are before the place `found`, or there and not beyond each of the places that are tried next."""
    same, before = _compared(ranks, found)
    ordered = np.sort(ranks[len(found)][same])
    return np.searchsorted(ordered, np.array(tried, np.int64), side="right") + int(before.sum())


def _compared(ranks: Sequence[NDArray[np.int64]], place: Place) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
    """Which rows have the ranks of a place, and which smaller ones."""
    same, before = np.ones(len(ranks[0]), bool), np.zeros(len(ranks[0]), bool)
    for own, rank in zip(ranks, place, strict=False):
        before |= same & (own < rank)
        same &= own == rank
    return same, before


def not_beyond(ranks: Sequence[NDArray[np.int64]], end: Place) -> NDArray[np.bool_]:
    same, before = _compared(ranks, end)
    return same | before
