"""Server optimisers against calculations by hand over three rounds."""

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from winnow.learn.algorithms.feddyn import FedDynServerOptimiser
from winnow.learn.algorithms.fedopt import ServerAdagrad, ServerAdam, ServerMomentum, ServerYogi
from winnow.learn.server_optimiser import RoundAggregate, ServerOptimiser

START = {"w": np.array([1.0, -2.0, 0.5]), "b": np.array([0.25])}
AGGREGATES = [
    {"w": np.array([1.5, -2.5, 0.5]), "b": np.array([0.0])},
    {"w": np.array([1.0, -1.0, 0.75]), "b": np.array([0.5])},
    {"w": np.array([2.0, -3.0, -4.0]), "b": np.array([1.0])},
]
STATISTICS = [{"mean": torch.tensor([float(i)]), "batches": torch.tensor(7 * i)} for i in range(4)]


def steps(
    server: ServerOptimiser, aggregates: list[dict[str, np.ndarray]] = AGGREGATES
) -> list[dict[str, torch.Tensor]]:
    """The model after each round; what is not trained comes with the aggregate."""
    trained = {name: torch.tensor(value) for name, value in START.items()}
    model, state, seen = trained | STATISTICS[0], server.start(trained), []
    for number, aggregate in enumerate(aggregates, start=1):
        mean = {name: torch.tensor(value) for name, value in aggregate.items()} | STATISTICS[number]
        folded = RoundAggregate(model=mean, clients=2, population=8, trained_names=("w", "b"))
        state, model = server.step(state, model, folded)
        seen.append(model)
    return seen


def adaptive(
    theta: np.ndarray, m: np.ndarray, v: np.ndarray, delta: np.ndarray, rule: str, at: dict[str, float]
) -> Any:
    """One round of algorithm 2 (Reddi et al., 2021) for one tensor, coordinate by coordinate."""
    theta, m, v = theta.copy(), m.copy(), v.copy()
    for i, d in enumerate(delta):
        m[i] = at["beta1"] * m[i] + (1 - at["beta1"]) * d
        if rule == "adagrad":
            v[i] += d**2
        elif rule == "adam":
            v[i] = at["beta2"] * v[i] + (1 - at["beta2"]) * d**2
        elif v[i] > d**2:
            v[i] -= (1 - at["beta2"]) * d**2
        elif v[i] < d**2:
            v[i] += (1 - at["beta2"]) * d**2
        theta[i] += at["learning_rate"] * m[i] / (np.sqrt(v[i]) + at["tau"])
    return theta, m, v


@pytest.mark.parametrize("kind", [ServerAdagrad, ServerAdam, ServerYogi])
@pytest.mark.parametrize("given", [{}, {"learning_rate": 0.3, "tau": 0.05, "beta1": 0.5}])
def test_adaptive_steps(kind: type[ServerOptimiser], given: dict[str, float]) -> None:
    server = kind(**given)
    at, rule = server.model_dump(), server.model_dump()["name"]
    for name, start in START.items():
        theta, m, v = start, np.zeros_like(start), np.full_like(start, at["tau"] ** 2)
        for model, aggregate in zip(steps(server), AGGREGATES, strict=True):
            theta, m, v = adaptive(theta, m, v, aggregate[name] - theta, rule, at)
            np.testing.assert_allclose(model[name].numpy(), theta, rtol=1e-9)


def test_defaults_are_the_papers() -> None:
    assert (ServerAdam().beta1, ServerAdam().beta2, ServerAdam().tau) == (0.9, 0.99, 1e-3)
    assert (ServerYogi().beta1, ServerYogi().beta2, ServerYogi().tau) == (0.9, 0.99, 1e-3)
    assert (ServerAdagrad().beta1, ServerAdagrad().tau) == (0.0, 1e-3)
    assert (ServerMomentum().learning_rate, ServerMomentum().momentum) == (1.0, 0.9)


def test_momentum() -> None:
    for name, start in START.items():
        theta, velocity = start, np.zeros_like(start)
        for model, aggregate in zip(steps(ServerMomentum(learning_rate=0.5, momentum=0.8)), AGGREGATES, strict=True):
            velocity = 0.8 * velocity + aggregate[name] - theta
            theta = theta + 0.5 * velocity
            np.testing.assert_allclose(model[name].numpy(), theta, rtol=1e-9)


def test_feddyn() -> None:
    alpha = 0.2
    for name, start in START.items():
        theta, h = start, np.zeros_like(start)
        for model, aggregate in zip(steps(FedDynServerOptimiser(alpha=alpha)), AGGREGATES, strict=True):
            h = h - alpha * 2 / 8 * (aggregate[name] - theta)
            theta = aggregate[name] - h / alpha
            np.testing.assert_allclose(model[name].numpy(), theta, rtol=1e-9)


@pytest.mark.parametrize(
    "server", [ServerAdagrad(), ServerAdam(), ServerYogi(), ServerMomentum(), FedDynServerOptimiser()]
)
def test_batch_statistics_are_the_aggregates(server: ServerOptimiser) -> None:
    for number, model in enumerate(steps(server), start=1):
        assert list(model) == ["w", "b", "mean", "batches"]
        assert model["mean"] is STATISTICS[number]["mean"]
        assert model["batches"] is STATISTICS[number]["batches"]


@given(st.lists(st.floats(-1e3, 1e3), min_size=3, max_size=3))
def test_without_momentum_a_rate_of_one_is_replacing(values: list[float]) -> None:
    aggregate = {"w": np.array(values), "b": np.array([0.0])}
    [model] = steps(ServerMomentum(learning_rate=1.0, momentum=0.0), [aggregate])
    np.testing.assert_allclose(model["w"].numpy(), values, rtol=1e-9, atol=1e-9)
