"""Whether a join within each owner is the join of all rows.

It is if all tables whose rows are divided are joined on columns that are declared to lie together: rows with the same
value are then at one owner. Replicated tables may be joined on anything.
"""

from collections.abc import Hashable, Iterator

from sqlglot import exp

from winnow.analytics.sql.allowed_nodes import refused
from winnow.analytics.sql.relations import FromItem, RowSource
from winnow.analytics.sql.spatial_functions import DISTANCE
from winnow.analytics.sql.sql_text import conjuncts, written_conditions
from winnow.core.untrusted_text import one_line


def check_links(select: exp.Select, source: RowSource) -> None:
    """ConfigError if owners would have to join rows with those of others."""
    links = _Links(source)
    for join in select.args.get("joins") or ():
        links.add_using(join)
    for written in written_conditions(select):
        links.add(written)
    divided = source.divided
    for item, join in zip(source.items[1:], select.args.get("joins") or (), strict=True):
        if item.optional and item.relation.divided:
            _check_left_join(join, item, source)
    around = list(_around(source))
    anchors = around if source.outer is not None else [item for item in divided if not item.optional][:1]
    if divided and not anchors:
        raise refused(select, "it begins with a replicated table; begin with one whose rows are divided")
    for item in divided:
        if item not in anchors and not any(links.together(anchor, item) for anchor in anchors):
            refuse_distance_join(select, source)
            names = f"{one_line(anchors[0].alias)} and {one_line(item.alias)}"
            raise refused(
                item.node,
                f"{names} are joined within each owner: declare together = … for a column of each, and join on those",
            )


def refuse_distance_join(select: exp.Select, source: RowSource) -> None:
    """Pairs of rows of two tables, chosen by their distance, of which none is told to all owners (`told_tables.py`)."""
    for node in select.walk():
        items = {source.item_of(each) for each in node.find_all(exp.Column)} if DISTANCE in node.meta else set()
        if len([each for each in items if each is None or each.relation.divided]) > 1:
            raise refused(
                node,
                "a distance between rows of two owners takes a table of which only public columns are read; or name "
                "a place in DWITHIN(x, y, x0, y0, r), or join rows that lie together",
            )


def _around(source: RowSource) -> Iterator[FromItem]:
    """The divided tables of the statements around a condition's subquery."""
    while source.outer is not None:
        source = source.outer
        yield from source.divided


def _check_left_join(join: exp.Join, item: FromItem, source: RowSource) -> None:
    name = item.relation.together
    using = [each.name.lower() for each in join.args.get("using") or ()]
    named = [column for one, other in equalities(join.args.get("on")) for column in (one, other)]
    if name not in using and not any(each.name.lower() == name and source.item_of(each) is item for each in named):
        raise refused(join, f"LEFT JOIN of {one_line(item.alias)} needs ON with a column that is declared together")


def equalities(condition: exp.Expr | None) -> Iterator[tuple[exp.Column, exp.Column]]:
    """The pairs of columns that a condition demands to be equal."""
    for each in conjuncts(condition):
        if isinstance(each, exp.EQ) and isinstance(each.this, exp.Column) and isinstance(each.expression, exp.Column):
            yield each.this, each.expression


class _Links:
    """Which columns are equal in every row of a join."""

    def __init__(self, source: RowSource) -> None:
        self._source = source
        self._parents: dict[Hashable, Hashable] = {}

    def add_using(self, join: exp.Join) -> None:
        for name in (each.name.lower() for each in join.args.get("using") or ()):
            alias = join.this.alias_or_name.lower()
            item = next(each for each in self._source.items if each.alias == alias)
            first = next(each for each in self._source.items if each.alias == self._source.merged[name])
            self._union(self._key(first, name), self._key(item, name))

    def add(self, condition: exp.Expr) -> None:
        for one, other in equalities(condition):
            left, right = self._place(one), self._place(other)
            if left is not None and right is not None:
                self._check_types(one, other)
                self._union(left, right)

    def together(self, first: FromItem, item: FromItem) -> bool:
        """Whether both lie together by columns of one kind that are equal."""
        one, other = first.relation.together, item.relation.together
        if one is None or other is None:
            return False
        kinds = {first.relation.columns[one].together, item.relation.columns[other].together}
        return len(kinds) == 1 and self._root(self._key(first, one)) == self._root(self._key(item, other))

    def _check_types(self, one: exp.Column, other: exp.Column) -> None:
        types = [self._source.described(each).type for each in (one, other)]
        if (types[0] == "text") != (types[1] == "text") and None not in types:
            raise refused(one, f"{one_line(one.sql())} = {one_line(other.sql())} compares {types[0]} with {types[1]}")

    def _place(self, column: exp.Column) -> Hashable | None:
        source: RowSource | None = self._source
        while source is not None:
            if (item := source.item_of(column)) is not None:
                return self._key(item, column.name.lower())
            source = source.outer
        return None

    @staticmethod
    def _key(item: FromItem, name: str) -> Hashable:
        return id(item), name

    def _root(self, key: Hashable) -> Hashable:
        while key in self._parents:
            key = self._parents[key]
        return key

    def _union(self, one: Hashable, other: Hashable) -> None:
        if (left := self._root(one)) != (right := self._root(other)):
            self._parents[left] = right
