"""winnow reproduce flare: figure 4 with settings that are chosen by other runs, split learning, statistics."""

from pathlib import Path

import pytest

from command_line import call
from support.needs import data_set
from winnow.papers import PAPERS, MeasuredResultLine, ReproductionOptions, RunResultLine, plan_reproduction, read_lines
from winnow.papers.flare.tuned_methods import METHODS, TUNING, TUNING_SEED
from winnow.papers.result_json_lines import ResultLine, lines_by_key
from winnow.papers.results_page import write_markdown_page

PAPER = PAPERS["flare"]
TINY = [
    "--set", "data.name=digits", "--set", "data.reference=200", "--set", "model.channels=[4,8]", "--set",
    "local.steps=2",
]  # fmt: skip


def tuned(best: int) -> list[ResultLine]:
    """Lines of the search, in which the candidate of this number is the best of each algorithm."""
    return [
        RunResultLine(
            item=TUNING,
            algorithm=method.candidate_name(index),
            seed=TUNING_SEED,
            rounds=1,
            trace=(0.9 if index == best else 0.5,),
        )
        for method in METHODS
        for index in range(len(method.candidates))
    ]


def test_algorithms_have_as_many_candidates_each_on_a_seed_that_no_figure_shows() -> None:
    assert {len(method.candidates) for method in METHODS} == {4}
    options = ReproductionOptions(seeds=5, known=lines_by_key(tuned(best=0)))
    shown = {run.experiment.seed for item in PAPER.items if item.name != TUNING for run in item.runs(options)}
    assert shown == set(range(5))


def test_figures_use_the_best_candidate_and_wait_until_it_is_known() -> None:
    wanted = ReproductionOptions(seeds=1, sets=("data.name=digits", "data.reference=200"))
    figures = [item for item in PAPER.items if item.name in ("fig4-alpha", "fig4-methods")]
    assert not [run for item in figures for run in item.runs(wanted)]
    for best in (1, 2):
        runs = plan_reproduction(PAPER, ["fig4-alpha", "fig4-methods"], wanted, lines_by_key(tuned(best)))
        settings = {run.algorithm: run.experiment for run in runs.runs}
        assert settings["fedavg"].local.learning_rate == (0.01 if best == 1 else 0.03)
        assert settings["fedopt"].server.momentum == (0.9 if best == 1 else 0.6)
        assert {settings[name].data.partition.alpha for name in ("fedavg", "scaffold")} == {0.1}
        assert sorted(settings) == ["alpha-0.3", "alpha-0.5", "alpha-1", "fedavg", "fedopt", "fedprox", "scaffold"]


def test_split_rows_are_compared_seed_by_seed(tmp_path: Path) -> None:
    lines = [
        MeasuredResultLine(item="fig6-mnist", row=row, seed=seed, values={"accuracy": score, "seconds": 2.0})
        for row, scores in (("pooled", (0.98, 0.97)), ("split-u", (0.978, 0.968)))
        for seed, score in enumerate(scores)
    ]
    page = write_markdown_page(tmp_path / "page.md", PAPER, lines_by_key(lines)).read_text()
    assert "| U shape: the middle at the server (2) | 0.9730 ± 0.0071 | -0.20 ± 0.00 | 2.0 ± 0.0 |" in page


@pytest.mark.slow(part="papers")
def test_figure_4_runs_its_search_first_and_then_what_it_chose(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["reproduce", "flare", "fig4", "--seeds", "1", "--rounds", "1", *TINY, "--out", str(tmp_path)]
    call(capsys, *command, "--workers", "1")
    lines = read_lines(tmp_path / "results.jsonl")
    assert len(lines) == 16 + 3 + 4
    call(capsys, *command, "--workers", "1")
    assert read_lines(tmp_path / "results.jsonl") == lines, "nothing is run again"


@pytest.mark.slow(part="science")
def test_split_learning_is_as_good_as_one_network_in_one_place(data_directory: Path) -> None:
    """A reduced case of fig6: one epoch of MNIST; the page has three, and three seeds."""
    data_set(data_directory, "mnist")
    item = next(item for item in PAPER.items if item.name == "fig6-mnist")
    lines = {
        line.row: line.values["accuracy"]
        for line in item.measure(ReproductionOptions(seeds=1, rounds=1, data_directory=data_directory), {})
    }
    assert lines["pooled"] > 0.94
    for row in ("split", "split-u"):
        assert lines[row] == pytest.approx(lines["pooled"], abs=0.002)
    assert lines["split-pipelined"] == pytest.approx(lines["pooled"], abs=0.02)


@pytest.mark.slow(part="science")
def test_statistics_are_those_of_the_pooled_rows(
    data_directory: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data_set(data_directory, "tabular")
    call(capsys, "reproduce", "flare", "fig7", "--data", str(data_directory), "--out", str(tmp_path))
    (age, *_) = read_lines(tmp_path / "results.jsonl")
    assert isinstance(age, MeasuredResultLine)
    for name in ("rows", "mean", "sd"):
        assert age.values[name] == pytest.approx(age.values[f"pooled {name}"], rel=1e-6)
