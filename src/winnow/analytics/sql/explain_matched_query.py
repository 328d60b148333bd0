"""What a join between two owners makes them do, and who learns what."""

from collections.abc import Iterator

from winnow.analytics.question import MergedTerms
from winnow.analytics.sql.matched_join import owner_places
from winnow.analytics.sql.matched_size import counts_alone
from winnow.analytics.sql.query_plan import QueryPlan
from winnow.analytics.sql.row_sets import sets_of
from winnow.core.join_names import counted


def explain_matched_query(plan: QueryPlan, terms: MergedTerms) -> list[str]:
    """A line for each step, then for who learns what."""
    steps = list(_steps(plan, terms))
    width = max(len(where) for where, _ in steps)
    return [
        *(f"{number}  {where:<{width}}  {what}" for number, (where, what) in enumerate(steps, start=1)),
        *_who_learns(plan, terms),
    ]


def _steps(plan: QueryPlan, terms: MergedTerms) -> Iterator[tuple[str, str]]:
    assert plan.sides is not None
    places = owner_places(plan, terms)
    for side, place in zip(plan.sides, places, strict=True):
        yield f"at {terms.owners[place]}", side.local_sql
    for side, place in zip(plan.sides, places, strict=True):
        if side.public_sql is not None:
            yield f"from {terms.owners[place]}", f"public values of GROUP BY: {side.public_sql}"
    if plan.near is not None:
        yield "secure compare", "about how many pairs of rows there are"
        across, up = (each.count for each in plan.near.axes)
        within = f"of each owner within reach of the other's, over {across} × {up} cells"
        yield "secure product", f"rows >= {terms.minimum} {within}, for each group, compared in shares"
        yield "secure product", "counts and sums of pairs for each group with enough"
        yield "all parties", plan.finish_sql
        return
    if counts_alone(plan):
        yield "secure compare", "whether an identifier has several rows"
        yield "set intersection", "how many identifiers both have, if each has one row; else as follows"
        if terms.sizes_only is not None:
            return
    yield "set intersection", "of the identifiers of all rows, whatever WHERE says"
    yield "secure compare", "about how many rows one identifier has"
    yield "secure product", f"{plan.counted} >= {terms.minimum} for each group, compared in shares"
    if sets := len(sets_of(plan)) - 1:
        within = f"{counted(sets, 'set')} of rows in each group with enough"
        yield "secure product", f"{plan.counted} >= {terms.minimum} for {within}"
    yield "secure product", "counts and sums for each group with enough"
    yield "all parties", plan.finish_sql


def _who_learns(plan: QueryPlan, terms: MergedTerms) -> Iterator[str]:
    left, right = (terms.owners[place] for place in owner_places(plan, terms))
    yield "Who learns what:"
    if plan.near is not None:
        yield f"  {left}, {right}, server: about how many pairs of rows there are; nothing of where rows are"
    elif counts_alone(plan):
        yield f"  {left}, {right}: about how many identifiers the other has, and whether one has several rows;"
        yield "      which of them both have, if one has several rows"
    else:
        yield f"  {left}, {right}: which identifiers both have, and about how many the other has"
    small = f"fewer than {terms.minimum}" if plan.private else f"none and which fewer than {terms.minimum}"
    common = "" if plan.near is not None else "how many identifiers are common; "
    yield f"  owners, server: {common}of which groups there are {small};"
    yield "                  the numbers of the others, before HAVING and LIMIT"
    yield "  you: the answer, and how many groups were left out"
    yield "  nobody else: which rows meet a condition of the other owner, and what is in them"
