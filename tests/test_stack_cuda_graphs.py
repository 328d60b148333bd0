"""Training in CUDA graphs: equal to a plain loop on the CPU, repeatable, resumable, in chunks where memory is short.

Skipped where there is no CUDA device.
"""

import copy

import numpy as np
import pytest
import torch
from torch import nn

from cohort_training import train
from support.needs import GPU
from winnow.core import RoundFinished
from winnow.experiment import build_simulation
from winnow.experiment.build_simulation import PreparedRun, prepare_run
from winnow.experiment.build_training_workflow import RunInputs
from winnow.learn.accelerated_sgd import AcceleratedSgd
from winnow.learn.local_optimiser import Adam, LocalOptimiser, Sgd
from winnow.learn.models import ModelSettings, build_model
from winnow.learn.stack import (
    LOSSES,
    LocalStart,
    TensorData,
    choose_execution,
    clients_that_fit,
    model_state,
)
from winnow.runs.event_log import encode_event
from world import blobs, experiment

pytestmark = [
    GPU.unless(torch.cuda.is_available()),
    pytest.mark.filterwarnings("ignore:RNN module weights"),  # torch's own, about speed, in the trial of the LSTM
]

RATE = 2.0**-10
"""Exact in float32, in which a graph keeps it, so that float64 results may be compared closely."""

SIZES = [20, 33, 7, 16, 40]
CASES = {"mlp": (9,), "lenet5": (1, 28, 28), "resnet18": (3, 32, 32), "shufflenet-v2": (3, 32, 32), "lstm": (6, 4)}


def ragged(shape: tuple[int, ...], device: str) -> TensorData:
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(sum(SIZES), *shape)), rng.integers(0, 10, sum(SIZES))
    offsets = np.concatenate([[0], np.cumsum(SIZES)])
    return TensorData(
        x=torch.from_numpy(x).to(device), y=torch.from_numpy(y).to(device), rows=np.arange(len(x)), offsets=offsets
    )


@pytest.mark.parametrize(
    "local",
    [
        Sgd(epochs=1, batch_size=8, learning_rate=RATE, momentum=0.875, weight_decay=RATE),
        Adam(epochs=1, batch_size=8, learning_rate=RATE),
    ],
    ids=["sgd", "adam"],
)
@pytest.mark.parametrize("name", CASES)
def test_graphs_equal_a_plain_loop(name: str, local: LocalOptimiser) -> None:
    plain = build_model(ModelSettings.members[name](), CASES[name], 10, 0).double()
    trained = []
    for device, force in (("cpu", "loop"), ("cuda", "stacked")):
        model, data = copy.deepcopy(plain).to(device), ragged(CASES[name], device)
        execution = choose_execution(model, data.x[:4], data.y[:4], LOSSES["cross-entropy"], force)
        for number in (1, 2) if device == "cuda" else (2,):  # the second round replays what the first one captured
            result = train(
                execution,
                LocalStart.shared(model_state(model)),
                local,
                data,
                np.array([3, 0, 2, 4, 1]),
                round=number,
                seed=0,
            )
        trained.append({key: tensor.cpu() for key, tensor in result.states.items()})
    for key, expected in trained[0].items():
        torch.testing.assert_close(trained[1][key], expected, rtol=1e-5, atol=1e-7, msg=f"{name} {key}")


@pytest.mark.slow(part="executions")
@pytest.mark.parametrize("name", ["lenet5", "shufflenet-v2"])
def test_compiled_graphs_equal_a_plain_loop(name: str) -> None:
    """Batches of 8 are full in most steps of these clients, and only such steps of all clients are compiled."""
    plain = build_model(ModelSettings.members[name](), CASES[name], 10, 0).double()
    local = Sgd(epochs=2, batch_size=8, learning_rate=RATE, momentum=0.875)
    trained = []
    for device, force in (("cpu", "loop"), ("cuda", "stacked")):
        model, data = copy.deepcopy(plain).to(device), ragged(CASES[name], device)
        execution = choose_execution(
            model, data.x[:4], data.y[:4], LOSSES["cross-entropy"], force, compiled=device == "cuda"
        )
        start = LocalStart.shared(model_state(model))
        result = train(execution, start, local, data, np.array([3, 0, 4, 1]), round=1, seed=0)
        trained.append({key: tensor.cpu() for key, tensor in result.states.items()})
    for key, expected in trained[0].items():
        torch.testing.assert_close(trained[1][key], expected, rtol=1e-5, atol=1e-7, msg=f"{name} {key}")


