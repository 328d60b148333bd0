"""What notebooks show: tables, figures and progress, in which other people's texts stay texts."""

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import winnow
from winnow.analytics.fit.fitted_model import FittedModel
from winnow.analytics.sql.query_answer import QueryAnswer
from winnow.analytics.truth.truth_report import TruthReport
from winnow.core import Cost, RoundFinished, WinnowError
from winnow.progress.live_display import Progress
from winnow.report.svg_line_chart import POINTS_UP_TO, svg_line_chart

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
QUICK = "ask-a-question"
HOSTILE = "<img src=x onerror=alert(1)></script>"


def execute(path: Path, folder: Path) -> list[dict[str, Any]]:
    """What all cells of a notebook show; in a process of its own, as Jupyter leaves sockets behind."""
    command = [sys.executable, ROOT / "docs" / "site" / "notebook_pages.py", path, folder]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return [output for cell in json.loads(done.stdout)["cells"] for output in cell.get("outputs", ())]


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, marks=() if path.stem == QUICK else pytest.mark.slow(part="docs")) for path in NOTEBOOKS],
    ids=lambda path: path.stem,
)
def test_a_notebook_runs_and_shows_tables_and_figures(path: Path, tmp_path: Path) -> None:
    shown = execute(path, tmp_path)
    tables = [each for each in shown if "<table" in "".join(each.get("data", {}).get("text/html", ""))]
    figures = [each for each in shown if "application/vnd.plotly.v1+json" in each.get("data", {})]
    assert len(tables) > 1
    assert len(figures) > 1
    assert not [each["text"] for each in shown if each.get("name") == "stderr"]


def test_notebooks_are_kept_without_outputs() -> None:
    assert len(NOTEBOOKS) >= 3
    for path in NOTEBOOKS:
        assert not any(cell.get("outputs") for cell in json.loads(path.read_text("utf-8"))["cells"]), path.name


