"""winnow compare --all: every known algorithm in one table; what cannot run is named and left out."""

import json
from functools import partial
from pathlib import Path

import pytest

from command_line import call, write_tiny
from winnow.cli.parallel_runs import run_many
from winnow.config.resolve import resolve
from winnow.experiment.run_pool import RunSpec
from winnow.learn.algorithm import Recipe
from winnow.learn.selection import UniformSelector


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Two known algorithms: one runs, the other is ruled out by its parts."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Recipe, "known", {"fedavg": Recipe.known["fedavg"]})
    Recipe(name="impossible", summary="", select=partial(UniformSelector, no_such_key=1))


def test_those_that_cannot_run_are_named_and_the_rest_compared(capsys, few, tmp_path):
    done = call(capsys, "compare", write_tiny(tmp_path), "--all", "--seeds", "2", "--workers", 1, "--json", "--quiet")
    assert done.code == 0, done.err
    assert [json.loads(line)["algorithm"] for line in done.out.splitlines()] == ["fedavg", "fedavg"]
    said = [line for line in done.err.splitlines() if "impossible" in line]
    assert len(said) == 1
    assert said[0].startswith("winnow: skipping impossible: ")
    assert "no_such_key" in said[0]


def test_the_best_comes_first(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Recipe, "known", {name: Recipe.known[name] for name in ("fedavg", "fedavg-rp", "cyclic")})
    options = ("--all", "--seeds", "1", "--workers", 1, "--rounds", 3, "--out", "all", "--quiet")
    assert call(capsys, "compare", write_tiny(tmp_path), *options).code == 0
    table = json.loads(Path("all/compare.json").read_text())["table"]
    best = [row["best"]["mean"] for row in table]
    assert len(set(best)) > 1
    assert best == sorted(best, reverse=True)
    assert [row["algorithm"] for row in table] != sorted(row["algorithm"] for row in table)


def test_a_mistake_that_rules_out_all_is_said_once(capsys, few, tmp_path):
    done = call(capsys, "compare", "no-such-preset", "--all")
    assert (done.code, done.err.count("\n")) == (2, 1)
    assert "no preset 'no-such-preset'" in done.err


def test_what_is_refused_only_once_it_meets_the_data_is_said_once_for_all_seeds(capsys, tmp_path):
    tiny = write_tiny(tmp_path)
    work = [
        RunSpec(experiment=resolve(tiny, seed=seed, reference_clients=[99]), out=tmp_path / str(seed), resume=False)
        for seed in (0, 1)
    ]
    failures = run_many(work, 1, quiet=True, skip_incompatible=True)
    assert [failures[index].incompatible for index in (0, 1)] == [True, True]
    assert capsys.readouterr().err.count("winnow: skipping fedprof: reference_clients: client 99 does not exist") == 1