@pytest.mark.parametrize(("name", "head"), [("mlp", 2), ("lenet5", 4)])
def test_the_end_of_a_model_is_trained_by_graphs_that_are_kept(name: str, head: int) -> None:
    """What the beginning makes of samples changes from round to round; the graphs read it from one place."""
    plain = build_model(ModelSettings.members[name](), CASES[name], 10, 0).double()
    local = Sgd(epochs=3, batch_size=8, learning_rate=RATE, momentum=0.875)
    trained = []
    for device, force in (("cpu", "loop"), ("cuda", "stacked")):
        model, data = copy.deepcopy(plain).to(device), ragged(CASES[name], device)
        execution = choose_execution(model, data.x[:4], data.y[:4], LOSSES["cross-entropy"], force)
        state = model_state(model)
        for number in (1, 2):
            begin = {key: (tensor * number).unsqueeze(0) for key, tensor in state.items()}
            local_start = LocalStart(states=begin, trainable=frozenset(list(state)[-head:]))
            result = train(execution, local_start, local, data, np.array([3, 0, 2, 4, 1]), round=number, seed=0)
        trained.append({key: tensor.cpu() for key, tensor in result.states.items()})
    for key, expected in trained[0].items():
        torch.testing.assert_close(trained[1][key], expected, rtol=1e-5, atol=1e-7, msg=f"{name} {key}")


@pytest.mark.parametrize("conditions", ["I", "II"])
def test_sequences_that_are_sent_come_back_from_graphs(conditions: str) -> None:
    """Accelerated steps begin with the w and ag that they are given, clients with unequal steps."""
    plain = build_model(ModelSettings.members["mlp"](), CASES["mlp"], 10, 0).double()
    local = AcceleratedSgd(epochs=2, batch_size=8, learning_rate=RATE, mu=0.5, conditions=conditions, weight_decay=RATE)
    trained = []
    for device, force in (("cpu", "loop"), ("cuda", "stacked")):
        model, data = copy.deepcopy(plain).to(device), ragged(CASES["mlp"], device)
        execution = choose_execution(model, data.x[:4], data.y[:4], LOSSES["cross-entropy"], force)
        ag = model_state(model)
        for number in (1, 2):  # the second round replays what the first one captured, from another w
            w = {key: tensor * (1 + number / 4) for key, tensor in ag.items()}
            begin = {key: local.query_point(w[key], ag[key]).unsqueeze(0) for key in ag}
            slots = tuple({key: tensor.unsqueeze(0) for key, tensor in slot.items()} for slot in (w, ag))
            start = LocalStart(states=begin, slots=slots)
            result = train(execution, start, local, data, np.array([3, 0, 2, 4, 1]), round=number, seed=0)
        trained.append([{k: t.cpu() for k, t in part.items()} for part in (result.states, *result.slots)])
    assert len(trained[0]) == len(trained[1]) == 3
    for expected, found in zip(*trained, strict=True):
        for key, tensor in expected.items():
            torch.testing.assert_close(found[key], tensor, rtol=1e-5, atol=1e-7, msg=key)


@pytest.mark.parametrize("algorithm", ["fedac", "fedaq", "fedcomgate"])
def test_accelerated_and_quantised_rounds_equal_those_of_the_cpu(algorithm: str) -> None:
    still = ("local.momentum=0.0",) if algorithm == "fedcomgate" else ()
    trained = []
    for device in ("cpu", "cuda"):
        settings = experiment(f"engine.device={device}", "select.count=8", *still, "filters=[]", algorithm=algorithm)
        ready = prepare_run(settings, RunInputs(dataset=blobs()))
        log_of(ready)
        trained.append(ready.training.model)
    for name, tensor in trained[0].items():
        torch.testing.assert_close(trained[1][name].cpu(), tensor, rtol=1e-3, atol=1e-4)


def with_dropout() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(5, 16), nn.ReLU(), nn.Dropout(0.5), nn.Linear(16, 3))


