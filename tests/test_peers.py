"""Averaging among peers: it gives the server's averages, and nobody on the way can change or read one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
import torch
from msgspec.structs import replace

from meddling import Liar
from winnow.core import ConfigError, Outcome, Rejected, Reply, RoundFinished, Task
from winnow.core.message_decoding import UnreadableError
from winnow.experiment.build_simulation import PreparedRun
from winnow.experiment.build_training_workflow import RunInputs
from winnow.experiment.run import run_experiment
from winnow.learn.stack import ModelState
from winnow.privacy.peers.peer_messages import ModelMessage, decode_statement, decrypt_model, encrypt_model
from winnow.privacy.peers.peer_site import AVERAGE, BOX, KEEP, PEERS, average_models
from world import blobs, experiment, prepared

SETS = ("select.count=3", "data.local_test=0.3", "evaluation.by=clients", "aggregate.name=partial")
PEERS_ONLY = (*SETS, "collect={name='peers'}", "select.count=8")
TOLD = (*SETS, "collect={name='peers', average_to_server=true}")


def run(*sets: str, algorithm: str = "fedavg-rp") -> tuple[PreparedRun, list[Any]]:
    made = prepared(*sets, algorithm=algorithm)
    return made, list(made.training.run(made.federation))


def same(one: ModelState, other: ModelState) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("algorithm", ["fedavg-rp", "fedper"])
def test_peers_come_to_the_servers_average_bit_for_bit(algorithm: str) -> None:
    """Once when they tell it, and once when each keeps it to itself."""
    everybody = (*SETS, "select.count=8")
    by_server, _ = run(*everybody, algorithm=algorithm)
    told, _ = run(*TOLD, "select.count=8", algorithm=algorithm)
    assert same(dict(by_server.training.model), dict(told.training.model))
    secret, _ = run(*PEERS_ONLY, algorithm=algorithm)
    shared = by_server.training.shared
    for client in range(8):
        assert same(dict(secret.store.read(client)[PEERS]), dict(shared))
    assert same(dict(secret.training.model), dict(secret.training.initial)), "the server has learnt nothing"


def test_scores_are_those_of_the_servers_way() -> None:
    *_, by_server = (event for event in run(*SETS, "select.count=8")[1] if isinstance(event, RoundFinished))
    *_, secret = (event for event in run(*PEERS_ONLY)[1] if isinstance(event, RoundFinished))
    assert by_server.metrics["clients"] == secret.metrics["clients"]


def test_a_killed_run_goes_on_to_the_same_models(tmp_path: Path) -> None:
    wanted = experiment(*PEERS_ONLY, algorithm="fedper")
    inputs = RunInputs(dataset=blobs())
    whole = run_experiment(wanted, inputs=inputs, out=tmp_path / "whole")

    def killed(event: Any) -> None:
        if isinstance(event, RoundFinished) and event.round == 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run_experiment(wanted, inputs=inputs, out=tmp_path / "part", on_event=killed)
    resumed = run_experiment(wanted, inputs=inputs, out=tmp_path / "part", resume=True)
    for client in range(3):
        assert same(whole.personal(client).state_dict(), resumed.personal(client).state_dict())


def test_who_missed_a_round_takes_over_the_others_average() -> None:
    """With three of eight a round, starts differ: the common one counts, and everybody in the round has one model."""
    _, events = run(*TOLD, "rounds=6")
    assert not [event for event in events if isinstance(event, Rejected)]
    finished = [event for event in events if isinstance(event, RoundFinished)]
    assert len(finished) == 6


# What the server passes on --------------------------------------------------------------------------------------------


def lied(rounds: int = 2, **lies: Any) -> tuple[PreparedRun, list[str]]:
    made = prepared(*PEERS_ONLY, f"rounds={rounds}", algorithm="fedavg-rp")
    events = list(made.training.run(Liar(made.federation, **lies)))
    return made, [event.reason for event in events if isinstance(event, Rejected)]


def nobody_keeps_anything(made: PreparedRun) -> bool:
    return all(PEERS not in made.store.read(client) for client in range(8))


def test_a_server_that_keeps_a_letter_back_stops_the_round() -> None:
    def without_letter(task: Task) -> Task:
        if task.name == AVERAGE and task.client == 5:
            return replace(task, peer_messages={k: text for k, text in task.peer_messages.items() if k != 2})
        return task

    made, reasons = lied(task=without_letter)
    assert nobody_keeps_anything(made)
    assert any("the message of client 2 reached only one of us and client 5" in reason for reason in reasons)


def test_a_server_that_swaps_boxes_changes_no_average() -> None:
    """Letters say which box they are about; the model in another is not taken for it."""

    def swapped(task: Task) -> Task:
        if task.name != AVERAGE:
            return task
        boxes = dict(task.payload[BOX])
        boxes["1"], boxes["2"] = boxes["2"], boxes["1"]
        return replace(task, payload={BOX: boxes})

    made, reasons = lied(task=swapped)
    assert nobody_keeps_anything(made)  # each has its own box and others' swapped ones: averages differ
    assert any("comes to another average" in reason for reason in reasons)


def test_a_server_that_keeps_statements_back_stops_the_round() -> None:
    made, reasons = lied(task=lambda task: replace(task, peer_messages={}) if task.name == KEEP else task)
    assert nobody_keeps_anything(made)
    assert any("did not state what it averaged" in reason for reason in reasons)


def test_a_server_that_asks_for_a_step_of_another_round_gets_nothing() -> None:
    made, reasons = lied(task=lambda task: replace(task, round=7) if task.name == AVERAGE else task)
    assert nobody_keeps_anything(made)
    assert any("there is no update of this round" in reason for reason in reasons)


def test_a_server_cannot_choose_the_model_that_clients_train() -> None:
    def poisoned(task: Task) -> Task:
        if task.name != "train":
            return task
        model = {name: torch.full_like(tensor, 7.0) for name, tensor in task.payload["model"].items()}
        return replace(task, payload={**task.payload, "model": model})

    honest, _ = run(*PEERS_ONLY, "rounds=2")
    made, reasons = lied(task=poisoned)
    assert not reasons
    assert same(dict(made.store.read(0)[PEERS]), dict(honest.store.read(0)[PEERS]))


def test_a_server_that_names_too_few_members_gets_nothing() -> None:
    def alone(task: Task) -> Task:
        if task.name != "train":
            return task
        return replace(task, payload={**task.payload, PEERS: {"members": np.array([float(task.client)])}})

    made, reasons = lied(task=alone)
    assert nobody_keeps_anything(made)
    assert any("a round among peers takes 2 members" in reason for reason in reasons)


# What a peer writes ---------------------------------------------------------------------------------------------------


def test_a_peer_that_writes_different_things_is_named() -> None:
    def two_faced(outcome: Outcome) -> Outcome:
        if not isinstance(outcome, Reply) or outcome.task.name != "train" or outcome.task.client != 3:
            return outcome
        message = msgspec.msgpack.decode(outcome.peer_messages[0], type=ModelMessage)
        other = msgspec.msgpack.encode(msgspec.structs.replace(message, samples=message.samples + 1))
        return replace(outcome, peer_messages={**outcome.peer_messages, 0: other})

    made, reasons = lied(outcome=two_faced)
    assert nobody_keeps_anything(made)
    assert any("client 3 wrote one thing to us and another to client" in reason for reason in reasons)


MODEL = {"a": torch.ones(2, 3), "b": torch.zeros(4)}


@pytest.mark.parametrize(
    "model",
    [
        {"a": torch.full((2, 3), torch.nan), "b": torch.zeros(4)},
        {"a": torch.full((2, 3), torch.inf), "b": torch.zeros(4)},
        {"a": torch.full((2, 3), 1e30), "b": torch.zeros(4)},
        {"a": torch.ones(2, 4), "b": torch.zeros(4)},
        {"a": torch.ones(2, 3)},
    ],
    ids=["nan", "infinite", "too large", "another shape", "a tensor missing"],
)
def test_what_cannot_be_a_model_counts_for_nobody(model: ModelState) -> None:
    boxes, messages = _written({0: MODEL, 1: {name: 3 * tensor for name, tensor in MODEL.items()}, 2: model})
    assert same(average_models(messages, boxes, MODEL), {"a": torch.full((2, 3), 2.0), "b": torch.zeros(4)})


@pytest.mark.parametrize("text", [b"", b"\xc1", msgspec.msgpack.encode({"start": b"x"}), b"\xdd\xff\xff\xff\xff"])
def test_a_letter_that_is_none_is_unreadable(text: bytes) -> None:
    with pytest.raises(UnreadableError):
        decrypt_model(text, b"", MODEL)


@pytest.mark.parametrize("lie", [{"samples": 0}, {"samples": -1}, {"samples": 1 << 60}, {"version": -1}, {"key": b""}])
def test_a_letter_with_impossible_numbers_is_unreadable(lie: dict[str, Any]) -> None:
    (box,), (text,) = (each.values() for each in _written({0: MODEL}))
    fields = msgspec.msgpack.decode(text) | lie
    with pytest.raises(UnreadableError):
        decrypt_model(msgspec.msgpack.encode(fields), box, MODEL)


def test_a_statement_that_is_none_is_unreadable() -> None:
    for text in (b"", b"\xc0", msgspec.msgpack.encode({"messages": {1: b"short"}, "average": b"short"})):
        with pytest.raises(UnreadableError):
            decode_statement(text)


def test_the_average_is_that_of_the_start_that_most_have() -> None:
    stale = {name: tensor + 9 for name, tensor in MODEL.items()}
    boxes, messages = _written({0: MODEL, 1: MODEL})
    boxes[2], messages[2] = encrypt_model(stale, stale, 5, 100)
    assert same(average_models(messages, boxes, MODEL), MODEL)


def test_a_box_reads_as_nothing_without_its_letter() -> None:
    box, message = encrypt_model(MODEL, MODEL, 0, 1)
    other = encrypt_model(MODEL, MODEL, 0, 1)[1]
    assert torch.ones(6).numpy().tobytes() not in box
    key = msgspec.msgpack.decode(other, type=ModelMessage).key
    forged = msgspec.structs.replace(msgspec.msgpack.decode(message, type=ModelMessage), key=key)
    with pytest.raises(UnreadableError, match="does not open"):
        decrypt_model(msgspec.msgpack.encode(forged), box, MODEL)


def _written(models: dict[int, ModelState]) -> tuple[dict[int, bytes], dict[int, bytes]]:
    made = {client: encrypt_model(model, MODEL, 0, 10) for client, model in models.items()}
    return {k: box for k, (box, _) in made.items()}, {k: message for k, (_, message) in made.items()}


# Configuration --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sets", "words"),
    [
        (("collect.name=peers", "evaluation.by=reference"), "leaves the server without a trained model"),
        (("collect.name=peers", "aggregate.weights=uniform"), "aggregate.weights to 'size'"),
        (("collect.name=peers", "aggregate.name=median"), "requires aggregate.name = 'partial'"),
        (("collect={name='peers', min_clients=9}",), "collect.min_clients = 9"),
    ],
)
def test_what_cannot_be_combined_is_one_line(sets: Sequence[str], words: str) -> None:
    with pytest.raises(ConfigError, match=words) as refused:
        prepared(*SETS, "select.count=8", *sets, algorithm="fedavg-rp")
    assert "\n" not in str(refused.value)


def test_a_server_that_is_told_different_averages_takes_none() -> None:
    def other(outcome: Outcome) -> Outcome:
        if isinstance(outcome, Reply) and outcome.task.name == KEEP and outcome.task.client == 1:
            model = {name: tensor + 1 for name, tensor in outcome.payload["model"].items()}
            return replace(outcome, payload={"model": model})
        return outcome

    made = prepared(*TOLD, "select.count=8", "rounds=1", algorithm="fedavg-rp")
    events = list(made.training.run(Liar(made.federation, outcome=other)))
    assert any("different averages" in event.reason for event in events if isinstance(event, Rejected))
    assert same(dict(made.training.model), dict(made.training.initial))
