"""What could tell of few rows, where few may not be told of.

A private column names a person. Where a search ends, and whether a row is joined more than once, would tell of that
one: `ON s.name = 'harbour' OR p.id = 'p7'`. Rows that a subquery has joined are not told apart any more. And a number
may be made of one row's values (`argument_terms.py`), which noise hides.
"""

from collections.abc import Iterator

from winnow.analytics.sql.query_plan import SEARCHES, QueryPlan
from winnow.core import ConfigError
from winnow.core.untrusted_text import one_line

ONE_COLUMN = "without noise it takes one column, as it is or with numbers added and multiplied"
PRODUCTS = (
    "without noise it may multiply different columns as they are, but no column twice, nor FLOOR, %, EXP and the like; "
    "and it may not divide one column by another"
)


def check_minimum(plan: QueryPlan, minimum: int, *, noisy: bool) -> None:
    """ConfigError says the first of the reasons not to tell what a plan would."""
    if minimum == 1:
        return
    for reason in _reasons(plan, noisy=noisy):
        raise ConfigError(reason)


def _reasons(plan: QueryPlan, *, noisy: bool) -> Iterator[str]:
    if plan.repeated:
        yield (
            f"{one_line(plan.repeated[0])} in a subquery with joins could count one row often; write the join in FROM "
            "itself, without the subquery"
        )
    if plan.private and plan.overlapping and plan.shared:
        yield "a private column cannot stand in a join with rows that all owners have: it could count one person often"
    if plan.first is not None and plan.first.choosing is not None:
        yield plan.first.choosing
    if plan.private and plan.first is not None:
        yield "a private column cannot stand beside ORDER BY … LIMIT: where the rows end could tell of one person"
    if plan.private_beside is not None:
        yield plan.private_beside
    if plan.mixed is not None and any(each.function in ("min", "max") for each in plan.aggregates):
        yield f"MIN and MAX beside {plan.mixed}: a condition on several columns could leave one row to tell"
    if plan.undivided is not None:
        yield f"{plan.undivided}: EXISTS and IN (SELECT …) stand in no OR: there they could add one row to many"
    for each in plan.aggregates:
        if each.telling and not noisy:
            rule = ONE_COLUMN if each.function in SEARCHES else PRODUCTS
            yield f"{each.telling} could tell a single row; {rule}"
