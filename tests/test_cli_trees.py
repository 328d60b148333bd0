"""`winnow trees` as it is typed, and runs of it that are interrupted."""

import json
from pathlib import Path
from typing import Any

import pytest
import xgboost

import winnow
from command_line import call
from tree_rows import rows_of
from winnow.analytics.question import read_question
from winnow.analytics.simulate import ask_simulated
from winnow.core import RoundFinished

FEDERATION = """
[tables.t]
file = "t.csv"
owner = "owner"
[tables.t.columns]
x = { level = "protected", bounds = [-4, 4] }
heavy = { level = "protected", type = "integer", bounds = [0, 100000] }
kind = { level = "public", values = ["a", "b", "c", "d"] }
yes = { level = "protected", values = ["no", "yes"] }
"""
SHORT = ("--rounds", "2", "--depth", "2")


@pytest.fixture(autouse=True)
def federation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = rows_of(300)
    rows["owner"] = ["north", "south"] * 150
    rows[["owner", "x", "heavy", "kind", "yes"]].to_csv(tmp_path / "t.csv", index=False)
    (tmp_path / "federation.toml").write_text(FEDERATION)
    monkeypatch.chdir(tmp_path)


def test_trees_are_shown_saved_and_reported(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    asked = ("trees", "t", "--target", "yes", *SHORT)
    done = call(capsys, *asked, "--folder", "run", "--out", "model.ubj", "--page", "page.html")
    assert done.code == 0, done.err
    assert "share of gain" in done.out
    assert "2 rounds on 300 rows of 2 owners, logloss" in done.out
    assert xgboost.Booster(model_file="model.ubj").num_boosted_rounds() == 2
    assert "Share of gain" in (tmp_path / "page.html").read_text()
    assert call(capsys, "report", "run").code == 0
    told = json.loads(call(capsys, *asked, "--folder", "run", "--json").out)
    assert winnow.load_trees("run").answer == told
    explained = call(capsys, "explain", "run").out
    assert "also of bins with fewer" in " ".join(explained.split())


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (("t", "--target", "yess"), "there is no column 'yess'; did you mean 'yes'?"),
        (("tt", "--target", "yes"), "has no table 'tt'; did you mean 't'?"),
        (("t", "--target", "yes", "--out", "model.pkl"), "name the file model.json"),
        (("t", "--target", "yes", "--page", "page.txt"), "--page page.txt: it is written as .html"),
        (("t", "--target", "yes", "--method", "boosting"), "method = 'boosting' is unknown"),
        (("t", "--target", "yes", "--plain"), "per-owner on table 't' needs a rule that allows it"),
        (("t", "--target", "yes", "--early-stopping", "3"), "early_stopping needs holdout"),
    ],
)
def test_mistakes_are_one_line(capsys: pytest.CaptureFixture[str], arguments: tuple[str, ...], line: str) -> None:
    done = call(capsys, "trees", *arguments)
    assert done.code == 2
    assert line in " ".join(done.err.split())
    assert "Traceback" not in done.err


def test_a_rule_that_does_not_name_trees_refuses_them(capsys: pytest.CaptureFixture[str]) -> None:
    Path("federation.toml").write_text(FEDERATION + "[[queries]]\n")
    done = call(capsys, "trees", "t", "--target", "yes")
    assert done.code == 2
    assert "allows trees on table 't'" in " ".join(done.err.split())


def test_an_interrupted_run_goes_on_after_its_last_tree(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("winnow.analytics.question_run_folder.CHECKPOINT_SECONDS", -1.0)
    question = read_question({"kind": "trees", "table": "t", "target": "yes", "rounds": 4, "depth": 2})
    rounds = list[int]()

    def kill(event: Any) -> None:
        if isinstance(event, RoundFinished) and event.round == 5:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        ask_simulated(question, "federation.toml", folder=Path("run"), on_event=kill)
    resumed = ask_simulated(
        question, "federation.toml", folder=Path("run"), on_event=lambda event: rounds.append(event.round)
    )
    assert rounds[0] == 6
    assert resumed == ask_simulated(question, "federation.toml")