@pytest.fixture(scope="module")
def result() -> winnow.Result:
    """A run between two owners, one of whom has a name that is markup."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(160, 2)).round(2)
    columns = {
        "a": x[:, 0].tolist(),
        "b": x[:, 1].tolist(),
        "owner": [HOSTILE if place % 2 else "north" for place in range(160)],
        "label": ["yes" if row.sum() > 0 else "no" for row in x],
    }
    return winnow.run(data=columns, targets=["label"], owner="owner", rounds=3, metrics=["f1"], progress=False)


def figure_texts(figure: Any) -> str:
    return str(figure.to_json())


def test_a_run_is_a_table_with_its_curve_and_plots_what_was_measured(result: winnow.Result) -> None:
    html = result._repr_html_()
    assert f"{result.best:.4f}" in html
    assert "<polyline" in html
    by_round = {row["round"]: row["reference.f1"] for row in result.history}
    drawn = result.plot("f1").data[0]
    assert dict(zip(drawn.x, drawn.y, strict=True)) == pytest.approx(by_round)
    seconds = [row["seconds"] / 60 for row in result.history]
    assert list(result.plot(over="time").data[0].x) == pytest.approx(seconds)
    assert result.confusion is not None
    shares = result.confusion / result.confusion.sum(axis=1, keepdims=True)
    assert np.array(result.plot("confusion").data[0].z) == pytest.approx(shares)
    assert result.plot("loss").data


def test_names_in_figures_and_tables_of_a_run_are_text(result: winnow.Result) -> None:
    for shown in (figure_texts(result.plot("selection")), figure_texts(result.plot("clients")), result._repr_html_()):
        assert "<img" not in shown
    assert "&lt;img" in figure_texts(result.plot("selection"))


@pytest.mark.parametrize(
    ("what", "over", "told"),
    [
        ("f2", "round", "'f2' was not measured; valid: accuracy, clients, confusion, f1, loss, scores, selection"),
        ("selections", "round", "did you mean 'selection'?"),
        (None, "power", "over='power' is unknown; valid: energy, round, time"),
    ],
)
def test_what_cannot_be_drawn_is_named(result: winnow.Result, what: str | None, over: str, told: str) -> None:
    with pytest.raises(WinnowError, match=re.escape(told)):
        result.plot(what, over=over)


def query_answer(**changes: Any) -> QueryAnswer:
    told = {
        "columns": ["ward", "n"],
        "rows": [{"ward": HOSTILE, "n": 12}, {"ward": "b", "n": None}],
        "errors": [{"n": 2.0}, {}],
        "left_out": 1,
        "hidden_values": 0,
        "unlisted_rows": False,
        "minimum": 10,
        "sql": "SELECT ward, COUNT(*) AS n FROM stays GROUP BY ward",
        "table": "stays",
        "owners": ["a", "b"],
        "plan": [],
    }
    return QueryAnswer({**told, **changes})


def test_an_answer_is_a_table_and_bars_with_errors() -> None:
    answer = query_answer()
    html, bars = answer._repr_html_(), answer.plot().data[0]
    assert "<img" not in html
    assert "<td>12</td><td>2</td>" in html
    assert "1 group left out" in html
    assert (list(bars.y), list(bars.error_y.array)) == ([12.0, None], [2.0, None])
    assert "<img" not in figure_texts(answer.plot("n"))
    with pytest.raises(WinnowError, match="'ward' is not a column of numbers to draw; valid: n"):
        answer.plot("ward")
    with pytest.raises(WinnowError, match="no rows with numbers"):
        query_answer(rows=[], errors=[]).plot()


def test_a_fit_is_a_table_and_intervals() -> None:
    terms = [{"term": HOSTILE, "estimate": 2.0, "std_error": 0.5, "t": 4.0, "p": 0.001}]
    base = {"model": "linear", "rows": 40, "owners": ["a", "b"], "pooled": [], "dropped": [], "rare": 0, "minimum": 10}
    fit = FittedModel({**base, "terms": terms, "statistic": "t"})
    assert "<img" not in fit._repr_html_() + figure_texts(fit.plot())
    assert "<td>2</td><td>0.500</td><td>4</td><td>0.0010</td>" in fit._repr_html_()
    assert list(fit.plot().data[0].error_x.array) == [1.96 * 0.5]
    shares = FittedModel({**base, "model": "pca", "columns": ["a"], "components": [[1.0]], "explained_share": [0.75]})
    assert list(shares.plot().data[0].y) == [0.75]
    with pytest.raises(WinnowError, match="svm has no estimates"):
        FittedModel({**base, "model": "svm"}).plot()


def test_a_truth_discovery_is_two_tables_and_trust() -> None:
    columns = {"item": ["i", "i", "j", "j"], "worker": [HOSTILE, "w", HOSTILE, "w"], "label": [HOSTILE, "no"] * 2}
    report = winnow.truth(columns, method="sum", labels=[HOSTILE, "no"])
    assert isinstance(report, TruthReport)
    shown = report._repr_html_() + figure_texts(report.plot()) + figure_texts(report.plot("confidence"))
    assert "<img" not in shown
    assert shown.count("<table>") == 2
    with pytest.raises(WinnowError, match="'trusted' is unknown; did you mean 'trust'"):
        report.plot("trusted")


def test_a_chart_has_every_curve_and_few_points() -> None:
    long = [(place, place / 7) for place in range(10 * POINTS_UP_TO)]
    chart = svg_line_chart({HOSTILE: long, "flat": [(0, 1.0), (5, float("nan"))]}, x_title="<x>", y_title="<y>")
    first, second = re.findall(r'points="([^"]*)"', chart)
    assert len(first.split()) <= POINTS_UP_TO + 1
    assert len(second.split()) == 1
    assert "<img" not in chart
    assert "<y>" not in chart
    assert svg_line_chart({"none": []}, x_title="x", y_title="y") == ""
    first = svg_line_chart({"one round": [(1, 0.5)]}, x_title="round", y_title="accuracy")
    assert (">0<" in first, ">2<" in first, ">0.9<" in first) == (True, True, False)


@pytest.fixture
def notebook(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[list[dict[str, Any]]]:
    """What IPython would send to the page."""
    monkeypatch.setenv("IPYTHONDIR", str(tmp_path))
    from IPython.core.displaypub import CapturingDisplayPublisher
    from IPython.core.interactiveshell import InteractiveShell
    from traitlets.config import Config

    shell = InteractiveShell.instance(config=Config({"HistoryManager": {"enabled": False}}))
    captured = CapturingDisplayPublisher()
    monkeypatch.setattr(shell, "display_pub", captured)
    yield captured.outputs
    InteractiveShell.clear_instance()


def finished(number: int, accuracy: float) -> RoundFinished:
    return RoundFinished(
        round=number,
        at=30.0 * number,
        version=number,
        metrics={"reference": {"accuracy": accuracy}},
        aggregated=np.array([1]),
        loss=0.5,
        joules=1.0,
        cost=Cost(),
    )


def train(rounds: int, *, interrupted: bool) -> None:
    experiment = SimpleNamespace(
        name=HOSTILE,
        algorithm="fedprof",
        seed=0,
        all_rounds=4,
        evaluation=SimpleNamespace(by="reference"),
        model_dump=dict,
    )
    plan = SimpleNamespace(metric="accuracy", lower_is_better=False, notice="")
    with Progress(experiment, Console(force_jupyter=True)) as progress:  # type: ignore[arg-type]
        progress.on_start(SimpleNamespace(plan=plan, clock="device"))  # type: ignore[arg-type]
        for number in range(1, rounds + 1):
            progress.on_event(finished(number, 0.1 * number))
        if interrupted:
            raise KeyboardInterrupt


def test_progress_is_redrawn_in_place_and_gone_at_the_end(notebook: list[dict[str, Any]]) -> None:
    train(4, interrupted=False)
    first, *later = notebook
    assert not first["update"]
    assert later
    assert all(each["update"] for each in later)
    assert len({each["transient"]["display_id"] for each in notebook}) == 1
    assert later[-1]["data"]["text/html"] == ""
    assert not [each for each in notebook if "<img" in each["data"]["text/html"]]


def test_what_was_interrupted_stays_on_the_page(notebook: list[dict[str, Any]]) -> None:
    with pytest.raises(KeyboardInterrupt):
        train(3, interrupted=True)
    last = notebook[-1]["data"]["text/html"]
    assert "round 3/4" in last
    assert "accuracy 0.3000" in last
    (points,) = re.findall(r'points="([^"]*)"', last)
    assert len(points.split()) == 3
