"""Single rows of a paper's table: runs that were stopped count, and still go on afterwards."""

from pathlib import Path

import msgspec
import pytest
from bench.paper_runs import main

from support.needs import data_set
from winnow.papers.result_json_lines import RunResultLine, lines_by_key, read_lines, write_lines


def lines(results: Path) -> list[RunResultLine]:
    return [line for line in read_lines(results) if isinstance(line, RunResultLine)]


def test_a_collected_part_of_a_run_is_replaced_by_the_whole(
    tmp_path: Path, data_directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data_set(data_directory, "gas_turbine")
    command = ["paper_runs", "fedprof", "table1", "--algorithms", "fedavg-rp", "--rounds", "2"]
    command += ["--set", "engine.device=cpu", "--data", str(data_directory), "--out", str(tmp_path)]
    monkeypatch.setattr("sys.argv", [*command, "--collect"])
    main()
    assert "contains no run" in capsys.readouterr().out  # nothing has begun: one line, no traceback
    monkeypatch.setattr("sys.argv", command)
    main()
    results = tmp_path / "results.jsonl"
    [whole] = lines(results)
    assert whole.rounds == 2
    assert len(whole.trace) == 3
    part = msgspec.structs.replace(whole, rounds=1, trace=whole.trace[:2])  # as if collected after one round
    write_lines(results, lines_by_key([part]))
    main()
    assert lines(results) == [whole]


def test_a_row_waits_for_its_candidates_and_does_not_run_with_the_seed_of_tuning(
    tmp_path: Path, data_directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    data_set(data_directory, "mnist")
    common = ["paper_runs", "few-labels", "mnist-predictions", "--rounds", "1", "--data", str(data_directory)]
    quick = ["--set", "data.open=100", "--set", "local.steps=1", "--set", "data.clients=2"]
    results = []
    for rates in (("0.01", "0.03"), ("0.1", "0.3")):
        out = tmp_path / rates[0]
        candidates = [f"labelled-only@local.learning_rate={rate}" for rate in rates]
        monkeypatch.setattr(
            "sys.argv", [*common, *quick, "--algorithms", *candidates, "--seeds", "100", "--out", str(out)]
        )
        main()
        results.append(out / "results.jsonl")
        assert {(line.algorithm, line.seed) for line in lines(results[-1])} == {(each, 100) for each in candidates}
    row = [*common, *quick, "--algorithms", "labelled-only", "--seeds", "0", "100", "--out", str(tmp_path / "row")]
    monkeypatch.setattr("sys.argv", [*row, "--tuned", *map(str, results)])
    main()
    assert [(line.algorithm, line.seed) for line in lines(tmp_path / "row" / "results.jsonl")] == [("labelled-only", 0)]
    monkeypatch.setattr("sys.argv", [*common, "--algorithms", "labelled", "--out", str(tmp_path / "wrong")])
    with pytest.raises(SystemExit):
        main()
    assert "no such row: labelled; rows are" in capsys.readouterr().err
