"""`winnow query budget`: what owners have left of a person's privacy budget for a table. It opens nothing."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from winnow.analytics.permissions import Permission
from winnow.analytics.question import Answer, MergedTerms, Question

if TYPE_CHECKING:
    from winnow.analytics.program import Program


def budget_text(told: Mapping[str, Any]) -> str:
    """What one owner told, for people."""
    if "epsilon" not in told:
        return "no noise demanded"
    return f"{float(told['left']):g} of {float(told['epsilon']):g} (δ = {float(told['delta']):g})"


class BudgetQuestion(Question):
    """Owners tell its author what is left to them, with their terms."""

    kind: Literal["budget"] = "budget"
    opens_nothing: ClassVar[bool] = True

    def needs(self) -> frozenset[Permission]:
        return frozenset()

    def program(self, terms: MergedTerms) -> "Program[Answer]":
        told = [
            {"owner": owner, **({} if budget is None else budget.model_dump())}
            for owner, budget in terms.budgets.items()
        ]
        return {"kind": self.kind, "table": self.table, "owners": list(terms.owners), "budgets": told}
        yield  # a program has steps; this one none
