"""The search for rivals' settings: equal budgets, and nothing that a published table is evaluated on."""

import json
from collections.abc import Iterable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from bench.search import (
    FIRST_TUNING_SEED,
    OWN,
    REPORTED_SEEDS,
    Candidate,
    Trial,
    grid,
    main,
    ranked,
    run,
    tuning_split,
)

from winnow.config.resolve import resolve
from winnow.data import DataSet, DataSettings, federate

RESULTS = Path(__file__).parent.parent / "docs" / "results"


def rows(count: int, **more: object) -> DataSet:
    """Each row's only feature is its number."""
    numbers = np.arange(count, dtype=np.float32)[:, None]
    return DataSet(name="numbers", x=numbers, y=numbers.copy(), classes=None, **more)


def evaluated_on(dataset: DataSet, settings: DataSettings, seed: int) -> set[float]:
    spread = federate(dataset, settings, seed)
    return {*spread.reference.x[:, 0].tolist(), *spread.test.x[:, 0].tolist()}


RIVALS = [(preset, rival) for preset, rivals in OWN.items() for rival in rivals]
NOT_SEARCHED = [("mnist", rival) for rival in ("power-of-choice", "oort", "tifl", "fedbuff", "safa")]
"""They have a grid, but no published table of MNIST includes them."""


@pytest.mark.parametrize(("preset", "budget"), [("gas-turbine", 8), ("mnist", 8), ("cifar10", 4)])
def test_budgets_are_equal(preset: str, budget: int) -> None:
    sizes = {rival: len(grid(values)) for rival, values in OWN[preset].items()}
    assert sizes.pop("clustered-sampling") == 2
    assert set(sizes.values()) == {budget}


@pytest.mark.parametrize(("preset", "algorithm"), RIVALS)
def test_the_default_is_a_candidate(preset: str, algorithm: str) -> None:
    default = resolve("demo", algorithm=algorithm).model_dump()
    if algorithm == "fedbuff":  # where no size is set; and to replace the model is a step of 1
        default |= {
            "schedule": {"buffer_size": 10},
            "server": {"name": "momentum", "momentum": 0.0, "learning_rate": 1.0},
        }
    assert chosen_by(default, OWN[preset][algorithm]) in map(values_of, grid(OWN[preset][algorithm]))


def chosen_by(settings: dict[str, Any], searched: Iterable[str]) -> dict[str, object]:
    return {path: settings[path.split(".")[0]][path.split(".")[1]] for path in searched}


def values_of(candidate: Candidate) -> dict[str, object]:
    return {path: json.loads(text) if text[0].isdigit() else text for path, text in candidate.items()}


@pytest.mark.parametrize(("preset", "algorithm"), [rival for rival in RIVALS if rival not in NOT_SEARCHED])
def test_presets_have_what_the_search_found(preset: str, algorithm: str) -> None:
    """The best candidate; for power of choice the next best, as a factor of 1 is no choice at all."""
    lines = [json.loads(line) for line in (RESULTS / f"search-{preset}.jsonl").read_text().splitlines()]
    candidates = grid(OWN[preset][algorithm])
    found = ranked(line for line in lines if line["algorithm"] == algorithm and line["candidate"] in candidates)
    assert len(found) == len(candidates)
    best = found[1 if algorithm == "power-of-choice" else 0]
    settings = resolve(preset, algorithm=algorithm).model_dump()
    if algorithm == "fedbuff" and settings["server"]["name"] == "replace":
        settings["server"] = {"name": "momentum", "momentum": 0.0, "learning_rate": 1.0}
    assert chosen_by(settings, OWN[preset][algorithm]) == values_of(best.candidate)


def test_nothing_is_tuned_on_rows_that_a_published_run_is_evaluated_on() -> None:
    settings = DataSettings(name="numbers", clients=4, reference=30, test=10)
    dataset = rows(100)
    reported = set().union(*(evaluated_on(dataset, settings, seed) for seed in REPORTED_SEEDS))
    split = tuning_split(dataset, SimpleNamespace(data=settings))  # type: ignore[arg-type]
    assert split.test_rows is not None
    assert len(split.test_rows) > 0
    tuned_on = set(split.x[split.test_rows, 0].tolist())
    assert tuned_on == set(map(float, range(100))) - reported
    half = len(tuned_on) // 2
    tuning = settings.model_copy(update={"reference": half, "test": len(tuned_on) - half})
    assert evaluated_on(split, tuning, FIRST_TUNING_SEED) == tuned_on


def test_an_official_test_split_is_left_out_altogether() -> None:
    official = np.arange(80, 100)
    split = tuning_split(rows(100, test_rows=official), SimpleNamespace(data=None))  # type: ignore[arg-type]
    assert set(split.x[:, 0].tolist()) == set(map(float, range(80)))
    assert split.test_rows is not None
    assert len(split.test_rows) == 80 // 6


def test_a_trial_is_run_on_the_tuning_split_and_a_search_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    trial = Trial(preset="demo", algorithm="fedprox", candidate={"client.mu": "0.1"}, seed=FIRST_TUNING_SEED, rounds=1)
    record = run(trial)
    assert {key: record[key] for key in ("algorithm", "candidate", "seed", "rounds")} == {
        "algorithm": "fedprox",
        "candidate": {"client.mu": "0.1"},
        "seed": 1_000,
        "rounds": 1,
    }
    assert 0 < float(str(record["best"])) < 1
    assert run(trial) == record
    made = [
        record | {"preset": "gas-turbine", "candidate": {"select.distance": name}, "algorithm": "clustered-sampling"}
        for name in ("angle", "euclidean")
    ]
    log = tmp_path / "tried.jsonl"
    log.write_text("".join(json.dumps(each) + "\n" for each in made))
    command = ["search", "gas-turbine", "--algorithms", "clustered-sampling", "--seeds", "1", "--rounds", "1"]
    monkeypatch.setattr("sys.argv", [*command, "--out", str(log)])
    main()
    assert capsys.readouterr().out.splitlines()[:2] == ["0 runs", "clustered-sampling"]


def test_candidates_are_ranked_by_the_mean_over_seeds_of_their_best_score() -> None:
    records = [
        {"candidate": {"client.mu": mu}, "algorithm": "fedprox", "best": best, "test": 0.5, "rounds_to_target": reached}
        for mu, best, reached in (("1", 0.9, None), ("1", 0.7, 8), ("2", 0.85, 4), ("2", 0.81, 6))
    ]
    first, second = ranked(records)
    assert (first.candidate, first.reached) == ({"client.mu": "2"}, "5.0 rounds (2 of 2)")
    assert (second.candidate, second.reached) == ({"client.mu": "1"}, "8.0 rounds (1 of 2)")
    assert (first.best, second.best) == pytest.approx((0.83, 0.8))


@pytest.mark.parametrize("text", ["these are notes\n", "[1, 2]\n", '{"preset": "gas-turbine"}\n'])
def test_a_file_of_something_else_is_refused_and_left_as_it_is(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    notes = tmp_path / "notes.txt"
    notes.write_text(text)
    monkeypatch.setattr("sys.argv", ["search", "gas-turbine", "--out", str(notes)])
    with pytest.raises(SystemExit):
        main()
    assert f"--out {notes} does not hold runs of this command" in capsys.readouterr().err
    assert notes.read_text() == text
