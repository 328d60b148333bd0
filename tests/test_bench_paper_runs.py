"""Single rows of a paper's table: runs that were stopped count, and still go on afterwards."""

from pathlib import Path

import msgspec
import pytest
from bench.paper_runs import main

from winnow.papers.result_json_lines import RunResultLine, lines_by_key, read_lines, write_lines


def lines(results: Path) -> list[RunResultLine]:
    return [line for line in read_lines(results) if isinstance(line, RunResultLine)]


def test_a_collected_part_of_a_run_is_replaced_by_the_whole(
    tmp_path: Path, data_directory: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if not (data_directory / "gas_turbine").exists():
        pytest.skip("needs the gas turbine's data")
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
