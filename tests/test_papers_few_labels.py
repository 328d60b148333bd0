"""winnow reproduce few-labels: methods between what few labels give and what all would."""

from collections import Counter
from pathlib import Path

import pytest

from command_line import call
from winnow.papers import PAPERS, ReproductionOptions, RunResultLine, read_lines
from winnow.papers.few_labels.gap_table import TUNING_SEEDS, GapTable, gaps_closed
from winnow.papers.few_labels.picture_tables import ENCODED, ENCODED_MEAN
from winnow.papers.last_rounds import last_score
from winnow.papers.page_blocks import TableBlock
from winnow.papers.result_json_lines import ResultLines, lines_by_key

PAPER = PAPERS["few-labels"]
TABLES = [item for item in PAPER.items if isinstance(item, GapTable)]
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


def tuned(item: GapTable, best: str = "") -> ResultLines:
    """Lines of all candidates, of which the `best` has the largest score."""
    runs = item.runs(ReproductionOptions(seeds=1))
    return lines_by_key(
        RunResultLine(item=run.item, algorithm=run.algorithm, seed=run.experiment.seed, rounds=1, trace=(score,))
        for run in runs
        for score in [0.9 if run.algorithm.endswith(f"@{best}") else 0.5]
    )


def table(name: str) -> GapTable:
    return next(item for item in TABLES if item.name == name)


def test_every_row_has_as_many_candidates_on_seeds_that_no_table_shows() -> None:
    for item in TABLES:
        tried = Counter(
            run.algorithm.partition("@")[0] for run in item.runs(ReproductionOptions(seeds=5)) if "@" in run.algorithm
        )
        assert len(set(tried.values())) <= 1, item.name
        seeds = {run.experiment.seed for run in item.runs(ReproductionOptions(seeds=5)) if "@" in run.algorithm}
        assert not seeds & set(range(5))


def test_a_row_runs_with_its_best_candidate_once_all_are_known() -> None:
    item, wanted = table("mnist-iid"), ReproductionOptions(seeds=1)
    assert {run.experiment.seed for run in item.runs(wanted)} == set(TUNING_SEEDS), "nothing is chosen yet"
    known = tuned(item, "local.learning_rate=0.03")
    rates = {
        run.algorithm: run.experiment.local.learning_rate
        for run in item.runs(ReproductionOptions(seeds=1, known=known))
        if run.experiment.seed == 0
    }
    assert rates == {
        "labelled-only": 0.03,
        "fixmatch": 0.03,
        "fedmatch": 0.003,  # its candidates are others, and equal here: the first
        "semifl": 0.03,
        "all-labels": 0.03,
    }
    partial = {key: line for key, line in known.items() if key[1] != "semifl@local.learning_rate=0.01"}
    rows = {run.algorithm for run in item.runs(ReproductionOptions(seeds=1, known=partial))}
    assert "fixmatch" in rows
    assert "semifl" not in rows


def test_tables_of_one_preset_share_a_choice_and_so_do_ways_of_selecting() -> None:
    known = tuned(table("mnist-iid"), "local.learning_rate=0.03")
    runs = table("mnist-foreign").runs(ReproductionOptions(seeds=1, known=known))
    assert {run.item for run in runs if "@" in run.algorithm} == {"mnist-iid"}
    rates = {run.algorithm: run.experiment.local.learning_rate for run in runs if run.item == "mnist-foreign"}
    assert rates == dict.fromkeys(("labelled-only", "fixmatch", "semifl", "semifl-profile", "all-labels"), 0.03)


def test_every_table_has_labels_alone_fixmatch_and_all_labels() -> None:
    for item in TABLES:
        wanted = ReproductionOptions(seeds=1, known=tuned(item))
        runs = {run.algorithm: run.experiment for run in item.runs(wanted) if run.experiment.seed == 0}
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


def test_means_are_over_seeds_that_all_domains_have() -> None:
    lines = lines_by_key(
        RunResultLine(item=item.name, algorithm=row, seed=seed, rounds=1, trace=(score + 0.1 * seed + 0.01 * place,))
        for place, item in enumerate(ENCODED)
        for row, score in (("labelled-only", 0.5), ("fade", 0.6))
        for seed in range(3 if row == "fade" else 2)
        if place < 3 or seed != 1 or row != "fade"
    )
    _, table = ENCODED_MEAN.blocks(lines)
    assert isinstance(table, TableBlock)
    rows = {cells[0]: cells[1:] for cells in table.rows}
    assert rows["Labelled domains only (2)"][:4] == ["0.5500", "0.5600", "0.5700", "0.5800"]
    assert rows["Labelled domains only (2)"][5] == "–"
    assert rows["FADE (2)"][:4] == ["0.7000", "0.7100", "0.7200", "0.7300"], "seeds 0 and 2"
    assert rows["FADE (2)"][5].startswith("0.1000"), "seed 0 alone has both rows"
    assert rows["FixMatch"][0] == "not run"
    assert not ENCODED_MEAN.has_results({})


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.name)
def test_every_row_runs_once_all_candidates_have_results(table: GapTable) -> None:
    candidates = [run for run in table.runs(ReproductionOptions(seeds=0)) if run.experiment.seed in TUNING_SEEDS]
    known = lines_by_key(
        RunResultLine(item=run.item, algorithm=run.algorithm, seed=run.experiment.seed, rounds=1, trace=(0.5,))
        for run in candidates
    )
    ready = {run.algorithm for run in table.runs(ReproductionOptions(seeds=1, known=known))}
    assert ready >= {row.name for row in table.rows if not row.untrained_of}


def test_the_domain_without_labels_is_the_one_that_is_scored() -> None:
    for item in ENCODED:
        [run] = [run for run in item.runs(ReproductionOptions(seeds=1)) if run.algorithm == "fade@client.factor=1"]
        data = run.experiment.data
        assert run.experiment.encode is not None
        assert data.labels is not None
        assert data.labels.without == data.test_owners


@pytest.mark.slow(part="papers")
def test_it_runs_resumes_and_shows_what_it_has(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = [
        "reproduce",
        "few-labels",
        "mnist-iid",
        "--seeds",
        "1",
        "--rounds",
        "1",
        *TINY,
        "--out",
        str(tmp_path),
    ]
    assert call(capsys, *command, "--workers", "1").code == 0
    lines = read_lines(tmp_path / "results.jsonl")
    rows = {"labelled-only", "fixmatch", "fedmatch", "semifl", "all-labels"}
    assert {line.algorithm for line in lines if line.seed == 0} == rows
    assert len(lines) == len(rows) * (1 + 2 * len(TUNING_SEEDS)), "two candidates"
    page = (tmp_path / "index.md").read_text()
    assert "SemiFL (1)" in page
    assert "Gap closed" in page
    assert page.count(" *") == len(rows), "one candidate of each is chosen"
    assert "| learning_rate=0.03: " in page
    call(capsys, *command, "--workers", "1")
    assert list(read_lines(tmp_path / "results.jsonl")) == list(lines), "nothing is run again"
