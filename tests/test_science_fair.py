"""Conclusions of the pages on FedProf and SRPFL, on reduced cases and on seeds that no page shows.

Table 3 and what is said of CIFAR-10 would take an accelerator.
"""

from dataclasses import dataclass
from functools import cache
from pathlib import Path
from statistics import fmean
from typing import Protocol

import numpy as np
import pytest

from selection_rates import selections_by_condition
from support.needs import data_set
from winnow.config.resolve import resolve
from winnow.experiment.build_training_workflow import RunInputs
from winnow.experiment.run import Result, run_experiment
from winnow.papers.fedprof.accuracy_by_data_condition_figure import CONDITIONS
from winnow.papers.fedprof.read_bundled_toml import read_package_toml
from winnow.papers.srpfl.linear_case import LinearCase
from winnow.papers.srpfl.linear_speedup import measure
from winnow.papers.srpfl.methods import TUNING

SEEDS = (2_000, 2_001)


@pytest.fixture
def mnist(data_directory: Path) -> RunInputs:
    return inputs(data_directory, "mnist")


def inputs(data: Path, folder: str) -> RunInputs:
    data_set(data, folder)
    return RunInputs(data_directory=data)


@dataclass(frozen=True, kw_only=True)
class GasTurbineMeans:
    """Over seeds; a target that was not reached counts as all rounds."""

    best: float
    first: float
    sustained: float
    polluted: float
    """Selections of a polluted sensor, relative to a clean one's."""


class GasTurbine(Protocol):
    def __call__(self, algorithm: str, rounds: int, *sets: str) -> GasTurbineMeans: ...


@pytest.fixture(scope="module")
def gas_turbine(data_directory: Path) -> GasTurbine:
    """Each algorithm is run once for all tests."""
    given = inputs(data_directory, "gas_turbine")

    @cache
    def means(algorithm: str, rounds: int, *sets: str) -> GasTurbineMeans:
        experiments = [
            resolve("gas-turbine", sets=sets, algorithm=algorithm, seed=seed, rounds=rounds) for seed in SEEDS
        ]
        results = [run_experiment(experiment, inputs=given) for experiment in experiments]
        selected = [selections_by_condition(result) for result in results]
        return GasTurbineMeans(
            best=fmean(result.summary.best.value for result in results if result.summary.best),
            first=fmean(result.summary.rounds_to_target or rounds for result in results),
            sustained=fmean(result.summary.rounds_to_sustained_target or rounds for result in results),
            polluted=fmean(rates["pollution"] / rates["clean"] for rates in selected),
        )

    return means


@pytest.mark.slow(part="science")
@pytest.mark.parametrize("rival", ["power-of-choice", "oort", "tifl", "fedbuff", "safa"])
def test_selections_that_are_not_in_the_paper_are_behind_fedprof_in_table_1(
    gas_turbine: GasTurbine, rival: str
) -> None:
    ours, theirs = gas_turbine("fedprof", 40), gas_turbine(rival, 40)
    assert ours.best > theirs.best + 0.002
    assert ours.sustained < theirs.sustained


@pytest.mark.slow(part="science")
@pytest.mark.parametrize("algorithm", ["oort", "afl", "power-of-choice"])
def test_selection_by_loss_prefers_polluted_sensors(gas_turbine: GasTurbine, algorithm: str) -> None:
    assert gas_turbine(algorithm, 40).polluted > 1.1


@pytest.mark.slow(part="science")
@pytest.mark.parametrize("algorithm", ["fedbuff", "cfcfm"])
def test_selection_by_speed_takes_polluted_sensors_like_clean_ones(gas_turbine: GasTurbine, algorithm: str) -> None:
    assert 0.85 < gas_turbine(algorithm, 40).polluted < 1.15


@pytest.mark.slow(part="science")
def test_power_of_choice_does_not_stay_at_the_target_when_it_first_reaches_it(gas_turbine: GasTurbine) -> None:
    """On the page it crosses 0.80 after 8.8 rounds, and stays there from 18.8 on."""
    found = gas_turbine("power-of-choice", 40)
    assert found.sustained >= found.first + 3


@pytest.mark.slow(part="science")
def test_at_equal_alpha_profiles_by_class_need_no_more_rounds_in_table_1_and_are_not_behind_in_best(
    gas_turbine: GasTurbine,
) -> None:
    """The preset has α = 10 for FedProf and 25 by class, and most of the lead in best scores is α's."""
    by_class, fedprof = gas_turbine("fedprof-by-class", 60), gas_turbine("fedprof", 60, "select.alpha=25.0")
    assert by_class.sustained <= fedprof.sustained
    assert by_class.best >= fedprof.best - 0.002


