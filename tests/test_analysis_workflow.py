"""Programs over a federation: the same answers as without protection, whoever computes; liars, silence, restarts."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as arrow
import pytest
from msgspec.structs import replace

from winnow.analytics.agreement import Statement, decode_statements, encode_statements
from winnow.analytics.program import Compare, Noise, Program, Sum, run_plain
from winnow.analytics.question import Answer, MergedTerms, QueryTerms, Question, merge_terms
from winnow.analytics.simulate import SimulatedOwners, ask_owners, ask_simulated
from winnow.analytics.site import AnalysisSite
from winnow.analytics.tables.declaration import ColumnDeclaration, TableDeclaration
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.analytics.tasks import ANALYSIS_BEGIN, ANALYSIS_STEP
from winnow.analytics.workflow import AnalysisWorkflow
from winnow.core import ConfigError, Failure, Outcome, Population, Reply, RoundFinished, RunError, Task, WinnowError
from winnow.fleet import Devices
from winnow.runs import RunFolder
from winnow.simulate import SimulatedFederation

DECLARATION = TableDeclaration(columns={"x": ColumnDeclaration(level="protected", type="number", bounds=(0.0, 1000.0))})
TERMS = QueryTerms(declaration=DECLARATION, allow=("statistics", "per-owner"), owners=1)


class CountAndSum(Question):
    """Shows the sum where enough rows stand behind it; what is asked next depends on what was opened before."""

    kind: str = "count-and-sum"

    def needs(self) -> frozenset[Any]:
        return frozenset({"statistics"})

    def program(self, terms: MergedTerms) -> Program[Answer]:
        noise = None if self.epsilon is None else Noise(rho=self.rho(terms), sensitivity=1.0)
        edges = np.array([1, 5, 12, 10_000])
        bits = yield Compare(label="enough", local=lambda rows: np.full(4, len(rows)), thresholds=edges)
        known = int(bits.sum())
        totals = yield Sum(label="sums", local=lambda rows: np.full(known, int(rows.numbers("x").sum())), length=known)
        by_owner = yield Sum(label="owners", local=lambda rows: np.array([len(rows)]), length=1, per_owner=True)
        noisy = yield Sum(label="noisy", local=lambda rows: np.array([len(rows)]), length=1, noise=noise)
        return {"bits": bits.tolist(), "sums": list(totals), "by_owner": list(by_owner), "noisy": int(noisy[0])}


QUESTION = CountAndSum(table="t")


def tables(owners: int) -> dict[str, OwnerTable]:
    rows = [arrow.table({"x": [float(i) for i in range(owner + 2)]}) for owner in range(owners)]
    return {f"owner-{number}": OwnerTable(DECLARATION, each) for number, each in enumerate(rows)}


def expected(owned: Mapping[str, OwnerTable], question: Question = QUESTION) -> Answer:
    terms = merge_terms(question, dict.fromkeys(owned, TERMS))
    return run_plain(lambda: question.program(terms), list(owned.values()))


@pytest.mark.parametrize("owners", [1, 2, 3, 4, 8])
def test_the_answer_is_that_of_the_plain_program(owners: int) -> None:
    owned = tables(owners)
    events: list[Any] = []
    answer = ask_owners(QUESTION, owned, dict.fromkeys(owned, TERMS), on_event=events.append)
    assert answer == expected(owned)
    assert [event.kind for event in events] == [
        *("round_finished", "released", "round_finished", "released", "round_finished"),
        *("released", "round_finished", "answered"),
    ]
    assert [event.round for event in events] == [1, 2, 2, 3, 3, 4, 4, 4]


# Somebody between the owners ------------------------------------------------------------------------------------------


class Meddled(SimulatedOwners):
    """Owners of whom the replies, or the tasks on their way to them, are changed."""

    def __init__(
        self,
        owners: int,
        reply: Callable[[Outcome], Outcome] = lambda outcome: outcome,
        task: Callable[[Task], Task] = lambda task: task,
    ) -> None:
        owned = tables(owners)
        super().__init__(QUESTION, owned, dict.fromkeys(owned, TERMS))
        self.change_reply, self.change_task = reply, task

    def handle(self, tasks: Sequence[Task], site: object) -> list[Outcome]:
        return [self.change_reply(super(Meddled, self).handle([self.change_task(task)], site)[0]) for task in tasks]

    def ask(self) -> Answer | None:
        workflow = AnalysisWorkflow(QUESTION, self.names)
        for _ in workflow.run(self.federation()):
            pass
        return workflow.answer


def of_owner(client: int, change: Callable[[Reply], Outcome], when: Callable[[Reply], bool] = bool) -> Any:
    def changed(outcome: Outcome) -> Outcome:
        ours = isinstance(outcome, Reply) and outcome.task.client == client and when(outcome)
        return change(outcome) if ours else outcome

    return changed


def opens(reply: Reply) -> bool:
    return "opened" in reply.payload


def writes(reply: Reply) -> bool:
    return bool(reply.peer_messages) and reply.task.round == 2


def with_opened(values: bytes) -> Callable[[Reply], Reply]:
    return lambda reply: replace(reply, payload={"opened": {"values": np.frombuffer(values, np.uint8)}})


def with_messages(change: Callable[[bytes], bytes]) -> Callable[[Reply], Reply]:
    return lambda reply: replace(reply, peer_messages={to: change(data) for to, data in reply.peer_messages.items()})


LIES = {
    "another result": (
        of_owner(1, with_opened(b"\0\1\0\1"), opens),
        r"step 1 \(enough\) .* different results at owner-1",
    ),
    "a result of a wrong length": (of_owner(1, with_opened(b"\0"), opens), "different results at owner-1"),
    "garbage for messages": (
        of_owner(1, with_messages(lambda data: b"garbage"), writes),
        "owner-1: its message cannot be",
    ),
    "empty messages": (of_owner(2, with_messages(lambda data: b""), writes), "owner-2: its message cannot be read"),
    "a refusal": (
        of_owner(2, lambda reply: Failure(task=reply.task, stage="admission", reason="not\ntoday"), writes),
        "owner-2: not today",
    ),
    "no answer": (
        of_owner(
            2, lambda reply: Failure(task=reply.task, stage="waiting", reason="no answer within 9 seconds"), writes
        ),
        r"1 of 3 owners did not answer \(no answer within 9 seconds\): owner-2",
    ),
    "no messages": (
        of_owner(1, lambda reply: replace(reply, peer_messages={}), writes),
        "owner-0: owner-1: its first message is missing",
    ),
    "odd payload": (
        of_owner(1, lambda reply: replace(reply, payload={"opened": {"values": np.zeros((2, 2))}}), opens),
        "owner-1: its reply has a part 'opened' that is not a list of bytes",
    ),
    "no terms": (
        of_owner(1, lambda reply: replace(reply, payload={"terms": {"json": np.frombuffer(b"{]", np.uint8)}})),
        "the terms of owner-1 cannot be read",
    ),
    "terms that are not text": (
        of_owner(1, lambda reply: replace(reply, payload={"terms": {"json": np.frombuffer(b"\xff\xff", np.uint8)}})),
        "owner-1: its terms are not text",
    ),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_owner_that_lies_or_is_silent_ends_the_question_with_one_line(lie: str) -> None:
    change, line = LIES[lie]
    with pytest.raises(WinnowError, match=line) as caught:
        Meddled(3, change).ask()
    assert "\n" not in str(caught.value)


def test_all_owners_are_named_where_no_two_agree() -> None:
    def own_result(outcome: Outcome) -> Outcome:
        if isinstance(outcome, Reply) and opens(outcome):
            return with_opened(bytes([outcome.task.client, 0, 0, 0]))(outcome)
        return outcome

    with pytest.raises(WinnowError, match="different results at owner-0, owner-1, owner-2"):
        Meddled(3, own_result).ask()


def test_a_message_to_the_server_that_it_cannot_read_names_its_owner() -> None:
    garbage = {"messages": {"server": np.frombuffer(b"garbage", np.uint8)}}
    lie = of_owner(1, lambda reply: replace(reply, payload=garbage), lambda reply: "messages" in reply.payload)
    with pytest.raises(WinnowError, match=r"step 1 \(enough\): owner-1: its message cannot be read"):
        Meddled(2, lie).ask()


# A server that lies ---------------------------------------------------------------------------------------------------


def changed_statements(change: Callable[[list[Statement]], list[Statement]], client: int = 0, at: int = 1) -> Any:
    """A server that tells one owner other terms than the rest, from some step on."""

    def task(task: Task) -> Task:
        if task.name != ANALYSIS_STEP or task.client != client or task.round < at or not task.settings["statements"]:
            return task
        told = encode_statements(change(decode_statements(task.settings["statements"])))
        return replace(task, settings={**task.settings, "statements": told})

    return task


def looser(client: int) -> Callable[[list[Statement]], list[Statement]]:
    terms = TERMS.model_copy(update={"minimum": 1}).model_dump_json()
    return lambda told: [replace(each, terms=terms) if each.client == client else each for each in told]


@pytest.mark.parametrize(
    ("change", "line"),
    [
        (changed_statements(looser(0)), "owner-0: the server's list of terms has not those of this owner"),
        (changed_statements(looser(1)), "its message is about another step, other terms or other results so far"),
        (changed_statements(lambda told: told[:2]), "other terms|no part in this step|first message is missing"),
        (changed_statements(lambda told: told[::-1]), "has one twice, or is out of order"),
        (changed_statements(looser(1), at=2), "changed the owners' terms after the first step"),
        (lambda task: replace(task, settings="odd") if task.name == ANALYSIS_STEP else task, "task cannot be read"),
        (
            lambda task: replace(task, round=3) if task.name == ANALYSIS_STEP else task,
            "asks for step 3; this owner's next one is 1",
        ),
        (
            lambda task: replace(task, client_state={}) if task.name == ANALYSIS_STEP and task.round == 3 else task,
            "asks for step 3; this owner's next one is 1",
        ),
    ],
)
def test_a_server_that_says_something_else_to_an_owner_gets_no_result(change: Any, line: str) -> None:
    with pytest.raises(WinnowError, match=line):
        Meddled(3, task=change).ask()


def test_an_owner_fixes_what_a_step_computes_on_before_it_writes() -> None:
    """The agent signs one digest for a step, and a server that leads an owner into a step again gets nothing."""
    signed: dict[bytes, bytes] = {}

    class Agent:
        def sign_once(self, party: int, message: bytes, ballot: bytes) -> bytes:
            if signed.setdefault(ballot, message) != message:
                raise WinnowError("something else was signed for this ballot")
            return b"signed"

    def ask(tables_now: Mapping[str, OwnerTable], question: Question) -> Answer:
        owners = SimulatedOwners(question, tables_now, dict.fromkeys(tables_now, TERMS))
        owners.sites[0] = _site(owners, 0, tables_now, question, Agent())
        workflow = AnalysisWorkflow(question, owners.names)
        list(workflow.run(owners.federation()))
        assert workflow.answer is not None
        return workflow.answer

    owned = tables(3)
    assert ask(owned, QUESTION) == ask(owned, QUESTION), "the same step may be repeated"
    assert len(signed) == 4
    with pytest.raises(WinnowError, match="owner-0: something else was signed for this ballot"):
        ask({**owned, "owner-3": owned["owner-2"]}, QUESTION)


def _site(owners: SimulatedOwners, client: int, owned: Mapping[str, OwnerTable], question: Question, agent: Any) -> Any:
    return AnalysisSite(
        question,
        list(owned.values())[client],
        TERMS,
        client=client,
        noise_seed=b"seed",
        submission="",
        book=lambda: None,
        identities=agent,
    )


# Restarts -------------------------------------------------------------------------------------------------------------


def _until(events: Iterator[Any], round: int) -> None:
    for event in events:
        if isinstance(event, RoundFinished) and event.round == round:
            return


@pytest.mark.parametrize("owners", [2, 3])
@pytest.mark.parametrize("round", [1, 2, 3, 4])
def test_a_restored_server_goes_on_after_the_last_step(owners: int, round: int) -> None:
    owned = tables(owners)
    parties = SimulatedOwners(QUESTION, owned, dict.fromkeys(owned, TERMS))
    federation = parties.federation()
    first = AnalysisWorkflow(QUESTION, parties.names)
    _until(first.run(federation), round)
    second = AnalysisWorkflow(QUESTION, parties.names)
    second.restore(first.snapshot())
    events = list(second.run(federation))
    assert second.answer == expected(owned)
    assert [event.round for event in events if isinstance(event, RoundFinished)] == [*range(round + 1, 5)]


def test_a_server_that_was_killed_within_a_step_begins_it_again() -> None:
    """Messages of the first attempt are under way when it is killed; none of them is taken for one of the second."""
    owned = tables(3)
    parties = SimulatedOwners(QUESTION, owned, dict.fromkeys(owned, TERMS))
    federation = parties.federation()
    killed = AnalysisWorkflow(QUESTION, parties.names)
    running = killed.run(federation)
    _until(running, 1)
    handled = [0]

    def dies(tasks: Sequence[Task], site: object) -> list[Outcome]:
        handled[0] += 1
        if handled[0] == 2:
            raise KeyboardInterrupt
        return parties.handle(tasks, site)

    federation.handlers[ANALYSIS_STEP] = dies
    with pytest.raises(KeyboardInterrupt):
        next(running)
    again = AnalysisWorkflow(QUESTION, parties.names)
    again.restore(killed.snapshot())
    list(again.run(federation))
    assert again.answer == expected(owned)


@pytest.mark.parametrize("times", [1, 9])
def test_a_step_begins_again_for_an_owner_that_restarted_and_ends_if_it_does_so_ever_again(times: int) -> None:
    owned = tables(3)
    parties = SimulatedOwners(QUESTION, owned, dict.fromkeys(owned, TERMS))
    federation = parties.federation()
    workflow = AnalysisWorkflow(QUESTION, parties.names)
    running = workflow.run(federation)
    _until(running, 1)
    restarted: list[int] = []

    def restarts(tasks: Sequence[Task], site: object) -> list[Outcome]:
        if len(restarted) < times and any(task.settings["exchange"] == 1 and task.client == 1 for task in tasks):
            restarted.append(1)
            parties.sites[1] = SimulatedOwners(QUESTION, owned, dict.fromkeys(owned, TERMS)).sites[1]
        return parties.handle(tasks, site)

    federation.handlers[ANALYSIS_STEP] = restarts
    if times > 1:
        with pytest.raises(WinnowError, match="owner-1: it was restarted in the middle of a step"):
            list(running)
        return
    list(running)
    assert (workflow.answer, len(restarted)) == (expected(owned), 1)


# Helpers, noise, budgets ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("owners", [2, 3])
def test_a_helper_computes_with_two_owners_and_is_left_alone_by_three(owners: int) -> None:
    owned = tables(owners)
    parties = SimulatedOwners(QUESTION, owned, dict.fromkeys(owned, TERMS))
    helper = AnalysisSite(
        QUESTION,
        None,
        None,
        client=owners,
        noise_seed=b"",
        submission="",
        book=lambda: None,
        identities=_Unsigned(),
    )
    parties.sites.append(helper)
    parties.names.append("helper")
    asked: list[Task] = []

    def handle(tasks: Sequence[Task], site: object) -> list[Outcome]:
        asked.extend(tasks)
        return parties.handle(tasks, site)

    federation: SimulatedFederation[None] = SimulatedFederation(
        site=None,
        handlers={ANALYSIS_BEGIN: handle, ANALYSIS_STEP: handle},
        population=Population(sizes=np.ones(owners + 1, np.int64)),
        fleet=Devices().draw(owners + 1, 0),
    )
    workflow = AnalysisWorkflow(QUESTION, [*owned, "helper"])
    list(workflow.run(federation))
    assert workflow.answer == expected(owned)
    steps = [task for task in asked if task.name == ANALYSIS_STEP]
    assert any(task.client == owners for task in steps) == (owners == 2)
    assert not any(task.payload for task in steps), "the server computes nothing"


class _Unsigned:
    def sign_once(self, party: int, message: bytes, ballot: bytes) -> bytes:
        return b""


def test_noise_follows_from_each_owners_secret_alone() -> None:
    question, owned = CountAndSum(table="t", epsilon=0.5), tables(3)

    def noisy(seed: int) -> int:
        return int(ask_owners(question, owned, dict.fromkeys(owned, TERMS), seed=seed)["noisy"])

    exact, drawn = expected(owned)["noisy"], [noisy(seed) for seed in range(6)]
    assert noisy(3) == drawn[3], "asked again, an owner adds the same noise"
    assert len({*drawn}) > 1
    deviation = Noise(rho=question.rho(MergedTerms(declaration=DECLARATION, minimum=1, owners=())), sensitivity=1.0)
    assert all(abs(each - exact) < 8 * deviation.deviation(3) for each in drawn)


def test_a_budget_is_asked_before_a_noisy_step_and_its_refusal_is_the_end() -> None:
    owned, question = tables(3), CountAndSum(table="t", epsilon=0.5)
    parties = SimulatedOwners(question, owned, dict.fromkeys(owned, TERMS))
    booked: list[str] = []

    def refuse() -> None:
        booked.append("asked")
        raise ConfigError("ε 0.5 is too much: 0.3 of 4 is left for ana")

    parties.sites[1] = AnalysisSite(
        question,
        owned["owner-1"],
        TERMS,
        client=1,
        noise_seed=b"",
        submission="",
        book=refuse,
        identities=_Unsigned(),
    )
    workflow = AnalysisWorkflow(question, parties.names)
    with pytest.raises(WinnowError, match=r"owner-1: ε 0\.5 is too much"):
        list(workflow.run(parties.federation()))
    assert booked == ["asked"]


def test_owners_of_another_submission_refuse_messages() -> None:
    owned = tables(2)
    parties = SimulatedOwners(QUESTION, owned, dict.fromkeys(owned, TERMS))
    with pytest.raises(WinnowError, match="its message is about another step"):
        list(AnalysisWorkflow(QUESTION, parties.names, "another").run(parties.federation()))


def test_rows_beyond_those_that_noise_hides_do_not_count() -> None:
    unit = ColumnDeclaration(level="private", type="text", key=True)
    declared = TableDeclaration(columns={**DECLARATION.columns, "who": unit}, unit="who", rows=3)
    strict = declared.model_copy(update={"rows": 1})
    rows = arrow.table({"x": [1.0, 2.0, 3.0], "who": ["a", "a", "b"]})
    owned = {f"owner-{i}": OwnerTable(declared, rows) for i in range(3)}
    terms = {name: TERMS.model_copy(update={"declaration": declared}) for name in owned}
    terms["owner-2"] = TERMS.model_copy(update={"declaration": strict})
    question = CountAndSum(table="t", epsilon=1.0)
    assert ask_owners(question, owned, terms)["by_owner"] == [2, 2, 2]


# Run folders ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def federation_file(tmp_path: Path) -> Path:
    rows = [f"owner-{owner},{value}\n" for owner in range(3) for value in range(owner + 2)]
    (tmp_path / "t.csv").write_text("owner,x\n" + "".join(rows))
    path = tmp_path / "federation.toml"
    path.write_text(
        '[tables.t]\nfile = "t.csv"\nowner = "owner"\n[tables.t.columns]\n'
        'x = { level = "protected", bounds = [0, 1000] }\n'
    )
    return path


def test_a_question_that_was_killed_goes_on_in_its_folder(
    federation_file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("winnow.analytics.question_run_folder.CHECKPOINT_SECONDS", -1.0)
    folder, rounds = federation_file.parent / "run", list[int]()

    def kill(event: Any) -> None:
        if isinstance(event, RoundFinished) and event.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ask_simulated(QUESTION, federation_file, folder=folder, on_event=kill)
    answer = ask_simulated(QUESTION, federation_file, folder=folder, on_event=lambda event: rounds.append(event.round))
    assert rounds[0] == 3, "what was opened before is not computed again"
    assert answer == expected(tables(3))
    events = [event.kind for event in RunFolder.open(folder).log]
    assert events.count("round_finished") == 4
    assert events[-1] == "answered"
    again = ask_simulated(QUESTION, federation_file, folder=folder, on_event=lambda event: rounds.append(-1))
    assert (again, rounds[-1]) == (answer, 4), "a finished run is read"


def test_a_folder_with_another_question_other_rows_or_a_changed_answer_is_refused(federation_file: Path) -> None:
    folder = federation_file.parent / "run"
    ask_simulated(QUESTION, federation_file, folder=folder)
    with pytest.raises(RunError, match="another question's run"):
        ask_simulated(CountAndSum(table="t", epsilon=1.0), federation_file, folder=folder)
    answer = folder / "answer.json"
    text = answer.read_text()
    answer.write_text(text.replace("9", "8"))
    with pytest.raises(RunError, match="is not the answer that the run gave"):
        ask_simulated(QUESTION, federation_file, folder=folder)
    answer.write_text(text)
    with (federation_file.parent / "t.csv").open("a") as rows:
        rows.write("owner-0,7\n")
    with pytest.raises(RunError, match="a run over other rows"):
        ask_simulated(QUESTION, federation_file, folder=folder)


def test_some_owners_can_be_asked(federation_file: Path) -> None:
    answer = ask_simulated(QUESTION, federation_file, owners=["owner-2", "owner-0"])
    assert answer["by_owner"] == [2, 4]
    with pytest.raises(ConfigError, match="table 't' has no owner 'owner-7'; did you mean"):
        ask_simulated(QUESTION, federation_file, owners=["owner-7"])


class NothingToOpen(CountAndSum):
    """Whose first step has no entries, as where all cells are hidden."""

    def program(self, terms: MergedTerms) -> Program[Answer]:
        nothing = yield Sum(label="nothing", local=lambda rows: np.zeros(0, np.int64), length=0)
        counted = yield Sum(label="rows", local=lambda rows: np.array([len(rows)]), length=1)
        none = yield Compare(label="none", local=lambda rows: np.zeros(0, np.int64), thresholds=np.zeros(0, np.int64))
        return {"shown": len(nothing), "rows": int(counted[0]), "compared": none.tolist()}


@pytest.mark.parametrize("owners", [1, 3])
def test_a_step_without_entries_is_passed_over(owners: int) -> None:
    owned, events = tables(owners), list[Any]()
    question = NothingToOpen(table="t")
    answer = ask_owners(question, owned, dict.fromkeys(owned, TERMS), on_event=events.append)
    assert answer == expected(owned, question)
    assert [event.kind for event in events] == ["released", "round_finished", "answered"]


def test_a_sum_over_many_owners_and_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty owners, three batches: the first five compute, everybody opens the same."""
    monkeypatch.setattr("winnow.privacy.shares.party.MAX_RECEIVED_BYTES", 2_000)

    class Long(CountAndSum):
        def program(self, terms: MergedTerms) -> Program[Answer]:
            sums = yield Sum(label="long", local=lambda rows: np.arange(12) * len(rows), length=12)
            return {"sums": list(sums)}

    owned, question = tables(40), Long(table="t")
    assert ask_owners(question, owned, dict.fromkeys(owned, TERMS)) == expected(owned, question)