def losses(steps: int) -> torch.Tensor:
    """Mean losses over so many steps on one and the same batch, at a rate that moves no parameter."""
    data, model = ragged((5,), "cuda"), with_dropout().double().cuda()
    y = data.y % 3
    execution = choose_execution(model, data.x[:4], y[:4], LOSSES["cross-entropy"], "stacked")
    local = Sgd(steps=steps, batch_size=max(SIZES), learning_rate=1e-30)
    data = TensorData(x=data.x, y=y, rows=data.rows, offsets=data.offsets)
    start, clients = LocalStart.shared(model_state(model)), np.arange(len(SIZES))
    return train(execution, start, local, data, clients, round=1, seed=0).loss


def test_dropout_draws_anew_in_every_replay_and_repeats_under_a_seed() -> None:
    assert torch.equal(losses(2), losses(2))
    assert not torch.isclose(losses(1), losses(2)).any()


def on_cuda(*sets: str, **options: object) -> PreparedRun:
    settings = experiment("engine.device=cuda", *sets)
    return prepare_run(settings, RunInputs(dataset=blobs(), module=with_dropout()), **options)


def log_of(ready: PreparedRun, stop: int | None = None) -> list[bytes]:
    log = []
    for event in ready.training.run(ready.federation):
        log.append(encode_event(event))
        if isinstance(event, RoundFinished) and event.round == stop:
            break
    return log


@pytest.mark.parametrize("precision", ["float32", "tf32", "bfloat16"])
def test_a_resumed_run_has_the_bits_of_one_that_was_not_interrupted(precision: str) -> None:
    whole, first = on_cuda(f"engine.precision={precision}"), on_cuda(f"engine.precision={precision}")
    log, begun = log_of(whole), log_of(first, stop=2)
    second = on_cuda(f"engine.precision={precision}", snapshot=first.snapshot())
    assert begun + log_of(second) == log
    for name, tensor in whole.training.model.items():
        assert torch.equal(tensor, second.training.model[name])


@pytest.mark.parametrize(("algorithm", "invited"), [("fedavg-rp", 5), ("safa", 2)])
def test_a_cohort_that_does_not_fit_is_trained_in_chunks(
    algorithm: str, invited: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """SAFA has all clients train, however few replies end a round."""

    def run(*sets: str) -> PreparedRun:
        settings = experiment("engine.device=cuda", f"select.count={invited}", *sets, algorithm=algorithm)
        ready = prepare_run(settings, RunInputs(dataset=blobs()))
        log_of(ready)
        return ready

    together = run()
    assert together.experiment.engine.chunk is None
    monkeypatch.setattr(build_simulation, "clients_that_fit", lambda *_: 2)
    apart, again, asked = run(), run(), run("engine.chunk=2")
    assert apart.experiment.engine.chunk == 2
    for name, tensor in apart.training.model.items():
        assert torch.equal(tensor, again.training.model[name])
        assert torch.equal(tensor, asked.training.model[name])
        torch.testing.assert_close(tensor, together.training.model[name], rtol=1e-3, atol=1e-4)


def test_memory_is_measured_by_the_client() -> None:
    data, model = ragged((1, 28, 28), "cuda"), build_model(ModelSettings.members["lenet5"](), (1, 28, 28), 10, 0).cuda()
    x = data.x.float()
    execution = choose_execution(model, x[:4], data.y[:4], LOSSES["cross-entropy"])
    local = Sgd(batch_size=32)
    room = 2**30
    fit = clients_that_fit(execution, x[:4], data.y[:4], local, room)
    seen_alone = 32 * (25 * 784 + 150 * 100) * 4  # what the two convolutions' windows see, in bytes
    assert 1 < fit < room / seen_alone
    assert clients_that_fit(execution, x[:4], data.y[:4], local, 2 * room) == pytest.approx(2 * fit, abs=1)


def test_half_precision_learns_the_same_within_its_rounding() -> None:
    exact, rough = (
        prepare_run(
            experiment("engine.device=cuda", f"engine.precision={name}", algorithm="fedavg-rp"),
            RunInputs(dataset=blobs()),
        )
        for name in ("float32", "bfloat16")
    )
    log_of(exact), log_of(rough)
    for name, tensor in exact.training.model.items():
        assert rough.training.model[name].dtype == torch.float32
        assert not torch.equal(tensor, rough.training.model[name])
        torch.testing.assert_close(tensor, rough.training.model[name], rtol=0.1, atol=0.05)
