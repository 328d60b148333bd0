"""What a statement makes the parties do, and who learns what, before it is asked."""

from collections.abc import Iterator, Sequence
from math import ceil, log, prod

from winnow.analytics.sql.first_rows import ARITY
from winnow.analytics.sql.nearest_rows import COMPARISONS
from winnow.analytics.sql.query_plan import SEARCHES, QueryPlan
from winnow.analytics.sql.row_sets import sets_of
from winnow.analytics.sql.told_tables import ToldTable
from winnow.analytics.stats.quantile_search import STEPS
from winnow.analytics.stats.size_up import ROW_BITS
from winnow.core.join_names import listed
from winnow.core.untrusted_text import one_line


def explain_query(
    plan: QueryPlan, owners: int, minimum: int, noise: tuple[float, float] | None, told: Sequence[ToldTable] = ()
) -> list[str]:
    """A line for each step, then for who learns what. `noise` is that of ε and δ, if any."""
    steps = [(f"from {listed(each.owners)}", f"rows that all parties learn: {each.sql}") for each in told]
    steps += _steps(plan, owners, minimum) if noise is None else _noisy_steps(plan, *noise)
    width = max(len(where) for where, _ in steps)
    return [
        *(f"{number}  {where:<{width}}  {what}" for number, (where, what) in enumerate(steps, start=1)),
        *_who_learns(plan, owners, minimum, told, noisy=noise is not None),
    ]


def _steps(plan: QueryPlan, owners: int, minimum: int) -> Iterator[tuple[str, str]]:
    yield "at each owner", plan.local_sql
    if plan.public_sql is not None:
        yield "secure sum", f"public values of GROUP BY; nobody learns whose they are: {plan.public_sql}"
    if plan.first is not None:
        what = f"where the first {plan.first.count} end: rounds of {2 * (ARITY - 1)} comparisons, until it is exact"
        yield "secure compare", what
    if plan.nearest is not None:
        where = f"where the nearest {plan.nearest.count} of each place end"
        yield "secure compare", f"{where}: rounds of about {2 * COMPARISONS:,} comparisons, until it is exact"
    yield "secure compare", f"{len(ROW_BITS) + 1} numbers: about how many rows there are"
    yield "secure compare", f"{plan.counted} >= {minimum} for {_groups(plan)}"
    if plan.overlapping and minimum > 1:
        parts = "which groups have rows that count more than once, and of those, which combinations have fewer rows"
        yield "secure compare", parts
    sets = len(sets_of(plan)) - 1
    asked = [f"which of {sets} sets of rows leave out none"] if sets else []
    asked += [] if plan.private else ["which smaller groups are empty"]
    if asked:
        yield "secure compare", ", and ".join(asked)
    if sets:
        yield "secure compare", f"{plan.counted} >= {minimum} for those that do, in each group with enough rows"
    yield "secure sum", f"{_sums(plan)} for each group with enough rows, in shares of {owners} owners"
    for each in (each for each in plan.aggregates if each.function in SEARCHES):
        column = each.arguments[0].column
        rounds = ceil(log(max(column.range, 2) if column.whole else STEPS, 64))
        yield "secure compare", f"{each.function.upper()} by search: {rounds} × 63 comparisons for each group"
    if plan.identifiers:
        yield (
            "secure compare",
            f"whether an owner has {minimum} different identifiers, and about how many, for each group",
        )
        yield "count", "different identifiers for each such group: lists are hidden by every owner's secret, and mixed"
    yield "all parties", plan.finish_sql


def _noisy_steps(plan: QueryPlan, epsilon: float, delta: float) -> Iterator[tuple[str, str]]:
    yield "at each owner", plan.local_sql
    noise = f"noise of every owner (ε = {epsilon:g}, δ = {delta:g})"
    yield "secure sum", f"{_sums(plan)} for {_groups(plan)}, with {noise}"
    yield "all parties", plan.finish_sql


def _groups(plan: QueryPlan) -> str:
    groups = prod(len(key.values) for key in plan.keys if key.values is not None)
    if plan.public_sql is not None:
        return f"each public value × {groups} groups" if groups > 1 else "each group"
    return f"each of {groups} groups" if plan.keys else "all rows"


def _sums(plan: QueryPlan) -> str:
    sums = len({each.arguments for each in plan.aggregates if each.arguments and each.function != "count"})
    return f"counts and sums of {sums} numbers" if sums else "counts"


def _who_learns(plan: QueryPlan, owners: int, minimum: int, told: Sequence[ToldTable], *, noisy: bool) -> Iterator[str]:
    yield "Who learns what:"
    for each in told:
        columns = ", ".join(one_line(name) for name in each.declaration.columns)
        yield f"  owners, server: all rows of {one_line(each.name)}, whatever WHERE says: {columns}"
    if noisy:
        yield "  owners, server: noisy numbers of every listed group, before HAVING and LIMIT"
        yield "  you: the answer, and how many groups were left out"
        yield "  nobody: a number without noise"
        return
    if plan.public_sql is not None:
        yield "  owners, server: values of public columns in GROUP BY, whatever WHERE says; how many owners have each"
    if plan.first is not None:
        yield f"  owners, server: what the last of the first {plan.first.count} rows is sorted by, closely"
    if plan.nearest is not None:
        yield f"  owners, server: how far the last of the nearest {plan.nearest.count} of each place is, closely"
    if plan.overlapping and minimum > 1:
        yield "  owners, server: which groups have rows that count more than once, how often, and if few count alike"
    if plan.identifiers:
        yield "  owners, server: how many identifiers are at one owner, at two and so on; not which, nor whose"
    small = f"fewer than {minimum}" if plan.private else f"no rows and which fewer than {minimum}"
    yield f"  owners, server: which groups have {small};"
    yield "                  the numbers of the others, before HAVING and LIMIT"
    yield "  you: the answer, and how many groups were left out"
    yield f"  nobody: a row; what one of {owners} owners has; a number of a group that was left out"
