"""A statement over one subquery with joins, written as one over its tables: SELECT … FROM (SELECT … FROM a, b) becomes
SELECT … FROM a, b. So the columns of GROUP BY can be traced to their tables.
"""

from collections.abc import Mapping

from sqlglot import exp


def flattened(tree: exp.Select) -> exp.Select:
    """The same rows; a statement of another form as it is."""
    changed = tree.copy()
    inner = _only_subquery(changed)
    if inner is None or changed.find(exp.Exists) or any(each.args.get("query") for each in changed.find_all(exp.In)):
        return tree
    alias = changed.args["from_"].this.alias_or_name.lower()
    columns = {each.alias_or_name.lower(): each.unalias() for each in inner.expressions if each.alias_or_name}
    aliases = {each.alias.lower() for each in changed.expressions if each.alias}
    for each in list(changed.expressions):
        if isinstance(each, exp.Column):
            each.replace(exp.alias_(each.copy(), each.name, quoted=True))
    for part in ("where", "group", "having", "order"):
        if node := changed.args.get(part):
            node.replace(_substituted(node, alias, columns, aliases if part == "order" else set()))
    changed.set("expressions", [_substituted(each, alias, columns, set()) for each in changed.expressions])
    conditions = [each.args["where"].this for each in (inner, changed) if each.args.get("where")]
    changed.set("from_", inner.args["from_"].copy())
    changed.set("joins", [each.copy() for each in inner.args["joins"]])
    if conditions:
        changed.set("where", exp.Where(this=exp.and_(*(each.copy() for each in conditions))))
    return changed


def _only_subquery(tree: exp.Select) -> exp.Select | None:
    """The SELECT with joins that is all of FROM: written there, or in WITH; a plain list of columns."""
    from_, with_ = tree.args.get("from_"), tree.args.get("with_")
    if from_ is None or tree.args.get("joins"):
        return None
    inner: exp.Expr | None = from_.this.this if isinstance(from_.this, exp.Subquery) else None
    if isinstance(from_.this, exp.Table) and with_ is not None:
        inner = next((each.this for each in with_.expressions if each.alias.lower() == from_.this.name.lower()), None)
    if (
        not isinstance(inner, exp.Select)
        or inner.args.get("with_")
        or not (inner.args.get("from_") and inner.args.get("joins"))
    ):
        return None
    others = ("group", "having", "order", "limit", "offset", "distinct")
    return None if any(inner.args.get(each) for each in others) else inner


def _substituted(node: exp.Expr, alias: str, columns: Mapping[str, exp.Expr], kept: set[str]) -> exp.Expr:
    def change(each: exp.Expr) -> exp.Expr:
        if not isinstance(each, exp.Column) or each.table.lower() not in ("", alias) or each.name.lower() in kept:
            return each
        if each.name.lower() not in columns:  # of SELECT *
            return exp.Column(this=each.this.copy())
        value = columns[each.name.lower()].copy()
        return value if isinstance(value, exp.Column) else exp.Paren(this=value)

    return node.transform(change)
