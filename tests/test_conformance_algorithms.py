"""Laws that every named algorithm keeps. A new one is tested by existing."""

import numpy as np
import pytest
import torch

from winnow.core import RoundFinished
from winnow.experiment.build import prepare_run
from winnow.experiment.setup import RunInputs
from winnow.learn.algorithm import Recipe
from winnow.runs.event_log import encode_event
from world import blobs, experiment, prepared

ALGORITHMS = sorted(Recipe.known)


def log_of(ready) -> list[bytes]:
    return [encode_event(event) for event in ready.training.run(ready.federation)]


@pytest.mark.parametrize("algorithm", ALGORITHMS)
class TestEveryAlgorithm:
    def test_shapes_and_types_are_kept(self, algorithm: str) -> None:
        ready = prepared(algorithm=algorithm)
        before = {name: (tensor.shape, tensor.dtype) for name, tensor in ready.training.model.items()}
        log_of(ready)
        for model in (ready.training.model, ready.training.best):
            assert {name: (tensor.shape, tensor.dtype) for name, tensor in model.items()} == before

    def test_a_seed_repeats_bit_for_bit(self, algorithm: str) -> None:
        one, two = prepared(algorithm=algorithm), prepared(algorithm=algorithm)
        assert log_of(one) == log_of(two)
        assert all(torch.equal(one.training.model[name], two.training.model[name]) for name in one.training.model)

    def test_another_seed_is_another_run(self, algorithm: str) -> None:
        assert log_of(prepared(algorithm=algorithm)) != log_of(prepared(algorithm=algorithm, seed=1))

    def test_it_learns(self, algorithm: str) -> None:
        ready = prepared("rounds=25", "data.own_test=0.2", algorithm=algorithm)
        judged = "clients" if ready.experiment.client.private_names(ready.module) else "test"
        rounds = [event for event in ready.training.run(ready.federation) if isinstance(event, RoundFinished)]
        assert max(event.metrics[judged]["accuracy"] for event in rounds) > 0.75

    @pytest.mark.parametrize("holders", ["reference_clients=[]", "reference_clients=[1, 4]"])
    @pytest.mark.parametrize("stop", [1, 3])
    def test_resuming_equals_no_interruption(self, algorithm: str, stop: int, holders: str) -> None:
        whole = prepared(holders, algorithm=algorithm)
        log = log_of(whole)
        first = prepared(holders, algorithm=algorithm)
        begun = []
        for event in first.training.run(first.federation):
            begun.append(encode_event(event))
            if isinstance(event, RoundFinished) and event.round == stop:
                break
        second = prepare_run(
            experiment(holders, algorithm=algorithm), RunInputs(dataset=blobs()), snapshot=first.snapshot()
        )
        assert begun + log_of(second) == log
        for name, tensor in whole.training.model.items():
            assert torch.equal(tensor, second.training.model[name])
            assert torch.equal(whole.training.best[name], second.training.best[name])

    def test_every_round_folds_some_and_no_more_than_asked(self, algorithm: str) -> None:
        ready = prepared(algorithm=algorithm)
        rounds = [event for event in ready.training.run(ready.federation) if isinstance(event, RoundFinished)]
        assert all(1 <= len(np.unique(event.folded)) <= 3 for event in rounds)

    @pytest.mark.parametrize("execution", ["stacked", "vmap", "loop"])
    def test_executions_agree(self, algorithm: str, execution: str) -> None:
        one = prepared("rounds=2", f"engine.execution={execution}", algorithm=algorithm)
        two = prepared("rounds=2", "engine.execution=loop", algorithm=algorithm)
        log_of(one), log_of(two)
        for name, tensor in one.training.model.items():
            torch.testing.assert_close(tensor, two.training.model[name], rtol=1e-4, atol=1e-5)
