"""Conclusions of the page on SRPFL, on reduced cases and on seeds that no page shows."""

from collections.abc import Mapping, Sequence
from math import inf
from pathlib import Path

import pytest

from support.needs import data_set
from winnow.config.resolve import resolve
from winnow.core import Rejected
from winnow.experiment.build_simulation import prepare_run
from winnow.experiment.build_training_workflow import RunInputs
from winnow.experiment.run import run_experiment
from winnow.papers.srpfl.methods import TUNING

SEED = 2_000
SMALL_NETWORK = "model.hidden=[64, 64, 32]"

History = Sequence[Mapping[str, float]]


@pytest.fixture
def mnist(data_directory: Path) -> RunInputs:
    data_set(data_directory, "mnist")
    return RunInputs(data_directory=data_directory)


def history(given: RunInputs, preset: str, algorithm: str, rounds: int, *sets: str) -> History:
    settings = (SMALL_NETWORK, *TUNING[algorithm], *sets)
    experiment = resolve(preset, sets=settings, algorithm=algorithm, seed=SEED, rounds=rounds)
    return run_experiment(experiment, inputs=given).history


def seconds_to(target: float, run: History, *, communication: float = 0.0) -> float:
    times = (row["seconds"] + communication * row["round"] for row in run if row["tuned.accuracy"] >= target)
    return next(times, inf)


@pytest.mark.slow(part="science")
def test_srpfl_s_gain_at_a_high_target_is_in_shorter_rounds_and_communication_takes_it_away(mnist: RunInputs) -> None:
    """1.9 to 14 times as soon at 0.94 with heads reset and tuned, in more rounds; 0.61 times on CIFAR-10 at C.T. = 100.

    Here 40 clients, and the target is what FedRep has after three rounds, which is far above what one round gives.
    """
    smaller = ("data.clients=40", "client.turns=2", "local.epochs=1", "evaluation.tune_every=1")
    fedrep = history(mnist, "srpfl-mnist-small", "fedrep", 3, *smaller)
    srpfl = history(mnist, "srpfl-mnist-small", "srpfl", 9, *smaller, "select.rounds_per_stage=3")
    target = fedrep[3]["tuned.accuracy"]
    assert target > fedrep[1]["tuned.accuracy"] + 0.1
    assert seconds_to(target, fedrep) > 1.5 * seconds_to(target, srpfl)
    assert seconds_to(target, fedrep, communication=100) < seconds_to(target, srpfl, communication=100)


@pytest.mark.slow(part="science")
def test_on_writers_tuned_fedavg_ends_above_fedrep(mnist: RunInputs) -> None:
    """0.924 against 0.882 after 20 rounds of 100 writers."""
    last = {}
    for algorithm, epochs in (("fedavg-rp", ()), ("fedrep", ("client.turns=5", "local.epochs=1"))):
        sets = ("data.clients=30", "evaluation.tune_every=8", *epochs)
        last[algorithm] = history(mnist, "srpfl-writers", algorithm, 8, *sets)[-1]["tuned.accuracy"]
    assert last["fedavg-rp"] > last["fedrep"] + 0.01


@pytest.mark.slow(part="science")
def test_hf_maml_s_large_steps_diverge_with_the_larger_alpha_only(mnist: RunInputs) -> None:
    """With β = 0.1: 26 of 600 updates are not finite in 20 rounds with α = 0.01, none with 0.001."""

    def refused(alpha: float) -> int:
        sets = (SMALL_NETWORK, "data.clients=30", "local.learning_rate=0.1", f"client.alpha={alpha}")
        ready = prepare_run(resolve("srpfl-writers", sets=sets, algorithm="hf-maml", seed=SEED, rounds=4), mnist)
        return sum(isinstance(event, Rejected) for event in ready.training.run(ready.federation))

    assert refused(0.01) > 0
    assert refused(0.001) == 0
