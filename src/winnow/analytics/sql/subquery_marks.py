"""Columns that say of each row of a subquery by which conditions its values were chosen.

CASE in a subquery, and the parts of UNION ALL, give some rows other values than the rest. An aggregate around them is
told only if these rows are enough, as if it had the condition itself: so subqueries show their conditions, too.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from sqlglot import exp

from winnow.analytics.sql.allowed_nodes import refused
from winnow.analytics.sql.choosing_conditions import (
    MAX_CONDITIONS,
    alternatives_in,
    conditions_in,
    reasons_in,
    succeeds,
    too_many_conditions,
)
from winnow.analytics.sql.describe_expression import describe_expression
from winnow.analytics.sql.described import Described, either
from winnow.analytics.sql.relations import MARK, RowSource
from winnow.analytics.sql.sql_text import conditions_of, shown_text, tried


def marked_columns(select: exp.Select, source: RowSource, columns: Mapping[str, Described]) -> dict[str, Described]:
    """The columns of a subquery, which shows the conditions of its expressions and of what they are made of."""
    found = dict(columns)
    for each in [one for one in select.expressions if not isinstance(one, exp.Star)]:
        name, value = each.alias_or_name.lower(), each.unalias()
        marks = list[tuple[str, int]]()
        inherited = [one for column in value.find_all(exp.Column) for one in source.choices(column)]
        own = [] if isinstance(value, exp.Column) else [*conditions_in(value), *source.two_valued(value)]
        own += reasons_in(value)
        for condition in {one.sql(): one for one in (*own, *inherited)}.values():
            mark = _show(select, condition)
            found[mark] = _described(condition, source)
            marks.append((mark, 1))
        for condition in succeeds(value) if found[name].fallible else []:
            mark = _show(select, condition)
            found[mark] = _two_valued(found[name])
            marks.append((mark, 1))
        found[name] = replace(found[name], marks=tuple(marks))
    return found


def dividing_conditions(select: exp.Select, source: RowSource) -> list[exp.Expr]:
    """What WHERE and ON choose rows by, where they hold for one of several reasons: none may add few rows to many."""
    found = list[exp.Expr]()
    for each in conditions_of(select, left_joins=False):
        if each.find(exp.Select) is None:
            found += [
                *alternatives_in(each),
                *(one for col in each.find_all(exp.Column) for one in source.choices(col)),
            ]
    for item in source.items:
        marks = [exp.column(mark, table=item.alias or None, quoted=True) for mark in item.relation.divisions]
        found += [exp.EQ(this=each, expression=exp.Literal.number(1)) for each in marks]
    return list({each.sql(): each for each in found}.values())


def undivided_condition(sources: Sequence[tuple[exp.Select, RowSource]]) -> str | None:
    """The first condition with a subquery, or of one on rows around it, that holds for one of several reasons: rows
    cannot be divided by these.
    """
    for select, source in sources:
        for each in conditions_of(select):
            if _has_subquery_beside(each) or (source.outer is not None and _has_outer_alternatives(each, source)):
                return shown_text(each)
    return None


def _has_outer_alternatives(condition: exp.Expr, source: RowSource) -> bool:
    """Whether it has columns of rows around the subquery, and holds for one of several reasons. Columns within a
    further subquery are those of its own tables, which are looked at in turn.
    """
    if condition.find(exp.Select) is not None:
        return False
    outer = any(source.item_of(column) is None for column in condition.find_all(exp.Column))
    return outer and bool(alternatives_in(condition))


def _has_subquery_beside(condition: exp.Expr) -> bool:
    """Whether EXISTS or IN (SELECT …) stands beside something else, as in OR."""
    while isinstance(condition, exp.Not | exp.Paren):
        condition = condition.this
    alone = isinstance(condition, exp.Exists) or (isinstance(condition, exp.In) and condition.args.get("query"))
    return not alone and condition.find(exp.Select) is not None


def marked_divisions(
    select: exp.Select, source: RowSource, columns: dict[str, Described]
) -> tuple[dict[str, Described], tuple[str, ...]]:
    """The columns of a subquery, which shows by which conditions it chose its rows, and the names of these."""
    marks = {_show(select, each): _described(each, source) for each in dividing_conditions(select, source)}
    return {**columns, **marks}, tuple(marks)


def marked_union(
    node: exp.Expr, parts: Sequence[exp.Select], columns: Sequence[Mapping[str, Described]]
) -> dict[str, Described]:
    """The columns of UNION ALL, of which each part shows its number."""
    for part, own in zip(parts, columns, strict=True):
        chosen = any(conditions_in(each.unalias()) for each in part.expressions)
        if chosen or any(each.marks or each.fallible for each in own.values()):
            refusal = "a condition within a column of UNION ALL is not supported, nor is what may fail on a row"
            raise refused(node, f"{refusal}; write it around UNION ALL")
    name = f"{MARK}{_count(parts[0])}"
    for number, part in enumerate(parts):
        part.append("expressions", exp.alias_(exp.Literal.number(number), name, quoted=True))
    marks = tuple((name, number) for number in range(len(parts) - 1))
    listed = [list(own.values()) for own in columns]
    found = {each: either([own[place] for own in listed]) for place, each in enumerate(columns[0])}
    found = {each: replace(known, marks=marks) for each, known in found.items()}
    found[name] = Described(type="integer", low=0, high=len(parts) - 1, values=tuple(range(len(parts))))
    return found


def _show(select: exp.Select, condition: exp.Expr) -> str:
    count = _count(select)
    if count >= MAX_CONDITIONS:
        raise too_many_conditions(select)
    name = f"{MARK}{count}"
    value = exp.case().when(condition.copy(), exp.Literal.number(1)).else_(exp.Literal.number(0))
    select.append("expressions", exp.alias_(tried(value, "BIGINT"), name, quoted=True))
    return name


def _described(condition: exp.Expr, source: RowSource) -> Described:
    return _two_valued(describe_expression(condition, source.described))


def _two_valued(known: Described) -> Described:
    return Described(level=known.level, type="integer", low=0, high=1, values=(0, 1), columns=known.columns)


def _count(node: exp.Expr) -> int:
    """Of marks in the whole statement."""
    return sum(1 for each in node.root().find_all(exp.Alias) if each.alias.startswith(MARK))
