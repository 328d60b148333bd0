"""`winnow stats` as a user calls it, and what other commands make of its run folder."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import winnow
from command_line import call
from statistics_tables import pooled_rows

FEDERATION = """
[tables.people]
files = ["north.csv", "east.csv", "south.csv"]
[tables.people.columns]
age = { level = "protected", type = "integer", bounds = [0, 110] }
weight = { level = "protected", bounds = [0, 200] }
sex = { level = "protected", values = ["f", "m"] }
name = "private"
"""


@pytest.fixture(scope="module")
def people() -> pd.DataFrame:
    return pooled_rows(150, 1, missing=0.0)


@pytest.fixture
def federation(tmp_path: Path, people: pd.DataFrame) -> Path:
    for name, rows in zip(("north", "east", "south"), np.array_split(np.arange(len(people)), 3), strict=True):
        people.iloc[rows].to_csv(tmp_path / f"{name}.csv", index=False)
    path = tmp_path / "federation.toml"
    path.write_text(FEDERATION)
    return path


def test_a_table_a_page_and_a_run_folder(
    capsys: pytest.CaptureFixture[str], federation: Path, people: pd.DataFrame, tmp_path: Path
) -> None:
    asked = ["stats", "people", "--in", federation, "--columns", "age", "--by", "sex", "--folder", tmp_path / "run"]
    told = call(capsys, *asked, "--out", tmp_path / "people.html")
    assert told.code == 0
    assert f"{people['age'].mean():.1f}" in told.out
    assert "Report: " in told.err
    assert "Statistics of people" in (tmp_path / "people.html").read_text()
    again = json.loads(call(capsys, *asked, "--json").out)
    assert again["columns"]["age"]["groups"]["f"]["mean"] == pytest.approx(people["age"][people["sex"] == "f"].mean())
    answer = json.loads((tmp_path / "run" / "answer.json").read_text())
    assert answer == again
    events = (tmp_path / "run" / "events.jsonl").read_text()
    assert '"kind":"released"' in events
    assert '"kind":"answered"' in events
    assert "statistics" in call(capsys, "runs", tmp_path).out
    assert f"{people['age'].mean():.1f}" in call(capsys, "show", tmp_path / "run").out
    assert call(capsys, "report", tmp_path / "run").code == 0
    assert "Statistics of people" in (tmp_path / "run" / "report.html").read_text()
    explained = call(capsys, "explain", tmp_path / "run")
    assert "2 of the 3 owners that compute" in explained.out
    assert "cells with enough rows: compare" in explained.out
    call(capsys, *asked[:4], "--columns", "wait", "--folder", tmp_path / "mistake")
    assert not (tmp_path / "mistake").exists()
    other = call(capsys, *asked[:4], "--columns", "weight", "--folder", tmp_path / "run")
    assert other.err.strip().endswith("contains another question's run; choose another folder")


def test_the_python_function_gives_a_report(federation: Path, people: pd.DataFrame) -> None:
    report = winnow.stats("people", federation, columns=["weight"], quantiles=[0.5])
    assert report["weight"].mean == pytest.approx(people["weight"].mean(), abs=1e-6)
    expected = np.quantile(people["weight"], 0.5, method="inverted_cdf")
    assert report["weight"].quantiles[0.5] == pytest.approx(expected, abs=200 / 65_536)


def test_scale_is_a_line_of_a_sites_file(
    capsys: pytest.CaptureFixture[str], federation: Path, people: pd.DataFrame
) -> None:
    told = call(capsys, "stats", "people", "--in", federation, "--columns", "age,weight", "--scale").out
    assert told.startswith("# age, weight\nscale = { mean = [")
    means = [float(number) for number in told.split("mean = [")[1].split("]")[0].split(",")]
    assert means == pytest.approx([people["age"].mean(), people["weight"].mean()])


def test_noise_is_the_same_again(capsys: pytest.CaptureFixture[str], federation: Path) -> None:
    first, again = (call(capsys, "stats", "people", "--in", federation, "--epsilon", "2", "--json") for _ in range(2))
    assert first.out == again.out
    assert json.loads(first.out)["columns"]["age"]["all"]["mean_error"] > 0
    assert "ε = 2" in call(capsys, "stats", "people", "--in", federation, "--epsilon", "2", "--explain").out


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["peple"], "has no table 'peple'; did you mean 'people'?"),
        (["people", "--columns", "agee"], "there is no column 'agee'; did you mean 'age'?"),
        (["people", "--columns", "name"], "column 'name' is private; nothing can be told of it"),
        (["people", "--per-owner"], "per-owner on table 'people' needs a rule that allows it"),
        (["people", "--quantiles", "half"], "--quantiles half: write numbers between 0 and 1, such as 0.05,0.5,0.95"),
        (["people", "--test", "u:age,sex"], "'u:age,sex' is not a test; write one of chi2:a,b"),
        (["people", "--delta", "1e-7"], "delta belongs to noise; add epsilon, or leave it out"),
        (["people", "--quantile-range"], "a range by quantiles needs histograms; add --histograms N"),
        (["people", "--epsilon", "0"], "epsilon = 0.0: must be above 0"),
        (["people", "--kit", "kits/ana"], "name a federation file or a kit, not both"),
        (["people", "--owners", "west"], "west"),
    ],
)
def test_mistakes_get_one_line(
    capsys: pytest.CaptureFixture[str], federation: Path, arguments: list[str], line: str
) -> None:
    told = call(capsys, "stats", *arguments, "--in", federation)
    assert told.code == 2
    assert line in told.err
    assert len(told.err.strip().splitlines()) == 1
    assert told.out == ""
