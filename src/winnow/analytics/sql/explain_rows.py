"""What a statement that shows rows makes the parties do, and who learns what, before it is asked."""

from collections.abc import Iterator

from winnow.analytics.question import MergedTerms
from winnow.analytics.sql.first_rows import ARITY
from winnow.analytics.sql.plan_rows import RowsPlan
from winnow.analytics.sql.rows_query import SIZES, shown_limit
from winnow.analytics.stats.size_up import ROW_BITS
from winnow.privacy.shares.party import MAX_COMPUTING, NAMED


def explain_rows(plan: RowsPlan, terms: MergedTerms) -> list[str]:
    """A line for each step, then for who learns what."""
    steps = list(_steps(plan, terms))
    width = max(len(where) for where, _ in steps)
    return [
        *(f"{number}  {where:<{width}}  {what}" for number, (where, what) in enumerate(steps, start=1)),
        *_who_learns(plan, terms),
    ]


def _steps(plan: RowsPlan, terms: MergedTerms) -> Iterator[tuple[str, str]]:
    limit, owners = shown_limit(plan, terms), len(terms.owners)
    mixers = owners if owners <= MAX_COMPUTING else NAMED
    yield "at each owner", plan.local_sql
    yield (
        "secure compare",
        f"{len(ROW_BITS) + 2} numbers: rows >= {terms.minimum}, and whether there are more than {limit}",
    )
    yield (
        "secure compare",
        f"if so, where the first {limit} end: rounds of {2 * (ARITY - 1)} comparisons, until it is exact",
    )
    yield "secure compare", f"{len(SIZES)} numbers: how long the longest row is"
    yield "mix", f"{limit} boxes of each owner, sealed to your key, through {mixers} owners who shuffle them"
    yield "you", "open the boxes, and sort the rows"


def _who_learns(plan: RowsPlan, terms: MergedTerms) -> Iterator[str]:
    limit = shown_limit(plan, terms)
    yield "Who learns what:"
    yield f"  owners, server: whether {terms.minimum} rows are selected, and more than {limit}; about how many in all;"
    if plan.order:
        yield f"                  what the last of the first {limit} is sorted by, closely;"
    yield "                  about how long the longest row is; boxes that they cannot open"
    sorted_by = ", and what they are sorted by" if plan.order else ""
    yield f"  you: at most {limit} rows{sorted_by}; not whose they are"
    yield f"  nobody: a row, if fewer than {terms.minimum} are selected"
