"""Where private columns stand in a statement. Each names a person, so what they choose may be that person's alone.

They choose nobody where rows are joined that lie together, or where two owners match rows. In a condition of their own
(WHERE patient IN (…) AND …) they choose people, who then have to be enough. Anywhere else they could single one out
among many: WHERE patient = 'p7' OR age = 40 leaves little to guess.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from sqlglot import exp

from winnow.analytics.sql.allowed_nodes import refused
from winnow.analytics.sql.choosing_conditions import comparisons_in, conditions_in
from winnow.analytics.sql.describe_expression import is_distance
from winnow.analytics.sql.relations import FromItem, RowSource
from winnow.analytics.sql.spatial_functions import PLACES
from winnow.analytics.sql.sql_text import conditions_of, shown_text, written_conditions
from winnow.core import ConfigError


@dataclass(frozen=True, kw_only=True)
class PrivateUse:
    chosen: bool
    """Whether a private column stands anywhere but where rows are joined."""
    beside: exp.Expr | None
    """A condition or an expression that has one beside something else."""

    def refusal(self) -> ConfigError:
        assert self.beside is not None
        return refused(
            self.beside,
            "a private column takes a condition of its own, WHERE patient IN (…) AND …: beside others, in OR or in an "
            "expression, it could single a person out",
        )


def private_use(tree: exp.Select, sources: Sequence[tuple[exp.Select, RowSource]]) -> PrivateUse:
    """`sources` are those of every SELECT of the statement."""
    divided = {id(select) for select, source in sources if source.divided}
    found = [use for select, source in sources for use in _uses(select, source, divided, outermost=select is tree)]
    beside = [node for node, alone in found if not alone]
    return PrivateUse(chosen=bool(found), beside=beside[0] if beside else None)


def _uses(
    select: exp.Select, source: RowSource, divided: set[int], *, outermost: bool
) -> Iterator[tuple[exp.Expr, bool]]:
    """Each use in this SELECT, and whether it is a condition on private columns alone."""
    for condition in conditions_of(select):
        columns = _own_columns(condition, select)
        private = [_is_private(each, source) for each in columns]
        inner = condition.args.get("query") if isinstance(condition, exp.In) else None
        if inner is not None and id(inner.this) in divided:  # x IN (SELECT …): of what lies together
            continue
        if any(private) and not _joins_rows(condition, source):
            yield condition, all(private) and (inner is not None or condition.find(exp.Select) is None)
    for item, join in zip(source.items[1:], select.args.get("joins") or (), strict=True):
        for name in (each.name.lower() for each in join.args.get("using") or ()):
            first = next(each for each in source.items if each.alias == source.merged[name])
            pair = ((first, name), (item, name))
            if any(_level(*each) == "private" for each in pair) and not _lie_together(pair, source):
                yield join, False
    for each in select.expressions:
        value = each.unalias()
        counted = isinstance(value, exp.Count) and isinstance(value.this, exp.Distinct)
        columns = [] if isinstance(value, exp.Column) and not outermost else _own_columns(value, select)
        if any(_is_private(column, source) for column in columns):
            yield each, counted


def mixed_condition(
    sources: Sequence[tuple[exp.Select, RowSource]], extremes: Sequence[exp.Expr], source: RowSource
) -> str | None:
    """The first condition of the statement, or within its MIN and MAX, that computes with several columns that are not
    public, but for a distance.
    """
    for select, own in sources:
        for each in (one for node in written_conditions(select) for one in comparisons_in(node)):
            if _mixes(each, _own_columns(each, select), own):
                return shown_text(each)
    for node in extremes:
        conditions = [node.expression.this] if isinstance(node, exp.Filter) else []
        conditions += conditions_in(node.this.this if isinstance(node, exp.Filter) else node.this)
        for each in (one for condition in conditions for one in comparisons_in(condition)):
            if _mixes(each, list(each.find_all(exp.Column)), source):
                return shown_text(each)
    return None


def _mixes(node: exp.Expr, columns: Sequence[exp.Column], source: RowSource) -> bool:
    """Two columns that are compared as they are, and places within a distance, are no arithmetic."""
    known = [source.described(each) for each in columns]
    sides = [node.this, node.expression] if isinstance(node, exp.Binary) else []
    compared = bool(sides) and all(isinstance(each, exp.Column) for each in sides)
    if all(each.plain for each in known) and (node.meta.get(PLACES) or compared):
        return False
    distances = [each for each in sides if is_distance(each, source.described)]
    within = {id(each) for side in distances for each in side.find_all(exp.Column)}
    others = [(each, own) for each, own in zip(columns, known, strict=True) if id(each) not in within]
    names = {(each.table, name) for each, own in others if own.level != "public" for name in own.columns}
    return len(names) + len(distances) > 1


def _own_columns(node: exp.Expr, select: exp.Select) -> list[exp.Column]:
    """Of this SELECT, without those of subqueries."""
    return [each for each in node.find_all(exp.Column) if each.find_ancestor(exp.Select) is select]


def _is_private(column: exp.Column, source: RowSource) -> bool:
    return source.described(column).level == "private"


def _joins_rows(condition: exp.Expr, source: RowSource) -> bool:
    """Whether a condition says that two columns are equal by which rows lie together, or are matched."""
    if not isinstance(condition, exp.EQ):
        return False
    columns = (condition.this, condition.expression)
    if not all(isinstance(each, exp.Column) for each in columns):
        return False
    places = [_place(each, source) for each in columns]
    return None not in places and _lie_together([each for each in places if each is not None], source)


def _place(column: exp.Column, source: RowSource | None) -> tuple[FromItem, str] | None:
    while source is not None:
        if (item := source.item_of(column)) is not None:
            return item, column.name.lower()
        source = source.outer
    return None


def _lie_together(pair: Sequence[tuple[FromItem, str]], source: RowSource) -> bool:
    columns = [item.relation.columns[name] for item, name in pair]
    if not all(item.relation.divided for item, _ in pair):
        return False
    if source.apart:
        return pair[0][0] is not pair[1][0] and all(each.key or each.level == "public" for each in columns)
    return columns[0].together is not None and columns[0].together == columns[1].together


def _level(item: FromItem, name: str) -> str:
    return item.relation.columns[name].level
