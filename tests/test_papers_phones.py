"""winnow reproduce phones: parties with speech and text, on data that another command prepares."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from winnow.core import ConfigError
from winnow.papers import PAPERS
from winnow.papers.page_blocks import TableBlock
from winnow.papers.paper import ReproductionOptions
from winnow.papers.phones.party_rows import find_prepared, read_parties
from winnow.papers.phones.prepare import main
from winnow.papers.phones.transfer_runs import TransferSetting, measure_row
from winnow.papers.phones.transfer_table import ROWS, TransferTable
from winnow.papers.result_json_lines import MeasuredResultLine, lines_by_key

TABLE = PAPERS["phones"].items[0]
assert isinstance(TABLE, TransferTable)
TESTED = 40


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    spoken, written = TESTED + 30, TESTED + 60
    (tmp_path / "phones").mkdir()
    np.savez(
        tmp_path / "phones" / "phones.npz",
        speech_frames=rng.integers(1, 255, (spoken, 40, 16)).astype(np.uint8),
        speech_phones=rng.integers(0, 40, (spoken, 64)).astype(np.uint8),
        speech_labels=rng.integers(0, 2, spoken).astype(np.uint8),
        text_words=rng.integers(1, 4096, (written, 24)).astype(np.uint16),
        text_phones=rng.integers(0, 40, (written, 64)).astype(np.uint8),
        text_labels=rng.integers(0, 2, written).astype(np.uint8),
        tested=np.array(TESTED),
    )
    return tmp_path


def test_no_tested_sentence_is_trained_on(folder: Path) -> None:
    parties = read_parties(find_prepared(folder), 20, 1_000, seed=1)
    for party, size in (("speech", 20), ("text", 60)):
        held = parties[party]
        assert len(held.training.y) == size
        assert len(held.validation.y) + len(held.test.y) == TESTED
        whole = {row.tobytes() for part in (held.validation, held.test) for row in part.x}
        assert len(whole) == TESTED
        assert not whole & {row.tobytes() for row in held.training.x}


def test_missing_data_are_one_line_with_the_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINNOW_DATA", str(tmp_path))
    with pytest.raises(ConfigError, match=r"python -m winnow.papers.phones.prepare") as refused:
        list(TABLE.measure(ReproductionOptions(seeds=1, data_directory=tmp_path), {}))
    assert "\n" not in str(refused.value)


def test_both_parties_are_scored(folder: Path) -> None:
    setting = TransferSetting(item="small-speech", speech=30, text=60, rounds=1, directory=folder)
    [row] = (row for row in ROWS if row.name == "ours-inf")
    line = measure_row(setting, row, seed=0)
    assert line.values.keys() == {"speech", "text"}
    assert all(0 <= value <= 100 for value in line.values.values())


def test_only_what_is_missing_of_the_given_seeds_is_measured(folder: Path) -> None:
    some = replace(TABLE, rows=tuple(row for row in ROWS if row.name == "alone-text"))
    known = lines_by_key([MeasuredResultLine(item=TABLE.name, row="alone-text", seed=3, values={"text": 60.0})])
    wanted = ReproductionOptions(rounds=1, data_directory=folder)
    assert [(line.row, line.seed) for line in some.measure_seeds((3, 5), wanted, known)] == [("alone-text", 5)]


def test_differences_are_paired_by_seed() -> None:
    values = {"alone-speech": 40.0, "phones-speech": 50.0, "ours-inf": 53.0}
    text = [MeasuredResultLine(item=TABLE.name, row="alone-text", seed=seed, values={"text": 60.0}) for seed in (0, 1)]
    found = [
        MeasuredResultLine(
            item=TABLE.name, row=row, seed=seed, values={"speech": value + seed + (row[0] == "o") * seed}
        )
        for row, value in values.items()
        for seed in range(2)
    ]
    scores, with_phones, without = (
        {row[0]: row[1:] for row in block.rows}
        for block in TABLE.blocks(lines_by_key([*found, *text]))
        if isinstance(block, TableBlock)
    )
    ours = "Private fusion (ours), ε = ∞ (2)"
    assert scores.keys() == {"Alone, without phones (2)", "Alone, with phones (2)", ours}
    assert scores[ours][0].startswith("54.0")
    assert [cell[:4] for cell in scores["Alone, without phones (2)"]] == ["40.5", "60.0"]
    assert with_phones == {ours: ["+3.5 ± 0.5", "–"]}
    assert without == {ours: ["+13.5 ± 0.5", "–"]}


@pytest.mark.slow(part="papers")
def test_what_is_measured_is_kept_before_the_rest_is(folder: Path) -> None:
    """So that a command that is stopped loses the rows under way, and no others."""
    lines = TABLE.measure(ReproductionOptions(seeds=1, rounds=1, data_directory=folder), {})
    assert not isinstance(lines, list)
    assert next(iter(lines)).row == ROWS[0].name


def test_preparing_without_its_sentences_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WINNOW_DATA", str(tmp_path))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["prepare", "--out", str(tmp_path / "phones.npz")])
    with pytest.raises(SystemExit, match=r"error: sst2 .* train\.tsv") as refused:
        main()
    assert "\n" not in str(refused.value)
