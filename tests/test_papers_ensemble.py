"""The tables of federated ensembles: rows that share leaves, settings chosen on another seed, what is left."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

import winnow
from winnow.config.resolve import resolve
from winnow.experiment.build_training_workflow import RunInputs
from winnow.experiment.load_data import load_data
from winnow.papers import PAPERS
from winnow.papers.ensemble.ensemble_rows import FL, EnsembleRow
from winnow.papers.ensemble.leaf_family import OVER, family_traces
from winnow.papers.ensemble.rival_table import TUNING_SEEDS, RivalTable, TriedSettings, key, noise_for
from winnow.papers.paper import ReproductionOptions
from winnow.papers.result_json_lines import ResultLines, RunResultLine, lines_by_key
from winnow.privacy.dp.privacy_loss import GaussianRelease, epsilon

WAYS = ("mean", "median", "max", OVER)


def digits(combine: str) -> dict:
    way = {"name": OVER, "rounds": 2, "opt_in": 0.3, "hidden": [8]} if combine == OVER else combine
    return {
        "algorithm": "fedavg",
        "rounds": 3,
        "metric": "accuracy",
        "select": {"fraction": 0.5},
        "local": {"name": "sgd", "learning_rate": 0.1, "batch_size": 16},
        "aggregate": {"name": "partial"},
        "data": {"name": "digits", "clients": 12},
        "model": {"name": "mlp", "hidden": [16]},
        "ensemble": {"clusters": {"name": "random", "count": 3}, "combine": way},
    }


def table(name: str) -> RivalTable:
    found = next(item for item in PAPERS["ensemble"].items if item.name == name)
    assert isinstance(found, RivalTable)
    return found


@pytest.mark.parametrize("way", WAYS)
def test_leaves_that_rows_share_score_as_in_a_run_of_their_own(way: str) -> None:
    experiment = resolve(digits(OVER))
    shared = family_traces(experiment, WAYS, RunInputs(dataset=load_data(experiment.data)))[way]
    alone = winnow.run(digits(way)).history
    rounds = alone[-2:] if way == OVER else alone[1:4]
    assert shared == [(row["reference.accuracy"], row["test.accuracy"]) for row in rounds]


def line(item: str, algorithm: str, seed: int, best: float, test: float) -> RunResultLine:
    return RunResultLine(item=item, algorithm=algorithm, seed=seed, rounds=1, best=best, test_best=test)


def test_settings_are_chosen_on_the_tuning_seed_by_the_reference_set() -> None:
    item = table("movielens")
    first, second, _ = (key(FL, tried) for tried in item.tried)
    lines: ResultLines = lines_by_key(
        [
            line(item.name, first, TUNING_SEEDS[0], best=0.6, test=0.9),
            line(item.name, second, TUNING_SEEDS[0], best=0.7, test=0.1),
            line(item.name, first, 0, best=0.9, test=0.9),
            line(item.name, second, 0, best=0.5, test=0.4),
        ]
    )
    assert item.chosen(FL, lines) == (item.tried[1].name, {0: 0.4})


def test_rows_with_the_same_clusters_are_measured_together_and_known_ones_left_out() -> None:
    item, seed = table("movielens"), TUNING_SEEDS[0]
    tried = item.tried[0]
    by_age = next(rows for rows in item.left(tried, seed, {}) if rows[0].name == "age-mean")
    assert [row.combine for row in by_age] == list(WAYS)
    known = lines_by_key(line(item.name, key(row, tried), seed, 0.5, 0.5) for row in by_age)
    assert by_age not in item.left(tried, seed, known)
    assert len(item.left(tried, seed, known)) == len(item.left(tried, seed, {})) - 1


def test_reported_seeds_are_measured_with_the_chosen_settings_alone() -> None:
    item = table("movielens")
    assert not item.left(item.tried[0], 0, {}), "nothing has been chosen yet"
    scores = dict(zip((key(FL, tried) for tried in item.tried), (0.6, 0.7, 0.65), strict=True))
    known = lines_by_key(line(item.name, name, TUNING_SEEDS[0], best, 0.5) for name, best in scores.items())
    assert [item.left(tried, 0, known) for tried in item.tried] == [[], [(FL,)], []]


def test_given_seeds_are_measured_after_the_row_has_been_tuned(monkeypatch: pytest.MonkeyPatch) -> None:
    def measured(self: RivalTable, rows: Sequence[EnsembleRow], tried: TriedSettings, seed: int, _: object) -> list:
        best = 0.5 + 0.1 * (tried is self.tried[1])
        return [line(self.name, key(row, tried), seed, best, best) for row in rows]

    monkeypatch.setattr(RivalTable, "measure_rows", measured)
    item = replace(table("movielens"), rows=(FL,))
    found = [(each.algorithm, each.seed) for each in item.measure_seeds((7,), ReproductionOptions(), {})]
    tuned = [(key(FL, tried), seed) for seed in TUNING_SEEDS for tried in item.tried]
    assert found == [*tuned, (key(FL, item.tried[1]), 7)]


def test_the_noise_of_a_table_is_the_least_that_keeps_its_epsilon() -> None:
    noise = noise_for(1.56, 30, 0.1)
    assert epsilon([GaussianRelease(noise=noise, times=30, sampling_probability=0.1)], 1e-5) <= 1.56
    assert epsilon([GaussianRelease(noise=0.99 * noise, times=30, sampling_probability=0.1)], 1e-5) > 1.56
