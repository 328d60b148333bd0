"""What counts towards the minimum in a join, where one row may stand in many: rows of the table that is divided, or
what the rows of several tables lie together by.

Rows of divided tables are numbered, so that owners notice which of them a join counts often (`overlapping_groups.py`).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlglot import exp

from winnow.analytics.sql.allowed_nodes import refused
from winnow.analytics.sql.relations import FromItem, RowSource
from winnow.analytics.sql.sql_text import conditions_of
from winnow.core.untrusted_text import one_line

UNIT = "unit"
"""The column of an owner's selected rows that says what they belong to."""
ROW, EVEN = "row", "even"
"""With a number: columns that say which rows of tables they are made of."""
NUMBER = "winnow row"


@dataclass(frozen=True, kw_only=True)
class JoinUnit:
    node: exp.Expr
    words: str
    divided: tuple[str, ...] = ()
    """The aliases of the tables that are divided."""
    even: tuple[str, ...] = ()
    """Of those that are not, and whose rows no condition chooses by rows of others: they count all equally often."""

    def columns(self) -> list[exp.Expr]:
        """The unit of each joined row, and the numbers of the rows that it is made of."""
        named = {UNIT: self.node, **_numbered(ROW, self.divided), **_numbered(EVEN, self.even)}
        return [exp.alias_(node.copy(), name, quoted=True) for name, node in named.items()]

    def number_rows(self, rows: exp.Select) -> None:
        """Give tables a column with the number of their row."""
        items = [rows.args["from_"], *(rows.args.get("joins") or ())]
        aliases = (*self.divided, *self.even)
        for item in (each for each in items if each.this.alias_or_name.lower() in aliases):
            alias = exp.TableAlias(this=exp.to_identifier(item.this.alias_or_name.lower(), quoted=True))
            number = exp.Window(this=exp.RowNumber())
            numbered = exp.Select(
                expressions=[exp.Star(), exp.alias_(number, NUMBER, quoted=True)],
                from_=exp.From(this=item.this.copy()),
            )
            item.set("this", exp.Subquery(this=numbered, alias=alias))


def unit_of(tree: exp.Select, source: RowSource, *, nearest: bool) -> JoinUnit | None:
    """None where every row counts on its own; `nearest` of all pairs are the statement's."""
    if len(source.items) == 1 and not source.items[0].relation.joined:
        return None
    item = next(each for each in source.divided if not each.optional)
    divided = tuple(each.alias for each in source.divided if len(source.items) > 1)
    shared = [each for each in source.items if not each.relation.divided]
    even = tuple(each.alias for each in shared if not nearest and not _mixed(each, tree, source))
    if len(source.divided) == 1 and not item.relation.joined:
        words = f"rows of {one_line(item.alias)}"
        return JoinUnit(node=_number(item.alias), words=words, divided=divided, even=even)
    name = item.relation.together
    if name is None:
        raise refused(
            item.node, f"subquery '{one_line(item.alias)}' has joins; select the column that is declared together"
        )
    node = exp.column(name, table=item.alias or None, quoted=True)
    return JoinUnit(node=node, words=f"different {one_line(name)}", divided=divided, even=even)


def _mixed(item: FromItem, tree: exp.Select, source: RowSource) -> bool:
    """Whether an expression has columns of this table and of others, or a subquery that may."""
    if any(join.args.get("using") or join.side for join in tree.args.get("joins") or ()):
        return True
    parts = [*tree.expressions, *conditions_of(tree)]
    parts += [each for name in ("group", "order") if tree.args.get(name) for each in tree.args[name].expressions]
    parts += [tree.args["having"]] if tree.args.get("having") else []
    if any(part.find(exp.Select) for part in parts):
        return True
    read = [{source.item_of(each) for each in part.find_all(exp.Column)} for part in parts]
    return any(item in items and len(items) > 1 for items in read)


def _numbered(name: str, aliases: Sequence[str]) -> dict[str, exp.Column]:
    return {f"{name}{place}": _number(alias) for place, alias in enumerate(aliases)}


def _number(alias: str) -> exp.Column:
    return exp.column(NUMBER, table=alias, quoted=True)
