"""The runner's federation keeps the right count: whose reply was folded, what is over, who is late."""

from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from winnow.core import Failure, Reply, Task, Until
from winnow.deploy.jobs import federation as jobs_federation
from winnow.deploy.jobs.federation import MAX_PEER_MESSAGE_BYTES, DeployedFederation, WallClock
from winnow.deploy.jobs.ipc import (
    DispatchTask,
    ExchangeMessage,
    JobSite,
    PauseDeadlines,
    ResultArrived,
    WithdrawTasks,
)
from winnow.deploy.wire.messages import ClientResult, DataDescription
from winnow.deploy.wire.task_digest import compute_task_id


class ScriptedLine:
    """Remembers what was sent, and gives the answers that a test has put in."""

    def __init__(self) -> None:
        self.sent: list[Any] = []
        self.answers: deque[ExchangeMessage] = deque()
        self.now = 0.0

    def send(self, message: Any) -> None:
        self.sent.append(message)

    def receive(self, wanted: type, timeout: float | None = None) -> Any:
        if self.answers:
            return self.answers.popleft()
        assert timeout is not None, "the runner would wait for ever"
        self.now += timeout + 1e-6  # as clocks do, it moves past the moment
        return None

    def dispatched(self) -> list[DispatchTask]:
        return [message for message in self.sent if isinstance(message, DispatchTask)]

    def answer(self, dispatch: DispatchTask, *clients: int) -> None:
        for client in clients:
            self.answers.append(ResultArrived(result=ClientResult(job="j", task=dispatch.task.id, client=client)))


@pytest.fixture
def line(monkeypatch: pytest.MonkeyPatch) -> ScriptedLine:
    """Its clock moves while the runner waits."""
    scripted = ScriptedLine()
    monkeypatch.setattr(jobs_federation, "time", SimpleNamespace(monotonic=lambda: scripted.now))
    return scripted


def federation(line: ScriptedLine, folder: Path, deadline: float | None = None) -> DeployedFederation:
    members = [
        JobSite(site="a", clients_from=0, data=DataDescription(sizes=[5, 5])),
        JobSite(site="b", clients_from=2, data=DataDescription(sizes=[5])),
    ]
    return DeployedFederation(line, members, folder, WallClock(), deadline)


def ask(client: int, name: str = "train", round: int = 1, **more: Any) -> Task:
    return Task(name=name, client=client, round=round, version=round - 1, **more)


def test_a_client_is_settled_in_the_round_that_folds_it_though_its_neighbour_is_still_at_work(
    line: ScriptedLine, tmp_path: Path
) -> None:
    deployed = federation(line, tmp_path)
    tasks = [ask(0), ask(1)]
    with deployed.dispatch(tasks) as exchange:
        (dispatch,) = line.dispatched()
        line.answer(dispatch, 0)
        first = next(iter(exchange))
        deployed.settle([first.task])
        assert deployed.over() == ({"a": {dispatch.task.id: [0]}}, {})
        line.answer(dispatch, 1)
        (second,) = exchange
        assert second.task is tasks[1]
    assert deployed.over() == ({}, {"a": [dispatch.task.id]})


def test_an_answer_that_waits_for_its_turn_is_not_over(line: ScriptedLine, tmp_path: Path) -> None:
    deployed = federation(line, tmp_path)
    slow = deployed.dispatch([ask(0)])
    with deployed.dispatch([ask(2, "evaluate-reference")]) as quick:
        trained, assessed = line.dispatched()
        line.answer(trained, 0)
        line.answer(assessed, 2)
        assert [outcome.task.client for outcome in quick] == [2]
    assert deployed.over() == ({}, {"b": [assessed.task.id]})
    outcome = next(iter(slow))
    deployed.settle([outcome.task])
    slow.close()
    assert deployed.over() == ({"a": {trained.task.id: [0]}}, {"a": [trained.task.id]})


def test_who_does_not_answer_in_time_has_failed_and_the_exchange_goes_on(line: ScriptedLine, tmp_path: Path) -> None:
    deployed = federation(line, tmp_path, deadline=0.05)
    with deployed.dispatch([ask(0), ask(2)]) as exchange:
        _, at_b = line.dispatched()
        line.answer(at_b, 2)
        replied, late = list(exchange)
        assert isinstance(replied, Reply)
        assert isinstance(late, Failure)
        assert "no answer within 0.05 seconds" in late.reason
        exchange.send([ask(2, round=2)])
        line.answer(line.dispatched()[-1], 2)
        assert [type(outcome) for outcome in exchange] == [Reply]
    assert [message.site for message in line.sent if isinstance(message, WithdrawTasks)] == ["a"]


def test_no_deadline_passes_while_the_job_waits_for_sites(line: ScriptedLine, tmp_path: Path) -> None:
    deployed = federation(line, tmp_path, deadline=0.2)
    with deployed.dispatch([ask(0), ask(1)], Until(seconds=0.4)) as exchange:
        (dispatch,) = line.dispatched()
        line.answers.append(PauseDeadlines(on=True))
        line.answer(dispatch, 0)
        assert isinstance(next(iter(exchange)), Reply)
        line.now += 0.5
        line.answers.append(PauseDeadlines(on=False))
        line.answer(dispatch, 1)
        assert isinstance(next(iter(exchange)), Reply)
        exchange.send([ask(2)])
        (late,) = exchange
        assert isinstance(late, Failure)


def test_an_exchange_that_has_waited_long_enough_ends_without_failures(line: ScriptedLine, tmp_path: Path) -> None:
    deployed = federation(line, tmp_path)
    with deployed.dispatch([ask(0)], Until(seconds=0.02)) as exchange:
        assert list(exchange) == []
    assert deployed.over()[1] == {"a": [line.dispatched()[0].task.id]}


def test_many_letters_go_in_several_messages(line: ScriptedLine, tmp_path: Path) -> None:
    letter = b"x" * (MAX_PEER_MESSAGE_BYTES // 2 + 1)
    federation(line, tmp_path).dispatch([ask(0, peer_messages={2: letter}), ask(1, peer_messages={2: letter})])
    assert [dispatch.task.clients for dispatch in line.dispatched()] == [[0], [1]]


def test_a_task_is_named_by_what_it_says(line: ScriptedLine, tmp_path: Path) -> None:
    deployed = federation(line, tmp_path)
    for client, number in ((0, 1), (0, 1), (1, 1), (0, 2)):
        deployed.dispatch([ask(client, round=number)])
    one, same, *others = (dispatch.task.id for dispatch in line.dispatched())
    assert one == same
    assert len({one, *others}) == 3
    assert all(dispatch.task.id == compute_task_id(dispatch.task) for dispatch in line.dispatched())
