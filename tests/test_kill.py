"""A real process, killed without warning and resumed, ends as if nothing had happened."""

import json
import random
import subprocess
import sys
import time
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from child_processes import running
from command_line import call
from waiting import PATIENCE, eventually

SAME = [
    *("config.toml", "conditions.json", "events.jsonl", "metrics.csv", "evaluation.json"),
    *("best.safetensors", "last.safetensors"),
]


def winnow(*arguments: str) -> AbstractContextManager[subprocess.Popen[bytes]]:
    command = [sys.executable, "-c", "from winnow.cli import main; main()", *arguments, "--quiet"]
    return running(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)


def run_here(capsys: pytest.CaptureFixture[str], *arguments: str) -> None:
    done = call(capsys, *arguments, "--quiet")
    assert done.code == 0, done.err


def finish(process: subprocess.Popen[bytes]) -> None:
    _, errors = process.communicate(timeout=PATIENCE)
    assert process.returncode == 0, errors.decode()


def written_again(path: Path, since: int) -> bool:
    return path.exists() and path.stat().st_mtime_ns > since


def kill_after_a_checkpoint(process: subprocess.Popen[bytes], checkpoint: Path, since: int, pause: float) -> bool:
    """Kill the process some time after it wrote a checkpoint; False if it was done before."""
    eventually(
        lambda: written_again(checkpoint, since) or process.poll() is not None,
        "the process wrote no checkpoint",
        every=0.01,
    )
    if process.poll() is not None:
        finish(process)
        return False
    time.sleep(pause)
    process.kill()
    process.communicate()
    return process.returncode == -9


def settled(folder: Path) -> dict[str, object]:
    files: dict[str, object] = {name: (folder / name).read_bytes() for name in SAME}
    result = json.loads((folder / "result.json").read_text())
    files["result"] = {key: value for key, value in result.items() if key != "wall_seconds"}
    return files


@pytest.mark.slow(part="kills")
@pytest.mark.parametrize("algorithm", ["fedprof", "fedavg"])
def test_killed_at_any_moment_and_resumed(tmp_path: Path, capsys: pytest.CaptureFixture[str], algorithm: str) -> None:
    common = ("run", "demo", "--algorithm", algorithm, "--rounds", "1000", "--seed", "3")
    whole, broken = tmp_path / "whole", tmp_path / "broken"
    run_here(capsys, *common, "--out", str(whole))
    chance = random.Random(0)
    since, killed = 0, 0
    for _ in range(2):
        with winnow(*common, "--out", str(broken), "--resume") as process:
            pause = 0.2 * chance.random()
            if not kill_after_a_checkpoint(process, broken / "checkpoint.safetensors", since, pause):
                break
        killed += 1
        since = (broken / "checkpoint.safetensors").stat().st_mtime_ns
    run_here(capsys, "run", str(broken), "--resume")
    assert killed, "the run was over before it could be killed"
    assert settled(broken) == settled(whole)
    assert not list(broken.glob("*.tmp"))


def test_killed_before_the_first_checkpoint(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    common = ("run", "demo", "--rounds", "6", "--out")
    events = tmp_path / "broken" / "events.jsonl"
    with winnow(*common, str(tmp_path / "broken")) as process:
        eventually(
            lambda: events.exists() or process.poll() is not None,
            "the process created no event log",
            every=0.005,
        )
        assert process.poll() is None, process.communicate()
        process.kill()
    run_here(capsys, *common, str(tmp_path / "broken"), "--resume")
    run_here(capsys, *common, str(tmp_path / "whole"))
    assert settled(tmp_path / "broken") == settled(tmp_path / "whole")
