"""What a truth discovery tells whom, and which settings weaken it."""

from winnow.analytics.truth.truth_terms import HEADER_BYTES, KEPT, TruthTerms
from winnow.analytics.truth.vector_shares import ENTRY_BYTES
from winnow.report.number_format import size_text

FEW_ANSWERS = (
    "an item that one participant answered shows that answer, and with equal trust in the first iteration the sums are "
    "counts of votes"
)
MADE_UP = (
    "the server is trusted to send the confidences that follow from the sums; with some of its own making it could "
    "find out a participant's answers"
)
STANDING_STILL = (
    "who leaves is not hidden altogether: its vector stands still while others settle, which shows its items (up to "
    "88 % of them with sum, 31 % with logistic, where guessing finds 10 to 14 %); with --iterations 3 hardly any"
)


def truth_explanation(terms: TruthTerms | None, ranking: bool = False) -> dict[str, list[str]]:
    """Who learns what, by party, and under "warnings" what weakens it; without terms, the run is in the clear."""
    if terms is None:
        return {"whoever runs it": ["every answer of every participant"], "warnings": []}
    sent = len(terms.holders) * (HEADER_BYTES + ENTRY_BYTES * terms.length)
    ranked = ["the ranking: who is trusted more than whom, and not how much"] if ranking else []
    return {
        "the server": [
            "each item's confidence after each iteration, and the sums behind it",
            "who takes part and who leaves; not who answered what, nor which items, nor anybody's trust",
            *ranked,
        ],
        "every participant": ["each item's confidence after each iteration, and its own trust", *ranked],
        f"fewer than {terms.threshold} of the {len(terms.holders)} holders together": ["nothing more"],
        f"{terms.threshold} holders or more together": ["every participant's vectors: its answers and its trust"],
        "cost": [f"each participant sends {size_text(sent)} an iteration, in two exchanges"],
        "warnings": _warnings(terms),
    }


def _warnings(terms: TruthTerms) -> list[str]:
    found = [FEW_ANSWERS, MADE_UP]
    if terms.dropouts == KEPT:
        found.append(STANDING_STILL)
    else:
        found.append(
            'dropouts = "adaptive" gives away whoever leaves: two successive sums differ by its vector, which '
            'has its items and its answers; leave dropouts at "kept"'
        )
    if 2 * terms.threshold <= len(terms.holders):
        found.append(
            f"threshold {terms.threshold} is not a majority of {len(terms.holders)} holders: a server that tells two "
            f"groups of them different senders learns a difference; take {len(terms.holders) // 2 + 1} or more"
        )
    return found
