"""What a downloaded job says of itself, honestly or not."""

import json
import math
from pathlib import Path

import pytest

from winnow.core import RunError
from winnow.deploy.client.download import write_run_folder
from winnow.runs import RunFolder, RunLabel


def confused(counts: list[list[int]]) -> bytes:
    overall = {"name": "test", "samples": 1, "metrics": {}, "confusion": counts}
    return json.dumps({"round": 1, "overall": overall, "classes": [str(each) for each in range(len(counts))]}).encode()


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


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("result.json", b"{{"),
        ("result.json", b"[" * 200_000),
        ("run.json", b"[" * 200_000),
        ("events", b'{"kind":"selected","round":1,"at":0,"version":0,"clients":[1099511627776],"counts":[1]}\n'),
        ("events", b'{"kind":"selected","round":1,"at":0,"version":0,"clients":[1' + b"0" * 30 + b'],"counts":[1]}\n'),
        ("evaluation.json", b'{"round":1,"overall":{"name":"test","samples":1,"metrics":{},"confusion":[]}}'),
        ("evaluation.json", confused([[10**30]])),
        ("evaluation.json", confused([[-1]])),
        ("evaluation.json", confused([[0] * 1001] * 1001)),  # a report would draw a million cells
    ],
)
def test_what_a_server_makes_up_is_refused_in_one_line(tmp_path: Path, name: str, content: bytes) -> None:
    label = RunLabel(name="job", algorithm="fedavg", seed=0, metric="accuracy")
    files = {"run.json": label.to_json().encode(), "result.json": b'{"rounds": 0}', name: content}
    for each, held in files.items():
        (tmp_path / each).write_bytes(held)
    with pytest.raises(RunError) as refused:
        write_run_folder(tmp_path / "run", "", {each: tmp_path / each for each in files}, submitted=0.0, finished=True)
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 1_000
