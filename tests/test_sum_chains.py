"""Chains of masked sums over a federation: lies, restarts, a helper; and the same answer as without protection."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import numpy as np
import pyarrow as arrow
import pytest
from msgspec.structs import replace

from winnow.analytics.program import Program, SumChain, run_plain
from winnow.analytics.question import Answer, MergedTerms, QueryTerms, Question, merge_terms
from winnow.analytics.simulate import SimulatedOwners
from winnow.analytics.site import AnalysisSite
from winnow.analytics.tables.declaration import ColumnDeclaration, TableDeclaration
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.analytics.tasks import ANALYSIS_BEGIN, ANALYSIS_STEP
from winnow.analytics.workflow import AnalysisWorkflow
from winnow.core import Failure, Outcome, Population, Released, Reply, RoundFinished, Task, WinnowError
from winnow.fleet import Devices
from winnow.privacy.shares.masked_sum import SummedVector, VectorProgram, WordsMessage
from winnow.simulate import SimulatedFederation

DECLARATION = TableDeclaration(columns={"x": ColumnDeclaration(level="protected", type="number", bounds=(0.0, 1000.0))})
TERMS = QueryTerms(declaration=DECLARATION, allow=("statistics",), owners=1)


def means(table: OwnerTable | None) -> VectorProgram:
    """Σx and n; then Σ(x − mean)², with the mean of the first sum."""
    x = None if table is None else table.numbers("x").astype(np.int64)
    total, count = yield SummedVector(length=2, values=None if x is None else np.array([x.sum(), len(x)]))
    mean = total // count
    (spread,) = yield SummedVector(length=1, values=None if x is None else np.array([((x - mean) ** 2).sum()]))
    return np.array([mean, spread], np.int64)


class MeanAndSpread(Question):
    kind: str = "mean-and-spread"

    def needs(self) -> frozenset[Any]:
        return frozenset({"statistics"})

    def program(self, terms: MergedTerms) -> Program[Answer]:
        steps = [SumChain(label="spread", vectors=means, length=2, sums=2, words=3, shows="sums") for _ in range(2)]
        first = yield steps[0]
        second = yield steps[1]
        return {"first": first.tolist(), "second": second.tolist()}


QUESTION = MeanAndSpread(table="t")


def tables(owners: int) -> dict[str, OwnerTable]:
    rows = [arrow.table({"x": [float(3 * i * owner) for i in range(owner + 2)]}) for owner in range(owners)]
    return {f"owner-{number}": OwnerTable(DECLARATION, each) for number, each in enumerate(rows)}


def expected(owned: Mapping[str, OwnerTable]) -> Answer:
    terms = merge_terms(QUESTION, dict.fromkeys(owned, TERMS))
    return run_plain(lambda: QUESTION.program(terms), list(owned.values()))


class Meddled(SimulatedOwners):
    """Owners of whom the tasks on their way to them, or the replies, are changed."""

    def __init__(
        self,
        owners: int,
        task: Callable[[Task], Task] = lambda task: task,
        reply: Callable[[Outcome], Outcome] = lambda outcome: outcome,
    ) -> None:
        owned = tables(owners)
        super().__init__(QUESTION, owned, dict.fromkeys(owned, TERMS))
        self.change_task, self.change_reply, self.seen = task, reply, list[Task]()

    def handle(self, tasks: Sequence[Task], site: object) -> list[Outcome]:
        self.seen.extend(tasks)
        return [self.change_reply(super(Meddled, self).handle([self.change_task(task)], site)[0]) for task in tasks]

    def ask(self) -> tuple[Answer | None, list[Any]]:
        workflow = AnalysisWorkflow(QUESTION, self.names)
        events = list(workflow.run(self.federation()))
        return workflow.answer, events


@pytest.mark.parametrize("owners", [1, 2, 3, 9])
def test_the_answer_is_that_of_the_plain_program(owners: int) -> None:
    parties = Meddled(owners)
    answer, events = parties.ask()
    assert answer == expected(tables(owners))
    x = np.concatenate([table.numbers("x") for table in tables(owners).values()])
    assert answer["first"][0] == int(x.sum()) // len(x)
    if owners > 1:
        assert [event.cells for event in events if isinstance(event, Released)] == [3, 3]
        exchanges = [event.metrics["messages"]["exchanges"] for event in events if isinstance(event, RoundFinished)]
        assert exchanges == [3, 2], "keys are agreed on once"


def _told(task: Task, change: Callable[[WordsMessage], WordsMessage]) -> Task:
    """A server's sum, changed."""
    message = msgspec.msgpack.decode(np.asarray(task.payload["messages"]["server"]).tobytes(), type=WordsMessage)
    told = msgspec.msgpack.encode(change(message))
    return replace(task, payload={"messages": {"server": np.frombuffer(told, np.uint8)}})


