"""winnow compare: real worker processes, against the same runs made one after another in this process."""

import json
import os
import signal
import sys
from io import StringIO
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

import winnow
from child_processes import running
from command_line import call, write_tiny
from test_workers import gone
from waiting import eventually
from winnow.cli.multi_run_display import MultiRunDisplay
from winnow.experiment.comparison import experiment_grid, run_folder_path
from winnow.experiment.run_pool import RunAdvanced, RunCompleted, RunFailed, RunSpec, run_all


@pytest.fixture(autouse=True)
def _somewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_workers_give_what_one_process_gives_and_resume_keeps_it(capsys, tmp_path):
    tiny = write_tiny(tmp_path)
    done = call(capsys, "compare", tiny, "--seeds", "3,5", "--workers", 2, "--json")
    assert done.code == 0
    records = [json.loads(line) for line in done.out.splitlines()]
    assert [(each["algorithm"], each["seed"]) for each in records] == [
        ("fedprof", 3), ("fedprof", 5), ("fedavg-rp", 3), ("fedavg-rp", 5)
    ]  # fmt: skip
    alone = winnow.compare(tiny, seeds=[3, 5], progress=False)
    assert [each["best"]["value"] for each in records] == [record.best for record in alone.records]
    assert "4 of 4 runs" in done.err

    folder = Path("runs/compare-tiny")
    assert json.loads((folder / "compare.json").read_text())["records"] == [vars(record) for record in alone.records]
    assert (folder / "report.html").is_file()
    written = (folder / "fedprof-seed3" / "result.json").stat().st_mtime_ns
    again = call(capsys, "compare", tiny, "--seeds", "3,5", "--workers", 1, "--json", "--resume", "--quiet")
    assert (again.out, again.err) == (done.out, "")
    assert (folder / "fedprof-seed3" / "result.json").stat().st_mtime_ns == written


CRASHING = """
import os, signal
from torch import nn

def crash(shape, outputs):
    os.kill(os.getpid(), signal.SIGKILL)

def fail(shape, outputs):
    raise ValueError("no such thing")
"""


def test_a_crash_and_a_failure_do_not_stop_the_others(tmp_path):
    tiny, models = write_tiny(tmp_path), tmp_path / "models.py"
    models.write_text(CRASHING)
    crash, fail = (
        experiment_grid(
            tiny, algorithms=["fedprof"], seeds=[seed], model={"name": "python", "factory": f"{models}:{name}"}
        )[0]
        for seed, name in ((1, "crash"), (2, "fail"))
    )
    sound = experiment_grid(tiny, algorithms=["fedavg-rp"], seeds=1)[0]
    jobs = [
        RunSpec(experiment=each, out=run_folder_path(each, tmp_path), resume=False) for each in (crash, fail, sound)
    ]
    ends = {index: message for index, message in run_all(jobs, 1) if not isinstance(message, RunAdvanced)}
    assert ends[0] == RunFailed(reason="the worker process ended unexpectedly (killed by SIGKILL)")
    assert isinstance(ends[1], RunFailed)
    assert "no such thing" in ends[1].reason
    assert ends[2] == RunCompleted()


ENDLESS = """
import os, time
from pathlib import Path

def build(shape, outputs):
    Path(__file__).with_name(f"worker-{os.getpid()}").touch()
    time.sleep(600)
"""


def test_workers_do_not_outlive_a_comparison_that_is_killed(tmp_path):
    """Else they would go on for as long as their runs take, and hold the folders that a new start needs."""
    (tmp_path / "models.py").write_text(ENDLESS)
    tiny = write_tiny(tmp_path)
    model = ["--set", "model.name=python", "--set", "model.factory=models.py:build"]
    command = [sys.executable, "-m", "winnow.cli", "compare", tiny, *model, "--workers", "2", "--quiet"]
    with running(command, cwd=tmp_path) as comparing:
        eventually(
            lambda: len(list(tmp_path.glob("worker-*"))) == 2 or comparing.poll() is not None,
            "the comparison started no two workers",
        )
        assert comparing.poll() is None
    workers = [int(mark.name.partition("-")[2]) for mark in tmp_path.glob("worker-*")]
    outliving = [worker for worker in workers if not gone(worker)]
    for worker in outliving:
        os.kill(worker, signal.SIGKILL)
    assert not outliving


def test_a_failed_run_is_one_line_and_exit_code_1(capsys, tmp_path):
    tiny = write_tiny(tmp_path)
    too_many = ("--set", "data.clients=5000")
    done = call(
        capsys, "compare", tiny, "--seeds", 1, "--algorithms", "fedavg-rp", "--workers", 1, "--quiet", *too_many
    )
    assert done.code == 1
    assert done.err.count("\n") == 1
    assert done.err.startswith("winnow: error: fedavg-rp, seed 0: ")
    assert "5000 clients" in done.err


def test_a_mistake_is_said_once_and_leaves_nothing_behind(capsys, tmp_path):
    refused = call(capsys, "compare", write_tiny(tmp_path), "--set", "data.name=digts")
    assert (refused.code, refused.err.count("\n")) == (2, 1)
    assert not Path("runs").exists()


def test_ctrl_c_says_where_to_continue(capsys, tmp_path, monkeypatch):
    tiny = write_tiny(tmp_path)

    def interrupted(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr("winnow.experiment.run_pool.run_all", interrupted)
        stopped = call(capsys, "compare", tiny, "--out", "two words")
    assert stopped.code == 130
    assert stopped.err == "winnow: stopped; continue with the same command and --out './two words' --resume\n"


def test_a_pipe_is_told_how_long_it_will_take(monkeypatch):
    hands = SimpleNamespace(now=0.0)
    monkeypatch.setattr("winnow.cli.multi_run_display.time.monotonic", lambda: hands.now)
    text = StringIO()
    experiments = [SimpleNamespace(name="a", algorithm="b", seed=seed, all_rounds=10) for seed in (0, 1, 2)]
    with MultiRunDisplay(experiments, Console(file=text, width=80)) as board:
        for index, _ in enumerate(experiments):
            hands.now += 15.0
            board.on_message(index, RunCompleted())
    assert [line.partition(": ")[2] for line in text.getvalue().splitlines()] == [
        "done (1 of 3 runs, 30 s left)", "done (2 of 3 runs, 15 s left)", "done (3 of 3 runs)"
    ]  # fmt: skip


def test_a_folder_with_something_in_it_is_refused(capsys, tmp_path):
    tiny = write_tiny(tmp_path)
    refused = call(capsys, "compare", tiny, "--out", tmp_path)
    assert refused.code == 2
    assert "is not empty; continue what is in it with --resume" in refused.err
