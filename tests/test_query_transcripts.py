"""What passes the server while a statement is answered: equal lengths however rows are divided, and chance."""

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as arrow
import pytest
from scipy import stats

from query_tables import DECLARATION, divided, pooled_rows, terms_of
from shares import SERVER, exchange, parties_of, secure_step
from winnow.analytics.question import Answer, read_question
from winnow.analytics.sealed_answer import with_reader
from winnow.analytics.simulate import SimulatedOwners
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.analytics.workflow import AnalysisWorkflow
from winnow.core import Outcome, Reply, Task
from winnow.privacy.shares.shamir_shares import decode_shares, recombine, threshold_of
from winnow.privacy.shares.step_messages import InputMessage

MINIMUM = 10
Passed = tuple[int, str, int, tuple[tuple[int, int], ...], tuple[tuple[str, int], ...]]
"""Round, direction, client, lengths of messages by the other party, lengths of what the server itself gets or gives."""


class Watched(SimulatedOwners):
    """Owners beside whom the server notes everything that it carries."""

    passed: list[Passed]

    def handle(self, tasks: Sequence[Task], site: object) -> list[Outcome]:
        found = []
        for task in tasks:
            self._note(task.round, "to", task.client, task.peer_messages, task.payload)
            [outcome] = super().handle([task], site)
            assert isinstance(outcome, Reply), outcome
            self._note(task.round, "from", task.client, outcome.peer_messages, outcome.payload)
            found.append(outcome)
        return found

    def _note(self, number: int, direction: str, client: int, messages: Any, payload: Any) -> None:
        own = tuple(sorted((part, np.asarray(each).nbytes) for part in payload for each in payload[part].values()))
        lengths = tuple(sorted((party, len(message)) for party, message in messages.items()))
        self.passed.append((number, direction, client, lengths, own))


def watched(sql: str, tables: Sequence[OwnerTable]) -> tuple[Answer, list[Passed]]:
    question, _ = with_reader(read_question({"kind": "query", "sql": sql}))
    terms = terms_of(len(tables), rows=40)
    owners = Watched(question, dict(zip(terms, tables, strict=True)), terms)
    owners.passed = []
    workflow = AnalysisWorkflow(question, owners.names)
    list(workflow.run(owners.federation()))
    assert workflow.answer is not None
    return workflow.answer, owners.passed


def at_one(rows: arrow.Table, owners: int) -> list[OwnerTable]:
    """All rows at the last owner; the others have none."""
    return [OwnerTable(DECLARATION, rows if place == owners - 1 else rows.slice(0, 0)) for place in range(owners)]


def rounded(answer: Answer) -> list[list[Any]]:
    """The rows, where they can be read: sums in fixed point differ by the number of owners that round."""
    return [
        [round(each, 4) if isinstance(each, float) else each for each in row.values()] for row in answer.get("rows", [])
    ]


@pytest.mark.parametrize(
    ("owners", "sql"),
    [
        (2, "SELECT outcome, COUNT(*), AVG(cost), CORR(x, y) FROM stays WHERE age > 20 GROUP BY outcome"),
        (3, "SELECT ward, SUM(age), COUNT(*) FILTER (WHERE well) FROM stays GROUP BY ward"),
        (3, "SELECT COUNT(*), SUM(age) FROM (SELECT * FROM stays ORDER BY DISTANCE(x, y, 1, 1) LIMIT 30)"),
        (3, "SELECT age, cost FROM stays ORDER BY DISTANCE(x, y, 1, 1) LIMIT 5"),
    ],
)
def test_the_same_rows_divided_otherwise_give_the_server_messages_of_the_same_lengths(owners: int, sql: str) -> None:
    rows = pooled_rows(400, seed=9)
    answer, passed = watched(sql, divided(rows, owners, seed=1))
    for other in (divided(rows, owners, seed=2), at_one(rows, owners)):
        again, lengths = watched(sql, other)
        assert lengths == passed
        assert rounded(again) == rounded(answer)
    assert any(each[3] for each in passed)


