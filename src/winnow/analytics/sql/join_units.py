"""What counts towards the minimum in a join, where one row may stand in many: rows of the table that is divided, or
what the rows of several tables lie together by. A private column chooses nobody where it only joins such rows.
"""

from dataclasses import dataclass

from sqlglot import exp

from winnow.analytics.sql.allowed_nodes import refused
from winnow.analytics.sql.join_links import equalities
from winnow.analytics.sql.row_sources import RowSource
from winnow.core.untrusted_text import one_line

UNIT = "unit"
"""The column of an owner's selected rows that says what they belong to."""
NUMBER = "winnow row"


@dataclass(frozen=True, kw_only=True)
class JoinUnit:
    node: exp.Expr
    words: str
    numbered: str | None = None
    """The alias of the table whose rows are numbered."""

    def number_rows(self, rows: exp.Select) -> None:
        """Give that table a column with the number of its row."""
        items = [rows.args["from_"], *(rows.args.get("joins") or ())]
        for item in (each for each in items if each.this.alias_or_name.lower() == self.numbered):
            alias = exp.TableAlias(this=exp.to_identifier(self.numbered, quoted=True))
            number = exp.Window(this=exp.RowNumber())
            numbered = exp.Select(
                expressions=[exp.Star(), exp.alias_(number, NUMBER, quoted=True)],
                from_=exp.From(this=item.this.copy()),
            )
            item.set("this", exp.Subquery(this=numbered, alias=alias))


def unit_of(source: RowSource) -> JoinUnit | None:
    """None where every row counts on its own."""
    if len(source.items) == 1 and not source.items[0].relation.joined:
        return None
    item = next(each for each in source.divided if not each.optional)
    if len(source.divided) == 1 and not item.relation.joined:
        node = exp.column(NUMBER, table=item.alias, quoted=True)
        return JoinUnit(node=node, words=f"rows of {one_line(item.alias)}", numbered=item.alias)
    name = item.relation.together
    if name is None:
        raise refused(
            item.node, f"subquery '{one_line(item.alias)}' has joins; select the column that is declared together"
        )
    return JoinUnit(node=exp.column(name, table=item.alias or None, quoted=True), words=f"different {one_line(name)}")


def chooses_by_private(tree: exp.Select, source: RowSource) -> bool:
    """Whether a private column stands in the statement other than to join rows that lie together."""
    relations = [*source.known.values(), *(item.relation for item in source.items)]
    columns = [named for each in relations for named in each.columns.items()]
    private = {name for name, column in columns if column.level == "private"}
    together = {name for name, column in columns if column.together is not None}
    joining = set[int]()
    for node in tree.find_all(exp.Where, exp.Join):
        for pair in equalities(node.this if isinstance(node, exp.Where) else node.args.get("on")):
            if all(column.name.lower() in together for column in pair):
                joining.update(map(id, pair))
    return any(each.name.lower() in private and id(each) not in joining for each in tree.find_all(exp.Column))