@pytest.mark.slow(part="science")
def test_in_the_full_group_of_table_1_profiles_by_class_are_ahead_of_fedprof_and_fedprof_of_fedavg(
    gas_turbine: GasTurbine,
) -> None:
    """On the page by 0.0051 and 0.0050 in best scores and by 5 and 41 rounds, after 500 rounds."""
    by_class, fedprof, fedavg = (gas_turbine(name, 40) for name in ("fedprof-full-by-class", "fedprof-full", "fedavg"))
    assert by_class.best > fedprof.best + 0.002
    assert by_class.sustained < fedprof.sustained
    assert fedprof.best > fedavg.best + 0.002
    assert fedprof.sustained < fedavg.sustained


def in_the_full_group_of_table_2(mnist: RunInputs, algorithm: str, rounds: int) -> Result:
    sets = ("local.learning_rate=0.1",)
    experiment = resolve("mnist", sets=sets, algorithm=algorithm, seed=SEEDS[0], rounds=rounds)
    return run_experiment(experiment, inputs=mnist)


@pytest.mark.slow(part="science")
def test_in_the_full_group_of_table_2_fedprof_is_first_at_the_target(mnist: RunInputs) -> None:
    """43 rounds to 0.90 where FedAvg and CFCFM take 76 and 79."""
    needed = in_the_full_group_of_table_2(mnist, "fedprof-full", 60).summary.rounds_to_target
    assert needed is not None
    for rival in ("fedavg", "cfcfm"):
        found = in_the_full_group_of_table_2(mnist, rival, round(1.2 * needed)).summary
        assert found.rounds_to_target is None, rival


@pytest.mark.slow(part="science")
def test_in_the_full_group_of_table_2_a_round_of_cfcfm_takes_less_than_half_of_the_others_time(
    mnist: RunInputs,
) -> None:
    """Why it is first in minutes: it needs 1.9 times FedProf's rounds and as many as FedAvg."""
    cfcfm, *others = (
        in_the_full_group_of_table_2(mnist, name, 10).summary.seconds for name in ("cfcfm", "fedprof-full", "fedavg")
    )
    assert cfcfm < 0.5 * min(others)


@pytest.mark.slow(part="science")
def test_imbalance_costs_fedavg_accuracy_low_quality_more_and_both_most(mnist: RunInputs) -> None:
    """Figure 1 has 0.986, 0.984, 0.982 and 0.978, in this order on each seed; early in training they lie farther
    apart.
    """
    setup = read_package_toml("setups.toml")["fig1"]
    reached = {}
    for condition in ("iid", "non-iid", "low-quality", "non-iid-low-quality"):
        experiment = resolve(setup, sets=CONDITIONS[condition], seed=SEEDS[0], rounds=4)
        reached[condition] = run_experiment(experiment, inputs=mnist).history[-1]["reference.accuracy"]
    assert reached["iid"] > reached["non-iid"] + 0.005
    assert reached["non-iid"] > reached["low-quality"]
    assert reached["low-quality"] > reached["non-iid-low-quality"] + 0.005


@pytest.mark.slow(part="science")
def test_srpfl_s_gain_is_in_the_authors_protocol_of_evaluation(mnist: RunInputs) -> None:
    """58 times as soon at 0.80 with heads reset and tuned, not even twice with clients' own; here a smaller case."""

    def seconds_to(algorithm: str, rounds: int, *sets: str) -> dict[str, float]:
        smaller = ("data.clients=40", "model.hidden=[64, 64, 32]", "client.turns=2", "local.epochs=1")
        settings = (*smaller, *TUNING[algorithm], "evaluation.tune_every=1", *sets)
        experiment = resolve("srpfl-mnist-small", sets=settings, algorithm=algorithm, seed=SEEDS[0], rounds=rounds)
        history = run_experiment(experiment, inputs=mnist).history
        return {
            who: next((row["seconds"] for row in history if row[f"{who}.accuracy"] >= 0.8), np.inf)
            for who in ("tuned", "clients")
        }

    fedrep = seconds_to("fedrep", 2)
    srpfl = seconds_to("srpfl", 6, "select.rounds_per_stage=1")
    assert fedrep["tuned"] > 10 * srpfl["tuned"]
    assert fedrep["clients"] < 4 * srpfl["clients"]


@pytest.mark.slow(part="science")
def test_in_the_linear_case_the_gain_grows_with_the_clients() -> None:
    """Theorem 4.6: the ratio of times falls with log N. Problems differ by more, so there are six, as on the page."""
    ratios = []
    for clients in (64, 2048):
        case = LinearCase(clients=clients, initial_clients=16)
        found = [measure(case, seed).ratio for seed in range(SEEDS[0], SEEDS[0] + 6)]
        ratios.append(fmean(ratio for ratio in found if ratio is not None))
    assert ratios[1] < 0.8 * ratios[0] < 0.4
