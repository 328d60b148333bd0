"""The runner's federation: whose reply was aggregated, which tasks have ended, who is late."""

from collections import deque
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from winnow.core import Failure, Reply, Task, Until
from winnow.deploy.jobs import job_clocks
from winnow.deploy.jobs.federation import DeployedFederation
from winnow.deploy.jobs.ipc_messages import (
    DispatchTask,
    ExchangeMessage,
    JobSite,
    PauseDeadlines,
    ResultArrived,
    WithdrawTasks,
)
from winnow.deploy.jobs.job_clocks import WallClock
from winnow.deploy.jobs.wire_tasks import MAX_PEER_MESSAGE_BYTES
from winnow.deploy.wire.messages import ClientResult, DataDescription
from winnow.deploy.wire.task_digest import compute_task_id


class ScriptedChannel:
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
def channel(monkeypatch: pytest.MonkeyPatch) -> ScriptedChannel:
    """Its clock moves while the runner waits."""
    scripted = ScriptedChannel()
    monkeypatch.setattr(job_clocks, "time", SimpleNamespace(monotonic=lambda: scripted.now))
    return scripted


def federation(channel: ScriptedChannel, folder: Path, task_timeout: float | None = None) -> DeployedFederation:
    members = [
        JobSite(site="a", first_client=0, data=DataDescription(sizes=[5, 5])),
        JobSite(site="b", first_client=2, data=DataDescription(sizes=[5])),
    ]
    return DeployedFederation(channel, members, folder, WallClock(), task_timeout)


def ask(client: int, name: str = "train", round: int = 1, **more: Any) -> Task:
    return Task(name=name, client=client, round=round, version=round - 1, **more)


def test_a_client_is_settled_in_the_round_that_aggregates_it_though_its_neighbour_still_computes(
    channel: ScriptedChannel, tmp_path: Path
) -> None:
    deployed = federation(channel, tmp_path)
    tasks = [ask(0), ask(1)]
    with deployed.dispatch(tasks) as exchange:
        (dispatch,) = channel.dispatched()
        channel.answer(dispatch, 0)
        first = next(iter(exchange))
        deployed.settle([first.task])
        assert deployed.end_round() == ({"a": {dispatch.task.id: [0]}}, {})
        channel.answer(dispatch, 1)
        (second,) = exchange
        assert second.task is tasks[1]
    assert deployed.end_round() == ({}, {"a": [dispatch.task.id]})


def test_a_result_that_was_not_handed_on_does_not_end_its_task(channel: ScriptedChannel, tmp_path: Path) -> None:
    deployed = federation(channel, tmp_path)
    slow = deployed.dispatch([ask(0)])
    with deployed.dispatch([ask(2, "evaluate-reference")]) as quick:
        trained, assessed = channel.dispatched()
        channel.answer(trained, 0)
        channel.answer(assessed, 2)
        assert [outcome.task.client for outcome in quick] == [2]
    assert deployed.end_round() == ({}, {"b": [assessed.task.id]})
    outcome = next(iter(slow))
    deployed.settle([outcome.task])
    slow.close()
    assert deployed.end_round() == ({"a": {trained.task.id: [0]}}, {"a": [trained.task.id]})


def test_who_does_not_answer_in_time_has_failed_and_the_exchange_goes_on(
    channel: ScriptedChannel, tmp_path: Path
) -> None:
    deployed = federation(channel, tmp_path, task_timeout=0.05)
    with deployed.dispatch([ask(0), ask(2)]) as exchange:
        _, at_b = channel.dispatched()
        channel.answer(at_b, 2)
        replied, late = list(exchange)
        assert isinstance(replied, Reply)
        assert isinstance(late, Failure)
        assert "no answer within 0.05 seconds" in late.reason
        exchange.send([ask(2, round=2)])
        channel.answer(channel.dispatched()[-1], 2)
        assert [type(outcome) for outcome in exchange] == [Reply]
    assert [message.site for message in channel.sent if isinstance(message, WithdrawTasks)] == ["a"]


def test_a_cancelled_task_is_withdrawn_and_its_client_can_be_given_another(
    channel: ScriptedChannel, tmp_path: Path
) -> None:
    """A late result of the old task is passed over; a wire task of two clients goes on for the other one."""
    deployed = federation(channel, tmp_path)
    with deployed.dispatch([ask(0), ask(1), ask(2)]) as exchange:
        at_a, at_b = channel.dispatched()
        exchange.cancel({0, 2})
        assert [message.tasks for message in channel.sent if isinstance(message, WithdrawTasks)] == [[at_b.task.id]]
        again = ask(2, round=2)
        exchange.send([again])
        channel.answer(at_a, 0, 1)
        channel.answer(at_b, 2)
        channel.answer(channel.dispatched()[-1], 2)
        assert [(outcome.task.client, outcome.task.round) for outcome in exchange] == [(1, 1), (2, 2)]
    settled, ended = deployed.end_round()
    assert settled == {}
    assert {site: set(tasks) for site, tasks in ended.items()} == {
        "a": {at_a.task.id},
        "b": {at_b.task.id, channel.dispatched()[-1].task.id},
    }


def test_no_deadline_passes_while_the_job_waits_for_sites(channel: ScriptedChannel, tmp_path: Path) -> None:
    deployed = federation(channel, tmp_path, task_timeout=0.2)
    with deployed.dispatch([ask(0), ask(1)], Until(seconds=0.4)) as exchange:
        (dispatch,) = channel.dispatched()
        channel.answers.append(PauseDeadlines(on=True))
        channel.answer(dispatch, 0)
        assert isinstance(next(iter(exchange)), Reply)
        channel.now += 0.5
        channel.answers.append(PauseDeadlines(on=False))
        channel.answer(dispatch, 1)
        assert isinstance(next(iter(exchange)), Reply)
        exchange.send([ask(2)])
        (late,) = exchange
        assert isinstance(late, Failure)


def test_an_exchange_that_has_waited_long_enough_ends_without_failures(
    channel: ScriptedChannel, tmp_path: Path
) -> None:
    deployed = federation(channel, tmp_path)
    with deployed.dispatch([ask(0)], Until(seconds=0.02)) as exchange:
        assert list(exchange) == []
    assert deployed.end_round()[1] == {"a": [channel.dispatched()[0].task.id]}


def test_many_peer_messages_go_in_several_tasks(channel: ScriptedChannel, tmp_path: Path) -> None:
    message = b"x" * (MAX_PEER_MESSAGE_BYTES // 2 + 1)
    federation(channel, tmp_path).dispatch([ask(0, peer_messages={2: message}), ask(1, peer_messages={2: message})])
    assert [dispatch.task.clients for dispatch in channel.dispatched()] == [[0], [1]]


def test_a_task_is_named_by_what_it_says(channel: ScriptedChannel, tmp_path: Path) -> None:
    deployed = federation(channel, tmp_path)
    for client, number in ((0, 1), (0, 1), (1, 1), (0, 2)):
        deployed.dispatch([ask(client, round=number)])
    one, same, *others = (dispatch.task.id for dispatch in channel.dispatched())
    assert one == same
    assert len({one, *others}) == 3
    assert all(dispatch.task.id == compute_task_id(dispatch.task) for dispatch in channel.dispatched())
