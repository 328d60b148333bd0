"""Conclusions of the pages on FedProf, SRPFL and compression, on reduced cases and on seeds that no page shows.

Table 3 and what is said of CIFAR-10 would take an accelerator.
"""

from pathlib import Path
from statistics import fmean

import numpy as np
import pytest

from winnow.config.resolve import resolve
from winnow.experiment.build_training_workflow import RunInputs
from winnow.experiment.run import Result, run_experiment
from winnow.papers.fedprof.accuracy_by_data_condition_figure import CONDITIONS
from winnow.papers.fedprof.read_bundled_toml import read_package_toml
from winnow.papers.secagg.compared_compressions import UNCOMPRESSED, CompressionCode, product_code, pruned_code
from winnow.papers.srpfl.linear_case import LinearCase
from winnow.papers.srpfl.linear_speedup import measure
from winnow.papers.srpfl.methods import TUNING

SEEDS = (2_000, 2_001)


@pytest.fixture
def mnist(data_directory: Path) -> RunInputs:
    return inputs(data_directory, "mnist")


@pytest.fixture
def gas_turbine(data_directory: Path) -> RunInputs:
    return inputs(data_directory, "gas_turbine")


def inputs(data: Path, folder: str) -> RunInputs:
    if not (data / folder).is_dir():
        pytest.skip(f"{folder} is not in the data folder {data}")
    return RunInputs(data_directory=data)


def of_gas_turbine(given: RunInputs, algorithm: str, rounds: int) -> tuple[float, float]:
    """The best score, and the rounds to a sustained 0.80 (all rounds, where it was not reached), over seeds."""
    summaries = [
        run_experiment(resolve("gas-turbine", algorithm=algorithm, seed=seed, rounds=rounds), inputs=given).summary
        for seed in SEEDS
    ]
    scores = [summary.best.value for summary in summaries if summary.best]
    return fmean(scores), fmean(summary.rounds_to_sustained_target or rounds for summary in summaries)


@pytest.mark.slow(part="science")
@pytest.mark.parametrize("rival", ["power-of-choice", "oort", "tifl", "fedbuff", "safa"])
def test_selections_that_are_not_in_the_paper_are_behind_fedprof_in_table_1(gas_turbine: RunInputs, rival: str) -> None:
    best, rounds = of_gas_turbine(gas_turbine, "fedprof", 40)
    theirs, their_rounds = of_gas_turbine(gas_turbine, rival, 40)
    assert best > theirs + 0.002
    assert rounds < their_rounds


@pytest.mark.slow(part="science")
def test_profiles_by_class_are_no_worse_in_table_1(gas_turbine: RunInputs) -> None:
    """0.855 against 0.851, and 4.6 rounds against 7 to a sustained 0.80."""
    best, rounds = of_gas_turbine(gas_turbine, "fedprof", 60)
    by_class, its_rounds = of_gas_turbine(gas_turbine, "fedprof-by-class", 60)
    assert by_class > best - 0.001
    assert its_rounds <= rounds


@pytest.mark.slow(part="science")
def test_in_the_full_group_of_table_1_profiles_by_class_are_ahead_of_fedprof_and_fedprof_of_fedavg(
    gas_turbine: RunInputs,
) -> None:
    """On the page by 0.0051 and 0.0050 in best scores and by 5 and 41 rounds, after 500 rounds."""
    by_class, fedprof, fedavg = (
        of_gas_turbine(gas_turbine, name, 40) for name in ("fedprof-full-by-class", "fedprof-full", "fedavg")
    )
    assert by_class[0] > fedprof[0] + 0.002
    assert by_class[1] < fedprof[1]
    assert fedprof[0] > fedavg[0] + 0.002
    assert fedprof[1] < fedavg[1]


@pytest.mark.slow(part="science")
def test_in_the_full_group_of_table_2_fedprof_is_first_at_the_target(mnist: RunInputs) -> None:
    """43 rounds to 0.90 where FedAvg and CFCFM take 76 and 79."""

    def run(algorithm: str, rounds: int) -> Result:
        sets = ("local.learning_rate=0.1",)
        experiment = resolve("mnist", sets=sets, algorithm=algorithm, seed=SEEDS[0], rounds=rounds)
        return run_experiment(experiment, inputs=mnist)

    needed = run("fedprof-full", 60).summary.rounds_to_target
    assert needed is not None
    for rival in ("fedavg", "cfcfm"):
        assert run(rival, round(1.2 * needed)).summary.rounds_to_target is None, rival


@pytest.mark.slow(part="science")
def test_imbalance_and_low_quality_both_cost_fedavg_accuracy(mnist: RunInputs) -> None:
    """Figure 1: 0.986 with balanced clean data, 0.978 with neither."""
    setup = read_package_toml("setups.toml")["fig1"]
    reached = {}
    for condition in ("iid", "non-iid-low-quality"):
        experiment = resolve(setup, sets=CONDITIONS[condition], seed=SEEDS[0], rounds=15)
        history = run_experiment(experiment, inputs=mnist).history
        reached[condition] = fmean(row["reference.accuracy"] for row in history[-3:])
    assert reached["iid"] > reached["non-iid-low-quality"] + 0.005


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


@pytest.mark.slow(part="science")
def test_product_quantisation_beats_pruning_at_the_same_bytes_and_needs_fresh_codebooks_where_it_is_coarse(
    mnist: RunInputs,
) -> None:
    """Figure 2: at 43 times fewer bytes −0.3 points, where pruning falls apart, and at 32 times none to speak of.
    Figure 3: with four codewords a codebook of twenty rounds ago costs accuracy.
    """

    def reached(code: CompressionCode) -> float:
        experiment = resolve("secagg-mnist", sets=code.sets, seed=SEEDS[0], rounds=20)
        history = run_experiment(experiment, inputs=mnist).history
        return fmean(row["reference.accuracy"] for row in history[-5:])

    plain, fine, coarse = reached(UNCOMPRESSED), reached(product_code(16, 8)), reached(product_code(4, 8))
    assert fine > plain - 0.006
    assert coarse > reached(pruned_code(2)) + 0.02
    assert coarse > reached(product_code(4, 8, every=20)) + 0.002
