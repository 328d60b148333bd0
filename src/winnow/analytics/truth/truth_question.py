"""The question of a truth discovery between owners of a table of answers: secret sums over owners, step by step."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
from pydantic import Field, field_validator, model_validator

from winnow.analytics.permissions import Permission
from winnow.analytics.program import Compare, Opened, Program, Sum
from winnow.analytics.question import Answer, MergedTerms, Question
from winnow.analytics.truth.answer_arrays import Indices, Numbers
from winnow.analytics.truth.decided_labels import decided_items
from winnow.analytics.truth.trust_ranking import NO_TRUST, rank_owners, trust_as_integer
from winnow.analytics.truth.truth_methods import METHODS, NUMERIC_METHOD, TruthEstimate, TruthMethod
from winnow.analytics.truth.truth_vectors import added_by, estimate_from, vector_length
from winnow.core import DataError

if TYPE_CHECKING:
    from winnow.analytics.tables.owner_table import OwnerTable
    from winnow.analytics.truth.owner_answers import AnswerColumns

FRACTION_BITS = 32
"""Behind the point of an entry; 62 bits in all leave room for 2²⁶ answers of an owner to an item."""
ROUNDING = 1e-6
"""By which a trust may be above the largest."""


class TruthQuestion(Question):
    """What is true of the items of a table. `worker` tells an owner's workers apart; without it an owner is one.

    With `ranking` the order of owners by trust is opened, and with `trust` each owner's trust, which all must allow.
    """

    kind: Literal["truth"] = "truth"
    item: str = Field(default="item", min_length=1)
    label: str = Field(default="label", min_length=1)
    worker: str | None = Field(default=None, min_length=1)
    method: str = "logistic"
    iterations: int | None = Field(default=None, ge=1, le=1000)
    ranking: bool = False
    trust: bool = False

    @field_validator("method")
    @classmethod
    def _known(cls, method: str) -> str:
        if method not in METHODS:
            raise ValueError(f"must be one of {', '.join(METHODS)}")
        return method

    @model_validator(mode="after")
    def _consistent(self) -> "TruthQuestion":
        if self.epsilon is not None:
            raise ValueError("a truth discovery opens exact sums; it takes no epsilon")
        if len({self.item, self.label, self.worker}) < 3:
            raise ValueError("item, label and worker are different columns")
        return self

    def needs(self) -> frozenset[Permission]:
        return frozenset({"truth", "per-owner"} if self.trust else {"truth"})

    def program(self, terms: MergedTerms) -> Program[Answer]:
        from winnow.analytics.truth.owner_answers import answer_columns  # noqa: PLC0415 - it reads tables

        columns = answer_columns(
            terms.declaration,
            item=self.item,
            label=self.label,
            worker=self.worker,
            numeric=self.method == NUMERIC_METHOD,
        )
        method, estimate = METHODS[self.method], None
        shown = yield from _items_with_enough_answers(columns, terms.minimum)
        iterations = (self.iterations or method.iterations) if len(shown) else 0
        for number in range(iterations):
            opened = yield Sum(
                label=f"iteration {number + 1}",
                local=_Owner(columns, shown, method, estimate).added,
                length=vector_length(method, len(shown), len(columns.labels)),
                hidden=len(columns.items) - len(shown),
            )
            estimate = estimate_from(method, _numbers(opened), len(shown), estimate)
        owner = _Owner(columns, shown, method, estimate)
        order = (yield from rank_owners(len(terms.owners), owner.compared_trust)) if self.ranking else None
        trusts = (yield Sum(label="trust", local=owner.shown_trust, length=1, per_owner=True)) if self.trust else None
        known = np.isin(np.arange(len(columns.items)), shown)
        return {
            "kind": self.kind,
            "table": self.table,
            "method": self.method,
            "iterations": iterations,
            "owners": list(terms.owners),
            "minimum": terms.minimum,
            "labels": list(columns.labels),
            "items": decided_items(columns.items, columns.labels, known, estimate, scale=(columns.low, columns.high)),
            "participants": _participants(terms.owners, order, trusts, method),
        }


def _items_with_enough_answers(columns: "AnswerColumns", minimum: int) -> Program[Indices]:
    def counted(table: "OwnerTable") -> Indices:
        return np.bincount(columns.answers(table).items, minlength=len(columns.items)).astype(np.int64)

    thresholds = np.full(len(columns.items), minimum, np.int64)
    return np.flatnonzero((yield Compare(label="answers to each item", local=counted, thresholds=thresholds)))


@dataclass(frozen=True)
class _Owner:
    """What an owner puts into a step, given the estimate so far. How far each of its workers is trusted stays there."""

    columns: "AnswerColumns"
    shown: Indices
    method: TruthMethod
    estimate: TruthEstimate | None

    def added(self, table: "OwnerTable") -> Indices:
        """What all its workers add together."""
        vector = added_by(self.method, self.columns.answers(table, self.shown), self.estimate)
        return np.rint(vector * (1 << FRACTION_BITS)).astype(np.int64)

    def compared_trust(self, table: "OwnerTable") -> Indices:
        return np.array([trust_as_integer(self._trust(table))], np.int64)

    def shown_trust(self, table: "OwnerTable") -> Indices:
        return np.array([round(self._trust(table) * (1 << FRACTION_BITS))], np.int64)

    def _trust(self, table: "OwnerTable") -> float:
        """From the answers of all its workers together."""
        answers = self.columns.answers(table, self.shown)
        return float(self.method.trust(answers.as_one_worker(), self.estimate)[0]) if len(answers.items) else NO_TRUST


def _participants(
    owners: Sequence[str], order: list[int] | None, trusts: Opened | None, method: TruthMethod
) -> list[dict[str, Any]]:
    told = [None] * len(owners) if trusts is None else _numbers(trusts).tolist()
    for owner, trust in zip(owners, told, strict=True):
        if trust is not None and abs(trust) > method.largest_trust + ROUNDING:
            raise DataError(
                f"owner '{owner}' says that its trust is {trust:g}; with {method.name} it is at most "
                f"{method.largest_trust:g}: ask without this owner"
            )
    records: list[dict[str, Any]] = [
        {"worker": owner, "trust": None if trust == NO_TRUST else trust}
        for owner, trust in zip(owners, told, strict=True)
    ]
    for rank, place in enumerate(order or (), start=1):
        records[place]["rank"] = rank
    return records


def _numbers(opened: Opened) -> Numbers:
    return opened.astype(np.float64) / (1 << FRACTION_BITS)
