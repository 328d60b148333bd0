"""Ways to talk to clients, and the workflows made of them, in a simulation."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

import winnow
from winnow.core import ConfigError, Failure, Outcome, Population, Reply, RoundFinished, Task
from winnow.core.basic_workflows import CyclicTransfer, ScatterAndGather, WeightedMean
from winnow.core.broadcast_and_relay import broadcast, first, peer_messages, relay, send, wait
from winnow.fleet import Devices
from winnow.simulate import SimulatedFederation

SIZES = np.array([3, 1, 4, 1, 5])


def add_number(tasks: Sequence[Task], _: None) -> list[Outcome]:
    """Each client adds its number to what it was sent; client 3 fails."""
    return [
        Failure(task=task, stage="adding", reason="it is tired")
        if task.client == 3
        else Reply(
            task=task, payload={"model": {"x": _sent(task) + task.client}}, peer_messages={0: bytes([task.client])}
        )
        for task in tasks
    ]


def _sent(task: Task) -> Any:
    return task.payload["model"]["x"] if task.payload else np.zeros(2)


def a_federation(handler: Any = add_number) -> SimulatedFederation[None]:
    fleet = Devices().draw(len(SIZES), seed=1)
    return SimulatedFederation(site=None, handlers={"add": handler}, population=Population(sizes=SIZES), fleet=fleet)


def asking(client: int = 0, **more: Any) -> Task:
    return Task(name="add", client=client, round=1, version=0, **more)


def clients_of(outcomes: Sequence[Outcome], kind: type[Any] = Reply) -> list[int]:
    return [outcome.task.client for outcome in outcomes if isinstance(outcome, kind)]


def test_broadcast_asks_everyone_the_same() -> None:
    outcomes = wait(broadcast(a_federation(), asking(), range(5)))
    assert clients_of(outcomes) == [0, 1, 2, 4]
    assert clients_of(outcomes, Failure) == [3]


def test_send_asks_each_its_own() -> None:
    tasks = [asking(client, payload={"model": {"x": np.full(2, 10.0 * client)}}) for client in (4, 1)]
    one, four = wait(send(a_federation(), *tasks))
    assert [one.payload["model"]["x"].tolist(), four.payload["model"]["x"].tolist()] == [[11, 11], [44, 44]]


def test_first_is_over_when_enough_have_replied_and_a_failure_is_no_reply() -> None:
    with first(a_federation(), 4, asking(), range(5)) as exchange:
        assert sorted(clients_of(list(exchange))) == [0, 1, 2, 4]
    with first(a_federation(), 2, asking(), range(5)) as exchange:
        assert len(clients_of(list(exchange))) == 2


def test_an_exchange_that_is_not_waited_for_stays_open_beside_others() -> None:
    federation = a_federation()
    everyone = broadcast(federation, asking(), range(5))
    assert clients_of(wait(send(federation, asking(2)))) == [2]
    everyone.send([asking(1)])
    assert clients_of(wait(everyone)) == [0, 1, 1, 2, 4]


@pytest.mark.parametrize("number", [np.float64(0.5), np.float32(0.5), np.int64(2), 2, 0.5])
def test_a_metric_that_numpy_computed_is_a_number(number: Any) -> None:
    def measure(tasks: Sequence[Task], _: None) -> list[Outcome]:
        return [Reply(task=task, metrics={"mean": number}) for task in tasks]

    [outcome] = relay(a_federation(measure), asking(), [2])
    assert isinstance(outcome, Reply), outcome
    assert outcome.metrics["mean"] == number


def test_relay_passes_on_what_was_replied_and_passes_over_who_fails() -> None:
    steps = list(relay(a_federation(), asking(payload={"model": {"x": np.zeros(2)}}), [2, 3, 4, 1]))
    assert clients_of(steps) == [2, 4, 1]
    assert [step.payload["model"]["x"][0] for step in steps if isinstance(step, Reply)] == [2, 6, 7]


def test_messages_are_sorted_by_addressee_and_sender() -> None:
    post = peer_messages(wait(broadcast(a_federation(), asking(), range(5))))
    assert post == {0: {0: b"\x00", 1: b"\x01", 2: b"\x02", 4: b"\x04"}}


def test_a_mean_is_that_of_all_arrays_by_weight() -> None:
    rng = np.random.default_rng(0)
    groups = [{"a": rng.normal(size=3), "b": rng.normal(size=(2, 2))} for _ in range(4)]
    weights = [1.0, 2.0, 0.5, 4.0]
    mean = WeightedMean(groups, weights)
    for name in ("a", "b"):
        np.testing.assert_allclose(mean[name], np.average([group[name] for group in groups], axis=0, weights=weights))


def test_scatter_and_gather_weighs_by_samples_and_leaves_out_who_fails() -> None:
    workflow = ScatterAndGather("add", {"x": np.zeros(2)}, rounds=3)
    events = list(workflow.run(a_federation()))
    gain = (0 * 3 + 1 * 1 + 2 * 4 + 4 * 5) / 13
    np.testing.assert_allclose(workflow.arrays["x"], np.full(2, 3 * gain))
    rounds = [event for event in events if isinstance(event, RoundFinished)]
    assert [event.aggregated.tolist() for event in rounds] == [[0, 1, 2, 4]] * 3
    assert [event.client for event in events if event.kind == "rejected"] == [3] * 3


def test_a_cyclic_transfer_visits_all_in_turn() -> None:
    workflow = CyclicTransfer("add", {"x": np.zeros(2)}, rounds=2)
    list(workflow.run(a_federation()))
    assert workflow.arrays["x"].tolist() == [14, 14]


@pytest.mark.parametrize("kind", [ScatterAndGather, CyclicTransfer])
def test_a_workflow_goes_on_where_its_snapshot_was_taken(kind: Any) -> None:
    whole = kind("add", {"x": np.zeros(2)}, 3)
    list(whole.run(a_federation()))
    begun = kind("add", {"x": np.zeros(2)}, 3)
    for event in begun.run(a_federation()):
        if event.kind == "round_finished":
            break
    after = kind("add", {"x": np.zeros(2)}, 3)
    after.restore(begun.snapshot())
    list(after.run(a_federation()))
    np.testing.assert_array_equal(after.arrays["x"], whole.arrays["x"])


@pytest.mark.parametrize("payload", [{}, {"model": {"y": np.ones(2)}}, {"another": {"x": np.ones(2)}}])
def test_a_reply_without_the_arrays_that_were_sent_is_refused_by_name(payload: Any) -> None:
    def forgetful(tasks: Sequence[Task], _: None) -> list[Outcome]:
        return [Reply(task=task, payload=payload) for task in tasks]

    workflow = ScatterAndGather("add", {"x": np.zeros(2)}, rounds=1)
    events = list(workflow.run(a_federation(forgetful)))
    refused = [event.reason for event in events if event.kind == "rejected"]
    assert refused == ["part 'model' of the reply does not have the same arrays as the task"] * 5
    assert workflow.arrays["x"].tolist() == [0, 0]


def test_conduct_gives_events_and_each_client_its_own_samples() -> None:
    seen: dict[int, int] = {}

    def count(tasks: Sequence[Task], holdings: Any) -> list[Outcome]:
        seen.update({task.client: len(holdings.examples(task.client)) for task in tasks})
        return [Reply(task=task, payload={"model": {"n": np.array([1.0])}}, metrics={"loss": 2.0}) for task in tasks]

    told = list[str]()
    events = winnow.run_workflow(
        ScatterAndGather("count", {"n": np.zeros(1)}, rounds=2),
        {"count": count},
        data={"name": "digits", "clients": 4, "reference": 100, "test": 97},
        on_event=lambda event: told.append(event.kind),
    )
    assert sum(seen.values()) == 1600
    assert [event.kind for event in events] == told == ["selected", "round_finished"] * 2
    assert events[-1].loss == 2.0


def test_a_mistake_in_the_data_is_one_line() -> None:
    with pytest.raises(ConfigError, match="client") as raised:
        winnow.run_workflow(ScatterAndGather("x", {}, 1), {}, data={"name": "digits", "cliets": 3})
    assert "\n" not in str(raised.value)
