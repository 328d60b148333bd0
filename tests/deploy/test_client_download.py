"""What a downloaded job says of itself, honestly or not."""

import json
import math
from pathlib import Path

import pytest

from winnow.deploy.client.download import write_run_folder
from winnow.runs import RunFolder, RunLabel


def downloaded(tmp_path: Path, submitted: float) -> RunLabel:
    label = RunLabel(name="job", algorithm="fedavg", seed=0, metric="accuracy", started="yesterday", clock="device")
    (tmp_path / "label").write_text(label.to_json())
    (tmp_path / "result").write_text(json.dumps({"rounds": 0}))
    files = {"run.json": tmp_path / "label", "result.json": tmp_path / "result"}
    folder = write_run_folder(tmp_path / "run", 'name = "job"', files, submitted=submitted, finished=True)
    assert (folder / "report.html").is_file()
    return RunFolder.open(folder).label


def test_a_job_was_started_when_it_was_submitted_and_tells_real_time(tmp_path: Path) -> None:
    label = downloaded(tmp_path, 1_794_812_400.0)
    assert (label.started, label.clock) == ("2026-11-16T07:00:00+00:00", "wall")


@pytest.mark.parametrize("submitted", [math.nan, math.inf, -1e300, 1e18])
def test_a_server_that_tells_no_time_spoils_nothing(tmp_path: Path, submitted: float) -> None:
    assert downloaded(tmp_path, submitted).started == ""
