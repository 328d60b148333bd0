"""Where the k nearest rows of all owners end, for many places at once: by comparisons of counts, as in `first_rows.py`.

Owners tell of every place whether k rows, and whether more than k, are no farther than up to 63 distances; with many
places fewer are tried at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
import pyarrow as arrow
from numpy.typing import NDArray

from winnow.analytics.program import Compare, Program, Sum
from winnow.analytics.sql.first_rows import ARITY, Place, not_beyond, rows_within, tried_places
from winnow.analytics.sql.order_keys import TAG, OrderKey
from winnow.analytics.sql.plan_nearest import NEAR, PLACE, NearestJoin
from winnow.core import ConfigError, DataError

if TYPE_CHECKING:
    from winnow.analytics.sql.owner_rows import RowSelection
    from winnow.analytics.tables.owner_table import OwnerTable

MAX_PLACES = 200
COMPARISONS = 1_000
"""About so many distances are tried at once."""


@dataclass
class PairRanks:
    """An owner's pairs: the number of each one's place, and its ranks by distance and by lot."""

    places: NDArray[np.int64]
    ranks: list[NDArray[np.int64]]

    def of(self, place: int) -> list[NDArray[np.int64]]:
        return [each[self.places == place] for each in self.ranks]

    def within(self, ends: Sequence[Place | None]) -> NDArray[np.bool_]:
        """Which pairs are not beyond the end of their place."""
        kept = np.ones(len(self.places), bool)
        for place, end in enumerate(ends, start=1):
            if end is not None:
                mine = self.places == place
                kept[mine] = not_beyond(self.of(place), end)
        return kept


@dataclass
class _Search:
    """Where the nearest rows of one place end: behind `low`, at `high` or before, by the key after those `found`."""

    place: int
    keys: Sequence[OrderKey]
    found: Place = ()
    low: int = 0
    high: int = 0
    end: Place | None = None
    edges: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._begin()

    def _begin(self) -> None:
        key = self.keys[len(self.found)]
        self.low, self.high, self.edges = key.least - 1, key.most, key.first_edges()

    def tried(self, arity: int) -> list[int]:
        """Places to compare with next."""
        if self.edges:
            step = max(1, len(self.edges) // max(arity - 1, 1))
            return self.edges[::-1][::step][::-1]
        return tried_places(self.low, self.high, arity)

    def narrow(self, tried: Sequence[int], enough: NDArray[np.bool_], more: NDArray[np.bool_]) -> None:
        exact = [each for each, one, two in zip(tried, enough, more, strict=True) if one and not two]
        if exact:
            self.end = (*self.found, exact[0])
            return
        self.edges = []
        self.high = min([self.high, *(each for each, reached in zip(tried, enough, strict=True) if reached)])
        self.low = max([self.low, *(each for each, reached in zip(tried, enough, strict=True) if not reached)])
        if self.high - self.low > 1:
            return
        self.found = (*self.found, self.high)
        if len(self.found) == len(self.keys):
            self.end = self.found
        else:
            self._begin()


def open_nearest(
    nearest: NearestJoin, selection: "RowSelection", owners: int, minimum: int
) -> Program[list[Place | None]]:
    """By place: where its nearest rows end; None where all rows are among them."""
    if nearest.count < minimum:
        raise ConfigError(
            f"LIMIT {nearest.count} in LATERAL: no number is told about fewer than {minimum} rows, the owners' minimum"
        )
    (told,) = yield Sum(
        label="places", local=lambda table: np.array([selection.place_count(table)], np.int64), length=1
    )
    count = int(told) // owners
    if count > MAX_PLACES or count * owners != told:
        raise DataError(f"the nearest rows can be found of {MAX_PLACES} places at most; here they are {count:,}")
    bits = (owners * (nearest.count + 1)).bit_length() + 1
    more = yield Compare(
        label="places with more rows",
        local=lambda table: np.bincount(selection.pairs(table).places, minlength=count + 1)[1:],
        thresholds=np.full(count, nearest.count + 1, np.int64),
        bits=bits,
    )
    searches = [_Search(place=int(place) + 1, keys=(nearest.key, TAG)) for place in np.flatnonzero(more)]
    yield from _search_all(searches, selection, nearest.count, bits)
    ends = {each.place: each.end for each in searches}
    return [ends.get(place) for place in range(1, count + 1)]


def _search_all(searches: Sequence[_Search], selection: "RowSelection", count: int, bits: int) -> Program[None]:
    while left := [each for each in searches if each.end is None]:
        arity = min(ARITY, max(3, COMPARISONS // len(left)))
        tried = [(each.place, each.found, each.tried(arity)) for each in left]

        def counts(table: "OwnerTable", tried: list[tuple[int, Place, list[int]]] = tried) -> NDArray[np.int64]:
            pairs = selection.pairs(table)
            within = np.concatenate([rows_within(pairs.of(place), found, at) for place, found, at in tried])
            return np.concatenate([within, within])

        length = sum(len(at) for _, _, at in tried)
        thresholds = np.repeat([count, count + 1], length)
        opened = yield Compare(label="where the nearest rows end", local=counts, thresholds=thresholds, bits=bits)
        enough, more = opened.reshape(2, length)
        at = 0
        for each, (_, _, own) in zip(left, tried, strict=True):
            each.narrow(own, enough[at : at + len(own)], more[at : at + len(own)])
            at += len(own)


def pair_ranks(nearest: NearestJoin, rows: arrow.Table, lots: NDArray[np.int64]) -> PairRanks:
    places = rows.column(PLACE).to_numpy().astype(np.int64)
    return PairRanks(places=places, ranks=[nearest.key.ranks(rows.column(NEAR)), lots])
