"""Laws that every named algorithm keeps. A new one is tested by existing."""

from functools import cache

import numpy as np
import pytest
import torch

from winnow.core import Population, RoundFinished
from winnow.experiment.build_simulation import PreparedRun, prepare_run
from winnow.experiment.build_training_workflow import RunInputs
from winnow.learn.algorithm import Recipe
from winnow.learn.client_round_method import ClientUpdate, PlainUpdate
from winnow.learn.round_loop import SynchronousRounds
from winnow.learn.stack import ModelState
from winnow.runs.event_log import decode_event, encode_event
from world import NEEDED, blobs, experiment, prepared

ALGORITHMS = sorted(Recipe.known)


def keeps_state(algorithm: str) -> bool:
    """Whether more than the model may outlive a round: at the selection, the server, the schedule or the clients."""
    whole = experiment(algorithm=algorithm).composed()
    return (
        bool(whole.select.start(Population(sizes=np.full(8, 40))).state())
        or bool(whole.server.start({"weight": torch.zeros(2)}))
        or not isinstance(whole.schedule, SynchronousRounds)
        or not isinstance(whole.client, PlainUpdate)
    )


INTERRUPTED = [(each, 2, "[]") for each in ALGORITHMS] + [
    (each, stop, "[]" if each in NEEDED else "[1, 4]") for each in filter(keeps_state, ALGORITHMS) for stop in (1, 3)
]
"""Those that keep state are interrupted twice more, in runs whose clients evaluate if they may have labels."""


def log_of(ready) -> list[bytes]:
    return [encode_event(event) for event in ready.training.run(ready.federation)]


@cache
def finished(algorithm: str, holders: str = "[]") -> tuple[PreparedRun, list[bytes]]:
    """A run to its end, and its events; the tests only look at it."""
    ready = prepared(f"reference_clients={holders}", algorithm=algorithm)
    return ready, log_of(ready)


@cache
def trained_by(execution: str, algorithm: str) -> ModelState:
    ready = prepared("rounds=2", f"engine.execution={execution}", algorithm=algorithm)
    log_of(ready)
    return ready.training.model


@pytest.mark.parametrize("algorithm", ALGORITHMS)
class TestEveryAlgorithm:
    def test_shapes_and_types_are_kept(self, algorithm: str) -> None:
        ready, _ = finished(algorithm)
        before = {name: (tensor.shape, tensor.dtype) for name, tensor in ready.training.initial.items()}
        for model in (ready.training.model, ready.training.best):
            assert {name: (tensor.shape, tensor.dtype) for name, tensor in model.items()} == before

    def test_a_seed_repeats_bit_for_bit(self, algorithm: str) -> None:
        (one, log), two = finished(algorithm), prepared(algorithm=algorithm)
        assert log == log_of(two)
        assert all(torch.equal(one.training.model[name], two.training.model[name]) for name in one.training.model)

    def test_another_seed_is_another_run(self, algorithm: str) -> None:
        other = log_of(prepared("rounds=1", algorithm=algorithm, seed=1))
        assert finished(algorithm)[1][: len(other)] != other

    def test_it_learns(self, algorithm: str) -> None:
        own_tests = () if algorithm in NEEDED else ("data.local_test=0.2",)
        ready = prepared("rounds=25", *own_tests, algorithm=algorithm)
        judged = "clients" if ready.experiment.client.private_names(ready.module) else "test"
        rounds = [event for event in ready.training.run(ready.federation) if isinstance(event, RoundFinished)]
        assert max(event.metrics[judged]["accuracy"] for event in rounds) > 0.75

    def test_every_round_folds_some_and_no_more_than_asked(self, algorithm: str) -> None:
        rounds = [event for event in map(decode_event, finished(algorithm)[1]) if isinstance(event, RoundFinished)]
        most = [8 if experiment(algorithm=algorithm).select.trains_all_first else 3] + [3] * len(rounds)
        assert all(1 <= len(np.unique(event.aggregated)) <= limit for event, limit in zip(rounds, most, strict=False))

    @pytest.mark.parametrize("execution", ["native", "stacked", "vmap"])
    def test_executions_agree_with_the_loop(self, algorithm: str, execution: str) -> None:
        expected = trained_by("loop", algorithm)
        for name, tensor in trained_by(execution, algorithm).items():
            torch.testing.assert_close(tensor, expected[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", sorted(ClientUpdate.members))
def test_a_method_says_whether_clients_have_models_of_their_own(name: str) -> None:
    method = ClientUpdate.members[name]
    assert method.has_personal_model == (method.personal_model is not ClientUpdate.personal_model)


@pytest.mark.parametrize(("algorithm", "stop", "holders"), INTERRUPTED)
def test_resuming_equals_no_interruption(algorithm: str, stop: int, holders: str) -> None:
    whole, log = finished(algorithm, holders)
    settings = f"reference_clients={holders}"
    first = prepared(settings, algorithm=algorithm)
    begun = []
    for event in first.training.run(first.federation):
        begun.append(encode_event(event))
        if isinstance(event, RoundFinished) and event.round == stop:
            break
    second = prepare_run(
        experiment(settings, algorithm=algorithm), RunInputs(dataset=blobs()), snapshot=first.snapshot()
    )
    assert begun + log_of(second) == log
    for name, tensor in whole.training.model.items():
        assert torch.equal(tensor, second.training.model[name])
        assert torch.equal(whole.training.best[name], second.training.best[name])
