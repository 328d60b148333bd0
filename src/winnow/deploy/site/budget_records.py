"""What answers with noise have cost, by person and table: booked before anything leaves, and never freed by a failure.

Costs are kept as ρ of zero-concentrated differential privacy, which adds up; people read ε at the δ of the rule.
"""

import math
import time
from dataclasses import dataclass

from winnow.deploy.site.state_database import SiteDatabase
from winnow.deploy.trust.site_policy import SpendingLimit

ROUNDING = 1e-9
"""The share of a budget by which sums of floats may exceed it."""


@dataclass(frozen=True, kw_only=True)
class Spending:
    """What one person has spent on one table, in ρ, by how many questions, since when and until when (seconds)."""

    person: str
    table: str
    rho: float
    questions: int
    first: float
    last: float


class PrivacyBudgets:
    """A submission is booked once, whatever becomes of it: sent again, it shows the same noise and costs nothing."""

    def __init__(self, database: SiteDatabase) -> None:
        self._database = database

    def is_booked(self, submission: str) -> bool:
        return bool(self._database.rows("SELECT 1 FROM budgets WHERE submission = ?", submission))

    def spent(self, person: str, table: str) -> float:
        """In ρ."""
        [(rho,)] = self._database.rows(
            'SELECT TOTAL(rho) FROM budgets WHERE person = ? AND "table" = ? AND counts', person, table
        )
        return float(rho)

    def book(self, submission: str, person: str, table: str, rho: float, *, limit: float) -> bool:
        """Whether it is booked: now, or before. It is not if all that was spent would exceed `limit`."""
        with self._database.transaction() as database:
            if database.execute("SELECT 1 FROM budgets WHERE submission = ?", (submission,)).fetchall():
                return True
            booked = database.execute(
                "INSERT INTO budgets SELECT ?, ?, ?, ?, ?, 1 WHERE ? + ("
                '  SELECT TOTAL(rho) FROM budgets WHERE person = ? AND "table" = ? AND counts) <= ?',
                (submission, person, table, rho, time.time(), rho, person, table, limit * (1 + ROUNDING)),
            )
            return booked.rowcount == 1

    def spendings(self) -> list[Spending]:
        rows = self._database.rows(
            'SELECT person, "table", TOTAL(rho), COUNT(*), MIN(booked), MAX(booked) FROM budgets WHERE counts'
            ' GROUP BY person, "table" ORDER BY person, "table"'
        )
        return [
            Spending(person=person, table=table, rho=rho, questions=questions, first=first, last=last)
            for person, table, rho, questions, first, last in rows
        ]

    def reset(self, person: str, table: str) -> int:
        """What was booked no longer counts; how many questions that were. Their submissions stay known."""
        with self._database.transaction() as database:
            return database.execute(
                'UPDATE budgets SET counts = 0 WHERE person = ? AND "table" = ? AND counts', (person, table)
            ).rowcount


@dataclass(frozen=True, kw_only=True)
class QuestionBudget:
    """What one question costs the person who signed it, at a site whose rule limits that."""

    budgets: PrivacyBudgets
    submission: str
    site: str
    person: str
    table: str
    epsilon: float
    delta: float
    limit: SpendingLimit

    def is_booked(self) -> bool:
        return self.budgets.is_booked(self.submission)

    def shortage(self) -> str:
        """Why it cannot be booked, if so; nothing is."""
        if self.is_booked() or self._rho <= (1 + ROUNDING) * self._limit - self.budgets.spent(self.person, self.table):
            return ""
        return self._does_not_last()

    def book(self) -> str:
        """Why it is not booked, if so."""
        booked = self.budgets.book(self.submission, self.person, self.table, self._rho, limit=self._limit)
        return "" if booked else self._does_not_last()

    @property
    def _rho(self) -> float:
        from winnow.privacy.concentrated_privacy import rho_of  # noqa: PLC0415 - an idle agent loads no NumPy

        return rho_of(self.epsilon, self.delta)

    @property
    def _limit(self) -> float:
        from winnow.privacy.concentrated_privacy import rho_of  # noqa: PLC0415

        return rho_of(self.limit.epsilon, self.limit.delta)

    def _does_not_last(self) -> str:
        left = epsilon_left(self.limit, self.budgets.spent(self.person, self.table))
        return (
            f"ε {self.epsilon:g} is too much: {left:g} of {self.limit.epsilon:g} is left for {self.person} "
            f"at {self.site}"
        )


def epsilon_left(limit: SpendingLimit, spent: float) -> float:
    """The largest ε, to two digits, that can be asked for at the limit's δ once ρ = `spent` is gone."""
    from winnow.privacy.concentrated_privacy import epsilon_of, rho_of  # noqa: PLC0415

    left = epsilon_of(max(0.0, rho_of(limit.epsilon, limit.delta) - spent), limit.delta)
    return math.floor(100 * left + 1e-6) / 100
