"""A join between two owners while it is computed: its groups, the identifiers that both have, and products over them.

Every count and every sum of joined rows is an inner product of what the owners put in (`matched_rows.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from typing import TYPE_CHECKING, TypeAlias

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.program import Compare, Match, Product, Program
from winnow.analytics.question import MergedTerms
from winnow.analytics.sql.exact_query import MAX_GROUPS, listed_groups
from winnow.analytics.sql.matched_rows import KeyedSum, MatchedRows
from winnow.analytics.sql.owner_rows import Group
from winnow.analytics.sql.public_values import open_public_values
from winnow.analytics.sql.query_plan import JoinSide, QueryPlan
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.core import ConfigError, DataError
from winnow.privacy.shares.product_step import MAX_CELLS, MAX_COMPARED_BITS

if TYPE_CHECKING:
    from winnow.analytics.tables.owner_table import OwnerTable

MAX_WORDS = 1 << 26
"""Of an owner's matrix."""
Cell: TypeAlias = tuple[KeyedSum, KeyedSum]
"""An entry of the product: a column of each owner's matrix."""


def owner_places(plan: QueryPlan, terms: MergedTerms) -> tuple[int, int]:
    """Of the owners that have the two sides of a join, among all."""
    assert plan.sides is not None
    holders = {name.lower(): each for name, each in terms.holders.items()}
    owners = [{owner for table in side.tables for owner in holders[table]} for side in plan.sides]
    if [len(each) for each in owners] != [1, 1] or owners[0] == owners[1]:
        raise ConfigError("each side of a join between owners takes the tables of one of them")
    left, right = (terms.owners.index(next(iter(each))) for each in owners)
    return left, right


@dataclass(kw_only=True)
class MatchedJoin:
    plan: QueryPlan
    terms: MergedTerms
    groups: list[Group] = field(default_factory=list)
    size: int = 0
    """How many identifiers both have."""
    bits: int = 1
    """The join has fewer than 2**bits rows."""

    def __post_init__(self) -> None:
        assert self.plan.sides is not None
        tables = self.terms.tables(self.plan.tables)
        self.places = owner_places(self.plan, self.terms)
        """Of the two owners."""
        self.sides: list[MatchedRows] = []
        for side, place in zip(self.plan.sides, self.places, strict=True):
            owner = self.terms.owners[place]
            held = {name: each for name, each in tables.items() if owner in self.terms.holders[name]}
            self.sides.append(self._rows_of(side, held))
        self._own: list[list[Group]] = []
        """Each owner's groups."""

    def _rows_of(self, side: JoinSide, held: dict[str, TableDeclaration]) -> MatchedRows:
        return MatchedRows(side, self.plan, held, self.terms.minimum)

    def open_groups(self) -> Program[None]:
        """Every combination of both owners' groups: of listed values, and of what they have in public columns."""
        for place, side in enumerate(self.sides):
            public: list[Group] = [()]
            if side.side.public_sql is not None:
                public = yield from open_public_values(partial(self._public_values, place))
            self._own.append(listed_groups(side.side.keys, public))
        if len(self._own[0]) * len(self._own[1]) > MAX_GROUPS:
            raise DataError(f"GROUP BY makes more than {MAX_GROUPS:,} groups; group by less")
        names = [key.name for side in self.sides for key in side.side.keys]
        for left, right in product(*self._own):
            values = dict(zip(names, (*left, *right), strict=True))
            self.groups.append(tuple(values[key.name] for key in self.plan.keys))

    def match(self) -> Program[bool]:
        """Whether both owners have enough identifiers in common; if so, how many joined rows there may be."""
        enough, size = yield Match(
            label="identifiers that both owners have",
            local=lambda table: self.side(table).identifiers(table),
            parties=self.places,
            minimum=self.terms.minimum,
            share=True,
        )
        if not enough:
            return False
        self.size = int(size)
        free = MAX_COMPARED_BITS - self.size.bit_length()
        several = yield Compare(
            label="how many rows an identifier has",
            local=lambda table: np.full(free, (self.side(table).most_rows(table) - 1).bit_length(), np.int64),
            thresholds=np.arange(1, free + 1, dtype=np.int64),
            bits=8,
        )
        if several.all():
            raise DataError(f"the join may have 2**{MAX_COMPARED_BITS} rows or more; join on what fewer rows share")
        self.bits = self.size.bit_length() + int(several.sum())
        return True

    def groups_of(self, group: int) -> tuple[int, int]:
        """The groups of both owners that make one of the statement."""
        return divmod(group, len(self._own[1]))

    def compare(
        self, label: str, cells: Sequence[Cell], threshold: int | NDArray[np.int64]
    ) -> Program[NDArray[np.bool_]]:
        """Whether counts reach the threshold, or each one of its own."""
        most = 1 << MAX_COMPARED_BITS
        thresholds = np.broadcast_to(np.asarray(threshold, np.int64), len(cells))
        if np.any(thresholds >= most):
            raise DataError(f"a join between owners takes a minimum below {most:,}; here it is {thresholds.max():,}")
        if not cells:
            return np.zeros(0, bool)
        opened: NDArray[np.bool_] = yield self.product(label, cells, thresholds=thresholds)
        return opened

    def product(
        self, label: str, cells: Sequence[Cell], *, thresholds: NDArray[np.int64] | None = None, hidden: int = 0
    ) -> Product:
        """The step that opens these entries, and no others."""
        factors = [list(dict.fromkeys(cell[place] for cell in cells)) for place in (0, 1)]
        columns = (len(factors[0]), len(factors[1]))
        if columns[0] * columns[1] > MAX_CELLS or self.size * max(columns) > MAX_WORDS:
            raise DataError("the statement asks for too many numbers of a join at once; group by less")
        at = [{each: number for number, each in enumerate(own)} for own in factors]
        entries = [at[0][left] * columns[1] + at[1][right] for left, right in cells]

        def matrix(table: "OwnerTable") -> NDArray[np.int64]:
            place = self.places.index(table.place)
            return self.sides[place].matrix(table, self._own[place], factors[place])

        return Product(
            label=label,
            local=matrix,
            parties=self.places,
            rows=self.size,
            columns=columns,
            entries=np.array(entries, np.int64),
            thresholds=thresholds,
            bits=62 if thresholds is None else MAX_COMPARED_BITS,
            hidden=hidden,
        )

    def side(self, table: "OwnerTable") -> MatchedRows:
        """That of the owner with this table."""
        return self.sides[self.places.index(table.place)]

    def _public_values(self, place: int, table: "OwnerTable") -> list[Group]:
        return self.sides[place].public_values(table) if self.places[place] == table.place else []
