"""A report averages over seeds, and over nothing else."""

from dataclasses import replace
from pathlib import Path

import pytest
import tomli_w

from command_line import call, write_tiny
from winnow.core import Evaluated
from winnow.report import write_report
from winnow.report.run_groups import group_by_experiment
from winnow.runs import RunLabel, RunView

SETTINGS = {
    "name": "mine",
    "rounds": 5,
    "target": 0.5,
    "data": {"name": "digits", "corruptions": [{"name": "noise", "fraction": 0.4}]},
    "select": {"name": "profile", "fraction": 0.2, "alpha": 10.0},
    "server": {"name": "replace"},
    "engine": {"execution": "native", "precision": "float32"},
}
ADAM = {"server": {"name": "adam", "learning_rate": 0.01, "beta1": 0.9, "beta2": 0.99, "tau": 1e-3}}


def a_run(value: float, *, seed: int = 0, folder: str | None = None, algorithm: str = "fedprof", **changes) -> RunView:
    """A run that scored `value` once; `changes` are sections or keys, None takes a key out."""
    table = {key: {**old} if isinstance(old, dict) else old for key, old in SETTINGS.items()} | {"seed": seed}
    for key, new in changes.items():
        merged = {**table[key], **new} if isinstance(new, dict) else new
        table[key] = {k: v for k, v in merged.items() if v is not None} if isinstance(merged, dict) else merged
    table = {key: each for key, each in table.items() if each is not None}
    label = RunLabel(name="mine", algorithm=algorithm, seed=seed, metric="accuracy", target=table.get("target"))
    event = Evaluated(round=0, at=0.0, version=0, metrics={"reference": {"accuracy": value}})
    path = None if folder is None else Path(folder)
    return RunView(label=label, log=[event], config_text=tomli_w.dumps(table), path=path)


def names(*runs: RunView) -> dict[str, int]:
    return {name: len(members) for name, members in group_by_experiment(runs).items()}


def test_seeds_of_one_experiment_are_one_group_whatever_it_is_called_and_however_it_is_computed():
    other_engine = {"execution": "loop", "precision": "float32"}
    assert names(a_run(0.1), a_run(0.2, seed=1), a_run(0.3, seed=2, name="renamed", engine=other_engine)) == {
        "fedprof": 3
    }


@pytest.mark.parametrize(
    ("changes", "name"),
    [
        ({"select": {"alpha": 20.0}}, "fedprof, select.alpha=20.0"),
        (ADAM, "fedprof, server.name=adam"),
        ({"target": None}, "fedprof, target=none"),
        ({"rounds": 9}, "fedprof, rounds=9"),
        ({"select": {"fraction": None, "count": 4}}, "fedprof, select.count=4"),
        ({"engine": {"precision": "bfloat16"}}, "fedprof, engine.precision=bfloat16"),
        ({**ADAM, "select": {"alpha": 1.0}}, "fedprof, select.alpha=1.0, server.name=adam"),
        (
            {"rounds": 9, "target": 0.7, "select": {"alpha": 1.0, "fraction": 0.5}},
            "fedprof, four",
        ),
        ({"data": {"corruptions": [{"name": "noise", "fraction": 0.4, "sd": 0.25}] * 2}}, "fedprof, four"),
    ],
)
def test_experiments_with_the_same_seed_are_named_by_what_differs(changes, name):
    assert names(a_run(0.1), a_run(0.2, folder="runs/four", **changes)) == {"fedprof": 1, name: 1}


def test_settings_of_a_chosen_part_are_named_where_the_choice_does_not_tell():
    slow = {"server": {**ADAM["server"], "learning_rate": 0.001}}
    assert list(names(a_run(0.1), a_run(0.2, **ADAM), a_run(0.3, **slow))) == [
        "fedprof",
        "fedprof, server.name=adam, server.learning_rate=0.01",
        "fedprof, server.name=adam, server.learning_rate=0.001",
    ]


def test_algorithms_are_known_by_their_names_alone():
    rival = a_run(0.2, algorithm="fedavg", select={"name": "uniform", "alpha": None})
    assert names(a_run(0.1), rival) == {"fedprof": 1, "fedavg": 1}


def test_the_same_run_counts_once():
    here = a_run(0.1, folder="runs/a")
    grown = replace(here, path=Path("runs/../runs/a"), log=[*here.log, *here.log])
    assert names(here, here, grown, a_run(0.1, folder="runs/copy")) == {"fedprof": 1}


def test_a_copy_of_a_run_whose_scores_are_not_numbers_counts_once():
    assert names(a_run(float("nan"), folder="runs/a"), a_run(float("nan"), folder="runs/copy")) == {"fedprof": 1}


def test_runs_that_differ_in_what_no_configuration_tells_are_not_averaged():
    assert names(a_run(0.1, folder="a"), a_run(0.2, folder="b"), a_run(0.3)) == {
        "fedprof": 1,
        "fedprof, b": 1,
        "fedprof (2)": 1,
    }


def test_the_page_shows_the_groups_and_claims_no_common_target(tmp_path: Path):
    page = write_report(tmp_path / "report.html", [a_run(0.1), a_run(0.3, seed=1), a_run(0.9, target=0.7)])
    text = page.read_text("utf-8").split("</head>")[1]
    assert '<th scope="row">fedprof</th><td>0.2000 ± 0.1414</td>' in text
    assert '<th scope="row">fedprof, target=0.7</th><td>0.9000</td>' in text
    assert '<th scope="col">Reached target</th>' in text


def test_the_command_keeps_experiments_apart(capsys, tmp_path: Path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    tiny = write_tiny(tmp_path)
    call(capsys, "run", tiny, "--out", "a", "--quiet")
    call(capsys, "run", tiny, "--set", "server.name=adam", "--out", "b", "--quiet")
    assert call(capsys, "report", "a", "b", "a", "--out", "both.html").code == 0
    assert "<h1>tiny: fedprof vs fedprof, server.name=adam</h1>" in Path("both.html").read_text("utf-8")
