"""Compiled training from anywhere, with terms added to its gradients: what a plain loop with `torch.optim` gives."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from cohort_training import train
from test_stack_native import in_single_precision
from test_stack_training import CROSS_ENTROPY, MODELS, SIZES, make_data, plain_optimiser
from winnow.core import ModelError, stream
from winnow.learn.accelerated_sgd import AcceleratedSgd
from winnow.learn.local_optimiser import Adam, LocalOptimiser, Sgd
from winnow.learn.stack import (
    CohortTrainingResult,
    ExecutionSetting,
    LocalStart,
    ModelState,
    TensorData,
    choose_execution,
    model_state,
)
from winnow.learn.stack.batch_plan import plan_batches

LOCALS = {
    "sgd": Sgd(epochs=2, batch_size=4, learning_rate=0.05, momentum=0.9, weight_decay=0.01),
    "adam": Adam(epochs=2, batch_size=4, learning_rate=0.01, weight_decay=0.1),
}
COHORT = (2, 0, 3, 1, 4)


def moved(state: ModelState, rows: int, seed: int) -> ModelState:
    """So many different states near this one."""
    generator = torch.Generator().manual_seed(seed)
    return {
        name: tensor + 0.1 * torch.randn(rows, *tensor.shape, generator=generator, dtype=tensor.dtype)
        for name, tensor in state.items()
    }


def trained(
    model: nn.Module,
    local_start: LocalStart,
    data: TensorData,
    clients: tuple[int, ...],
    local: LocalOptimiser,
    threads: int,
    execution: ExecutionSetting = "native",
) -> CohortTrainingResult:
    chosen = choose_execution(model, data.x[:4], data.y[:4], CROSS_ENTROPY, execution, threads)
    return train(chosen, local_start, local, data, np.array(clients), round=1, seed=1)


def own(states: ModelState | None, place: int) -> ModelState | None:
    return None if states is None else {name: rows[place % len(rows)] for name, rows in states.items()}


def plainly(
    model: nn.Module, local_start: LocalStart, place: int, data: TensorData, client: int, local: LocalOptimiser
) -> ModelState:
    """One client's round as anyone would write it; the terms are added to `grad` before the optimiser's own."""
    start, drift = own(local_start.states, place), own(local_start.gradient_offset, place)
    anchor = own(local_start.anchor, place) or start
    model.load_state_dict(start)
    optimiser = plain_optimiser(local, model, 1)
    held = data.rows[data.offsets[client] : data.offsets[client + 1]]
    generator = stream(1, "batches", 1, client)
    for _ in range(local.epochs):
        order = held[generator.permutation(len(held))]
        for first in range(0, len(order), local.batch_size):
            batch = order[first : first + local.batch_size]
            optimiser.zero_grad()
            nn.functional.cross_entropy(model(data.x[batch]), data.y[batch]).backward()
            for name, parameter in model.named_parameters():
                parameter.grad += local_start.proximal_weight * (parameter.detach() - anchor[name])
                parameter.grad += 0 if drift is None else drift[name]
                if local_start.trainable is not None and name not in local_start.trainable:
                    parameter.grad = None  # so the optimiser leaves it alone
            optimiser.step()
    return model_state(model)


def departures(state: ModelState) -> dict[str, LocalStart]:
    shared, apart = (moved(state, rows, seed=1) for rows in (1, len(COHORT)))
    centre = moved(state, 1, seed=2)
    drift = moved({name: torch.zeros_like(tensor) for name, tensor in state.items()}, len(COHORT), seed=3)
    return {
        "starts of their own": LocalStart(states=apart),
        "pulled to a shared start": LocalStart(states=shared, proximal_weight=0.7),
        "pulled to starts of their own": LocalStart(states=apart, proximal_weight=0.7),
        "pulled to one place": LocalStart(states=apart, proximal_weight=0.7, anchor=centre),
        "pulled apart": LocalStart(states=centre, proximal_weight=0.7, anchor=apart),
        "drifting": LocalStart(states=shared, gradient_offset=drift),
        "drifting alike": LocalStart(states=apart, gradient_offset={name: rows[:1] for name, rows in drift.items()}),
        "everything": LocalStart(states=apart, proximal_weight=0.3, anchor=centre, gradient_offset=drift),
        "a part of it": LocalStart(
            states=apart, proximal_weight=0.3, gradient_offset=drift, trainable=frozenset(list(state)[-2:])
        ),
    }


@pytest.mark.parametrize("local", LOCALS)
@pytest.mark.parametrize(
    ("name", "execution"),
    [("mlp", "native"), ("cnn", "native"), ("mlp", "stacked"), ("cnn", "stacked"), ("mlp", "vmap"), ("mlp", "loop")],
)
def test_clients_may_depart_from_anywhere_and_have_terms_added(
    name: str, execution: ExecutionSetting, local: str
) -> None:
    make, shape = MODELS[name]
    model, data = make(), make_data(shape)
    for case, local_start in departures(model_state(model)).items():
        found = trained(model, local_start, data, COHORT, LOCALS[local], threads=2, execution=execution)
        for place, client in enumerate(COHORT):
            expected = plainly(model, local_start, place, data, client, LOCALS[local])
            for key, tensor in expected.items():
                torch.testing.assert_close(
                    found.states[key][place], tensor, rtol=1e-6, atol=1e-8, msg=f"{case}: {client} {key}"
                )


@pytest.mark.parametrize("case", ["everything", "pulled to a shared start", "drifting alike"])
def test_departures_are_bitwise_the_same_for_any_threads_and_order(case: str) -> None:
    make, shape = MODELS["cnn"]
    model, data = make().float(), in_single_precision(make_data(shape))
    local_start = departures(model_state(model))[case]
    everyone = trained(model, local_start, data, COHORT, LOCALS["sgd"], threads=1)
    for threads, places in itertools.product((1, 2, 3), ([4, 3, 2, 1, 0], [2, 0], [3])):
        some = trained(
            model, start_of(local_start, places), data, tuple(COHORT[p] for p in places), LOCALS["sgd"], threads
        )
        for key, tensor in some.states.items():
            assert torch.equal(tensor, everyone.states[key][places])


def start_of(local_start: LocalStart, places: list[int]) -> LocalStart:
    """That of some clients."""

    def some(states: ModelState | None) -> ModelState | None:
        return None if states is None else {name: t if len(t) == 1 else t[places] for name, t in states.items()}

    return replace(
        local_start,
        states=some(local_start.states),
        anchor=some(local_start.anchor),
        gradient_offset=some(local_start.gradient_offset),
    )


def test_an_anchor_that_does_not_pull_changes_nothing() -> None:
    make, shape = MODELS["mlp"]
    model, data = make().float(), in_single_precision(make_data(shape))
    plain = LocalStart.shared(model_state(model))
    idle = replace(plain, anchor={name: torch.full_like(t, torch.nan) for name, t in plain.states.items()})
    first, second = (trained(model, each, data, COHORT, LOCALS["sgd"], threads=1) for each in (plain, idle))
    for key, tensor in first.states.items():
        assert torch.equal(second.states[key], tensor)


def test_states_in_double_precision_start_a_model_in_single() -> None:
    make, shape = MODELS["mlp"]
    model, data = make().float(), in_single_precision(make_data(shape))
    single = LocalStart.shared(model_state(model))
    double = LocalStart(states={name: tensor.double() for name, tensor in single.states.items()})
    first, second = (trained(model, each, data, COHORT, LOCALS["sgd"], threads=1) for each in (single, double))
    for key, tensor in first.states.items():
        assert torch.equal(second.states[key], tensor)


def test_starts_for_other_clients_are_refused_in_one_line() -> None:
    make, shape = MODELS["mlp"]
    model, data = make(), make_data(shape)
    execution = choose_execution(model, data.x[:4], data.y[:4], CROSS_ENTROPY, "native")
    local_start = LocalStart(states=moved(model_state(model), rows=1, seed=0), proximal_weight=1.0)
    drift = moved(model_state(model), rows=len(SIZES) - 2, seed=0)
    plan = plan_batches(data, np.arange(len(SIZES)), LOCALS["sgd"], round=1, seed=1)
    with pytest.raises(ModelError, match="got 3 rows of parameters for 5 clients"):
        execution.run_plan(replace(local_start, gradient_offset=drift), LOCALS["sgd"], data, plan, rate=0.1)


@pytest.mark.parametrize("execution", ["native", "stacked"])
@pytest.mark.parametrize("frozen", [False, True])
def test_accelerated_steps_start_from_slots_and_return_them(execution: ExecutionSetting, frozen: bool) -> None:
    """Clients of different sizes, each with a w and an ag of its own, or with some parameters that stand still."""
    make, shape = MODELS["mlp"]
    model, data = make(), make_data(shape)
    local = AcceleratedSgd(epochs=2, batch_size=4, learning_rate=0.05, mu=0.5, tau=6, weight_decay=0.01)
    state = model_state(model)
    w, ag, md = (moved(state, len(COHORT), seed) for seed in (1, 2, 3))
    last = frozenset(list(state)[-2:])
    start = LocalStart(states=md, trainable=last) if frozen else LocalStart(states=md, slots=(w, ag))
    found, expected = (trained(model, start, data, COHORT, local, 2, how) for how in (execution, "loop"))
    assert len(found.slots) == len(expected.slots) == (0 if frozen else 2)
    for one, other in zip((found.states, *found.slots), (expected.states, *expected.slots), strict=True):
        for name, tensor in one.items():
            torch.testing.assert_close(tensor, other[name], rtol=1e-9, atol=1e-9)
    if frozen:
        assert all(torch.equal(found.states[name], md[name]) for name in state if name not in last)
    else:
        assert not any(torch.allclose(found.slots[0][name], w[name]) for name in w)
