"""Grids of experiments and what is said of their runs, against means and deviations worked out by NumPy."""

import json
from pathlib import Path

import numpy as np
import pytest

from winnow.core import ConfigError, Cost, Evaluated, RoundFinished
from winnow.experiment.comparison import Comparison, experiment_grid, run_folder_path
from winnow.runs import RunLabel, RunView

TARGET = 0.8


def finished_run(algorithm: str, seed: int, accuracies: list[float]) -> RunView:
    """A run in memory whose round r ends at 60·r seconds and costs 360 joules."""
    first = Evaluated(round=0, at=0.0, version=0, metrics={"reference": {"accuracy": accuracies[0]}})
    rounds = [
        RoundFinished(
            round=number,
            at=60.0 * number,
            version=number,
            metrics={"reference": {"accuracy": value}, "test": {"accuracy": value - 0.01}},
            aggregated=np.array([0]),
            loss=0.0,
            joules=360.0,
            cost=Cost(),
        )
        for number, value in enumerate(accuracies[1:], start=1)
    ]
    label = RunLabel(name="made-up", algorithm=algorithm, seed=seed, metric="accuracy", target=TARGET)
    return RunView(label=label, log=[first, *rounds])


RUNS = (
    finished_run("fedprof", 0, [0.1, 0.85, 0.9, 0.88]),
    finished_run("fedprof", 1, [0.1, 0.7, 0.79, 0.86]),
    finished_run("fedavg-rp", 0, [0.1, 0.5, 0.81, 0.7]),
    finished_run("fedavg-rp", 1, [0.1, 0.4, 0.5, 0.6]),
)


def test_a_record_a_run_with_null_where_the_target_was_missed():
    records = Comparison(runs=RUNS).records
    assert [(each.best, each.last, each.rounds_to_target) for each in records] == [
        (0.9, 0.88, 1),
        (0.86, 0.86, 3),
        (0.81, 0.7, 2),
        (0.6, 0.6, None),
    ]
    assert records[1].seconds_to_target == 180.0
    assert records[1].wh_to_target == pytest.approx(3 * 360 / 3600)
    assert records[1].test_best == pytest.approx(0.85)
    assert (records[3].seconds_to_target, records[3].wh_to_target) == (None, None)


def test_the_table_holds_means_and_sample_deviations_over_the_seeds():
    profiled, random = Comparison(runs=RUNS).table()
    assert (profiled.algorithm, profiled.reached, random.reached, random.runs) == ("fedprof", 2, 1, 2)
    assert profiled.best is not None
    assert profiled.best.mean == pytest.approx(np.mean([0.9, 0.86]))
    assert profiled.best.sd == pytest.approx(np.std([0.9, 0.86], ddof=1))
    assert profiled.rounds_to_target is not None
    assert profiled.rounds_to_target.mean == 2.0


def test_text_html_and_file_tell_the_same(tmp_path: Path):
    comparison = Comparison(runs=RUNS, failures=("fedavg, seed 0: why",))
    assert "0.8800 ± 0.0283" in str(comparison)
    assert "<td>0.8800 ± 0.0283</td>" in comparison._repr_html_()
    comparison.save(tmp_path / "compare.json")
    saved = json.loads((tmp_path / "compare.json").read_text())
    assert saved["records"][3]["rounds_to_target"] is None
    assert saved["table"][0]["best"]["mean"] == pytest.approx(0.88)
    assert saved["failures"] == ["fedavg, seed 0: why"]
    [difference] = saved["differences"]
    assert difference["best"]["mean"] == pytest.approx(((0.81 - 0.9) + (0.6 - 0.86)) / 2)
    assert "−0.1750 ± 0.0850" in str(comparison)
    assert "<td>−0.1750 ± 0.0850</td>" in comparison.report(tmp_path / "both.html").read_text()


def test_a_grid_is_every_algorithm_with_every_seed():
    counted = experiment_grid("demo", seeds=2)
    assert [(each.algorithm, each.seed) for each in counted] == [
        ("fedprof", 0),
        ("fedprof", 1),
        ("fedavg-rp", 0),
        ("fedavg-rp", 1),
    ]
    listed = experiment_grid("demo", algorithms=["fedavg"], seeds=[7, 3], rounds=5, sets=["local.epochs=1"])
    assert [(each.seed, each.rounds, each.local.epochs) for each in listed] == [(7, 5, 1), (3, 5, 1)]
    assert run_folder_path(listed[0], Path("out")) == Path("out/fedavg-seed7")


@pytest.mark.parametrize("wrong", [{"seeds": 0}, {"seeds": []}, {"algorithms": []}, {"algorithms": ["fedavg"] * 2}])
def test_an_empty_or_doubled_grid_is_refused(wrong):
    with pytest.raises(ConfigError, match=r"at least one|contains a duplicate"):
        experiment_grid("demo", **wrong)