# A group that is too small --------------------------------------------------------------------------------------------

RUNS = 120


def views(owners: int, counts: Sequence[int], minority: Sequence[int]) -> tuple[list[int], list[int], set[bool]]:
    """Of many comparisons of one small count with the minimum: the minority's shares of the inputs of the others, all
    parties' numbers recombined, and what was opened.
    """
    seen, rebuilt, opened = list[int](), list[int](), set[bool]()
    for _ in range(RUNS):
        step = secure_step(owners, 1, thresholds=[MINIMUM])
        parties = parties_of(step, [[each] for each in counts])
        letters = {me: party.first_messages() for me, party in parties.items()}
        firsts = {
            (me, to): decode_shares(step.field, msgspec.msgpack.decode(data, type=InputMessage).shares, 1)[0]
            for me, written in letters.items()
            for to, data in written.items()
            if me in step.owners
        }
        hidden = next(owner for owner in step.owners if owner not in minority)
        seen += [int(firsts[hidden, party]) for party in minority]
        others = {
            place: np.array([firsts[hidden, party]], object)
            for place, party in enumerate(step.computing)
            if party != hidden
        }
        if len(others) > threshold_of(len(step.computing)):
            rebuilt.append(int(recombine(step.field, others, len(step.computing))[0]))
    step = secure_step(owners, 1, thresholds=[MINIMUM])
    _, results = exchange(parties_of(step, [[each] for each in counts]))
    opened |= {bool(each[0]) for each in results.values() if each is not None}
    return seen, rebuilt, opened


@pytest.mark.parametrize(("owners", "minority"), [(2, [SERVER]), (3, [1]), (5, [1, 3])])
def test_a_group_of_one_less_than_the_minimum_cannot_be_rebuilt_by_a_minority(owners: int, minority: list[int]) -> None:
    """Their shares are the same chance for 9 rows and for 1, while a majority's do give the number."""
    modulus = secure_step(owners, 1, thresholds=[MINIMUM]).field.modulus
    nine = views(owners, [MINIMUM - 1] + [0] * (owners - 1), minority)
    one = views(owners, [1] + [0] * (owners - 1), minority)
    assert nine[2] == one[2] == {False}
    for seen, _, _ in (nine, one):
        assert stats.kstest(np.array(seen, float) / float(modulus), "uniform").pvalue > 1e-4
        assert stats.chisquare(list(Counter(each % 16 for each in seen).values())).pvalue > 1e-4
        assert len({*seen}) == len(seen)
    assert stats.ks_2samp(np.array(nine[0], float), np.array(one[0], float)).pvalue > 1e-4
    if owners > 2:
        assert {*nine[1]} == {MINIMUM - 1}
        assert {*one[1]} == {1}


def test_whatever_a_small_group_holds_no_number_in_what_is_opened_changes() -> None:
    """Nine people who died, of any age and cost: owners and server open the same."""

    def told(seed: int) -> tuple[Any, list[Passed]]:
        rng = np.random.default_rng(seed)
        rows = pooled_rows(300, seed=1, missing=0.0)
        few = np.arange(300) < MINIMUM - 1
        outcome = np.where(few, "died", "home")
        ages = np.where(few, rng.integers(0, 110, 300), rows.column("age").to_numpy())
        for name, values in (("outcome", outcome), ("age", ages)):
            rows = rows.set_column(rows.column_names.index(name), name, arrow.array(values))
        sql = "SELECT outcome, COUNT(*) AS n, SUM(age) AS s, MAX(age) AS m FROM stays GROUP BY outcome"
        return watched(sql, divided(rows, 3, seed=seed))

    first, second = told(1), told(2)
    assert first == second
    assert [row["outcome"] for row in first[0]["rows"]] == ["home"]
    assert first[0]["left_out"] == 1
