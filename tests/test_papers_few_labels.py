"""winnow reproduce few-labels: methods between what few labels give and what all would."""

from pathlib import Path

import pytest

from command_line import call
from winnow.papers import PAPERS, ReproductionOptions, RunResultLine, read_lines
from winnow.papers.few_labels.gap_table import GapTable, gaps_closed
from winnow.papers.last_rounds import last_score

PAPER = PAPERS["few-labels"]
TINY = [
    "--set", "data.name=digits", "--set", "data.clients=4", "--set", "data.reference=100", "--set", "data.test=50",
    "--set", "select.count=2", "--set", "local.epochs=1", "--set", "data.labels.rows=60", "--set", "server.epochs=1",
    "--set", "data.open=0",
]  # fmt: skip


def run_line(seed: int, *trace: float | None) -> RunResultLine:
    return RunResultLine(item="x", algorithm="y", seed=seed, rounds=len(trace), trace=trace)


def test_the_gap_is_measured_seed_by_seed_over_the_last_rounds() -> None:
    assert last_score(run_line(0, 0.9, 0.1, 0.2, None, 0.3, 0.4, 0.5)) == pytest.approx(0.3)
    low, mid, high = [run_line(0, 0.5), run_line(1, 0.6)], [run_line(0, 0.8), run_line(1, 0.6)], [run_line(0, 0.9)]
    assert gaps_closed(low, mid, high) == pytest.approx([0.75])


def test_every_table_has_labels_alone_fixmatch_and_all_labels() -> None:
    for item in PAPER.items:
        assert isinstance(item, GapTable)
        runs = {run.algorithm: run.experiment for run in item.runs(ReproductionOptions(seeds=1))}
        assert runs["labelled-only"].client.name in ("idle", "plain")
        known, few = runs["all-labels"].data.labels, runs["fixmatch"].data.labels
        if few.at == "server":
            assert (known.at, known.rows, known.share) == ("server", few.rows, 1), "the server goes on training"
            assert runs["all-labels"].server == runs["fixmatch"].server
            assert runs["all-labels"].client.clip == runs["all-labels"].server.clip
        else:
            assert known is None
        assert runs["fixmatch"].client.name == "fixmatch"
        assert runs.keys() & {"semifl", "rscfed", "ds-fl", "fedema", "fade"}
        assert len({str(each.data.partition) for each in runs.values()}) == 1, "all rows have the same clients"


@pytest.mark.slow(part="papers")
def test_it_runs_resumes_and_shows_what_it_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["reproduce", "few-labels", "mnist-iid", "--seeds", "1", "--rounds", "1", *TINY, "--out", str(tmp_path)]
    assert call(capsys, *command, "--workers", "1").code == 0
    lines = read_lines(tmp_path / "results.jsonl")
    assert {line.algorithm for line in lines} == {"labelled-only", "fixmatch", "fedmatch", "semifl", "all-labels"}
    page = (tmp_path / "index.md").read_text()
    assert "SemiFL (1)" in page
    assert "Gap closed" in page
    call(capsys, *command, "--workers", "1")
    assert list(read_lines(tmp_path / "results.jsonl")) == list(lines), "nothing is run again"
