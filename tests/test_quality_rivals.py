"""The rules that client quality is compared with, each against a calculation by hand."""

import numpy as np
import pytest
import torch
from bench.clients.observations import RoundObservation, RunObservations
from bench.clients.rivals import RIVALS
from numpy.typing import NDArray

from winnow.core import Reply, Task
from winnow.learn.model_evaluator import ModelEvaluator
from winnow.learn.stack import ModelState, as_loss
from winnow.learn.stack.loop_execution import LoopExecution

CLIENTS, CLASSES, FEATURES = 4, 3, 5
SIZES = np.array([20.0, 30.0, 40.0, 50.0])


@pytest.fixture(scope="module")
def run() -> RunObservations:
    """Two rounds of a linear model. Client 3 has its labels shifted, and its updates go the wrong way."""
    rng = np.random.default_rng(0)
    module = torch.nn.Linear(FEATURES, CLASSES)
    execution = LoopExecution(module, as_loss("cross-entropy"))
    truth = rng.normal(size=(CLASSES, FEATURES))

    def samples(rows: int, shift: int) -> tuple[torch.Tensor, torch.Tensor]:
        x = rng.normal(size=(rows, FEATURES))
        return torch.from_numpy(x).float(), torch.from_numpy(((x @ truth.T).argmax(1) + shift) % CLASSES)

    state: ModelState = {"weight": torch.zeros(CLASSES, FEATURES), "bias": torch.zeros(CLASSES)}
    rounds = []
    for number in range(2):
        replies = []
        for k in range(CLIENTS):
            step = (-1 if k == 3 else 1) * truth / 4 + rng.normal(0, 0.1, truth.shape)
            model = {"weight": state["weight"] + torch.from_numpy(step).float(), "bias": state["bias"] + 0.01 * k}
            task = Task(name="train", client=k, round=number, version=number, payload={"model": state})
            replies.append(Reply(task=task, payload={"model": model}))
        weights = dict(enumerate(SIZES.tolist()))
        rounds.append(RoundObservation(start=state, replies=replies, weights=weights))
        state = mean([reply.payload["model"] for reply in replies], SIZES)
    return RunObservations(
        rounds=rounds,
        final=state,
        clients=[samples(int(size), shift=int(k == 3)) for k, size in enumerate(SIZES)],
        reference=samples(100, shift=0),
        execution=execution,
        evaluator=ModelEvaluator(module, as_loss("cross-entropy"), ""),
        trained=("weight", "bias"),
        seed=0,
    )


def mean(models: list[ModelState], weights: NDArray[np.float64]) -> ModelState:
    shares = weights / weights.sum()
    return {name: sum(float(s) * model[name] for s, model in zip(shares, models, strict=True)) for name in models[0]}


def outputs(state: ModelState, x: torch.Tensor) -> torch.Tensor:
    return x @ state["weight"].T + state["bias"]


def updates(seen: RoundObservation) -> NDArray[np.float64]:
    return np.array(
        [
            np.concatenate([(reply.payload["model"][n] - seen.start[n]).flatten() for n in ("weight", "bias")])
            for reply in seen.replies
        ],
        np.float64,
    )


def cosine(one: NDArray[np.float64], other: NDArray[np.float64]) -> float:
    return float(one @ other / np.linalg.norm(one) / np.linalg.norm(other))


def test_loss_is_that_of_the_final_model_on_the_clients_samples(run: RunObservations) -> None:
    expected = [float(torch.nn.functional.cross_entropy(outputs(run.final, x), y)) for x, y in run.clients]
    np.testing.assert_allclose(RIVALS["loss"](run), expected, rtol=1e-5)
    assert np.argmax(expected) == 3


def test_fedprofs_score_is_the_divergence_of_marginal_profiles(run: RunObservations) -> None:
    """Equations 9 and 10 for the outputs of the only layer."""
    seen = [outputs(run.final, x).double().numpy() for x, _ in (*run.clients, run.reference)]
    m0, v0 = seen[-1].mean(0), seen[-1].var(0)
    expected = [
        np.mean(0.5 * (np.log(v0 / own.var(0)) + own.var(0) / v0 - 1 + (own.mean(0) - m0) ** 2 / v0))
        for own in seen[:-1]
    ]
    np.testing.assert_allclose(RIVALS["FedProf's score"](run), expected, rtol=1e-3)


def test_updates_are_compared_by_length_and_by_the_angle_to_the_others(run: RunObservations) -> None:
    logs, turned = [], []
    for seen in run.rounds:
        lengths = np.linalg.norm(updates(seen), axis=1)
        logs.append(np.log(lengths / np.median(lengths)))
        turned.append([1 - cosine(own, _others(seen, SIZES, k)) for k, own in enumerate(updates(seen))])
    np.testing.assert_allclose(RIVALS["update norm"](run), np.mean(logs, 0), atol=1e-5)
    np.testing.assert_allclose(RIVALS["update cosine"](run), np.mean(turned, 0), atol=1e-4)


def _others(seen: RoundObservation, weights: NDArray[np.float64], k: int) -> NDArray[np.float64]:
    result: NDArray[np.float64] = np.delete(weights, k) @ np.delete(updates(seen), k, 0)
    return result


def test_fedces_share_adds_what_is_unlike_in_updates_and_in_data(run: RunObservations) -> None:
    shares, cosines, errors = np.full(CLIENTS, 1 / CLIENTS), [], []
    for seen in run.rounds:
        models = [reply.payload["model"] for reply in seen.replies]
        cosines.append([cosine(own, _others(seen, shares, k)) for k, own in enumerate(updates(seen))])
        errors.append([])
        for k, (x, y) in enumerate(run.clients):
            without = mean(models[:k] + models[k + 1 :], np.delete(SIZES, k))
            errors[-1].append(float((outputs(without, x).argmax(1) != y).float().mean()))
        unlike, wrong = 1 - np.mean(cosines, 0), np.mean(errors, 0)
        both = unlike / unlike.sum() + wrong / wrong.sum()
        shares = both / both.sum()
    np.testing.assert_allclose(RIVALS["FedCE"](run), shares, rtol=1e-3)
    assert np.argmax(shares) == 3


def test_contributions_speak_against_whoever_pulls_away(run: RunObservations) -> None:
    """Leave-one-out by hand; Shapley values of a round add up to what it has gained."""

    def utility(state: ModelState) -> float:
        x, y = run.reference
        return float(torch.softmax(outputs(state, x), 1)[torch.arange(len(y)), y].mean())

    left_out, gained = [], 0.0
    for seen in run.rounds:
        models = [reply.payload["model"] for reply in seen.replies]
        whole = utility(mean(models, SIZES))
        gained += whole - utility(seen.start)
        left_out.append(
            [whole - utility(mean(models[:k] + models[k + 1 :], np.delete(SIZES, k))) for k in range(CLIENTS)]
        )
    np.testing.assert_allclose(RIVALS["leave-one-out"](run), -np.mean(left_out, 0), atol=1e-5)
    assert -RIVALS["GTG-Shapley"](run).sum() == pytest.approx(gained, abs=1e-5)
    assert np.argmax(RIVALS["GTG-Shapley"](run)) == 3