def test_a_server_that_tells_an_owner_another_sum_gets_no_result() -> None:
    def more(message: WordsMessage) -> WordsMessage:
        words = np.frombuffer(message.words, "<u8").copy()
        words[1] += np.uint64(1000)
        return msgspec.structs.replace(message, words=words.tobytes())

    def lie(task: Task) -> Task:
        return _told(task, more) if task.payload and task.client == 1 else task

    with pytest.raises(WinnowError, match="owner-1: the server: the sum is not that of what the owners sent"):
        Meddled(3, lie).ask()


@pytest.mark.parametrize(
    ("words", "line"),
    [(b"garbage", "owner-2: its message cannot be read"), (None, "owner-2: its words are missing")],
)
def test_an_owner_that_sends_no_words_is_named(words: bytes | None, line: str) -> None:
    def lie(outcome: Outcome) -> Outcome:
        if not isinstance(outcome, Reply) or outcome.task.client != 2 or "messages" not in outcome.payload:
            return outcome
        part = {} if words is None else {"messages": {"server": np.frombuffer(words, np.uint8)}}
        return replace(outcome, payload=part)

    with pytest.raises(WinnowError, match=rf"step 1 \(spread\): {line}"):
        Meddled(3, reply=lie).ask()


def test_an_owner_begins_no_step_twice_with_the_same_keys() -> None:
    """Else a server could have two vectors of it under one mask, and subtract them."""
    parties = Meddled(3)
    parties.ask()
    begins = [task for task in parties.seen if task.client == 0 and task.name == ANALYSIS_STEP]
    last = [task for task in begins if task.settings["statements"]][-1]
    (again,) = parties.sites[0].handle([last], None)
    assert isinstance(again, Failure)
    assert (again.stage, again.reason) == ("restarted", "it has no keys for this attempt")
    (fresh,) = parties.sites[0].handle([replace(last, settings={**last.settings, "new_keys": True})], None)
    assert isinstance(fresh, Reply)
    assert fresh.peer_messages
    assert not fresh.payload, "keys first, then words"


@pytest.mark.parametrize(("step", "exchange"), [(1, 1), (1, 2), (2, 0), (2, 1)])
def test_a_chain_begins_again_for_an_owner_that_restarted(step: int, exchange: int) -> None:
    owned, restarted = tables(3), list[int]()

    def restarts(task: Task) -> Task:
        at = (task.round, task.settings["exchange"]) if task.name == ANALYSIS_STEP else None
        if task.client == 1 and at == (step, exchange) and not restarted:
            restarted.append(1)
            parties.sites[1] = SimulatedOwners(QUESTION, owned, dict.fromkeys(owned, TERMS)).sites[1]
        return task

    parties = Meddled(3, restarts)
    answer, _ = parties.ask()
    assert (answer, restarted) == (expected(owned), [1])


def test_a_restored_server_goes_on_after_the_last_step() -> None:
    owned = tables(3)
    parties = SimulatedOwners(QUESTION, owned, dict.fromkeys(owned, TERMS))
    federation = parties.federation()
    first = AnalysisWorkflow(QUESTION, parties.names)
    next(event for event in first.run(federation) if isinstance(event, RoundFinished))
    second = AnalysisWorkflow(QUESTION, parties.names)
    second.restore(first.snapshot())
    rounds = [event.round for event in second.run(federation) if isinstance(event, RoundFinished)]
    assert (second.answer, rounds) == (expected(owned), [2])


def test_a_helper_of_two_owners_masks_nothing_of_its_own() -> None:
    owned = tables(2)
    parties = SimulatedOwners(QUESTION, owned, dict.fromkeys(owned, TERMS))
    parties.sites.append(
        AnalysisSite(
            QUESTION,
            None,
            None,
            client=2,
            noise_seed=b"",
            submission="",
            book=lambda: None,
            identities=_Unsigned(),
        )
    )
    parties.names.append("helper")
    federation: SimulatedFederation[None] = SimulatedFederation(
        site=None,
        handlers={ANALYSIS_BEGIN: parties.handle, ANALYSIS_STEP: parties.handle},
        population=Population(sizes=np.ones(3, np.int64)),
        fleet=Devices().draw(3, 0),
    )
    workflow = AnalysisWorkflow(QUESTION, [*owned, "helper"])
    list(workflow.run(federation))
    assert workflow.answer == expected(owned)


class _Unsigned:
    def sign_once(self, party: int, message: bytes, ballot: bytes) -> bytes:
        return b""
