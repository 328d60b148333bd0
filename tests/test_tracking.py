"""Runs in TensorBoard, MLflow and Weights & Biases: the numbers of metrics.csv, every one of them once."""

import csv
import math
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import mlflow
import pytest

import winnow
from child_processes import running
from command_line import call
from waiting import PATIENCE, eventually
from winnow.core import ConfigError
from winnow.tracking import Tracker
from winnow.tracking.tensorboard_tracker import TensorBoardTracker
from winnow.tracking.track_run import export_run
from winnow.tracking.tracker import TrackWriter

ROUNDS = 4


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tracked") / "mine"
    winnow.run(
        "demo", rounds=ROUNDS, out=folder, tracking=[{"name": "tensorboard", "folder": str(folder.parent / "live")}]
    )
    return folder


def written(run: Path) -> dict[tuple[str, int], float]:
    """What metrics.csv says, by name and round."""
    with (run / "metrics.csv").open() as file:
        return {
            (name, int(row["round"])): float(value)
            for row in csv.DictReader(file)
            for name, value in row.items()
            if value and name != "round"
        }


def shown_by_tensorboard(folder: Path) -> dict[tuple[str, int], float]:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    from tensorboard.util.tensor_util import make_ndarray

    seen = EventAccumulator(str(folder), size_guidance={"tensors": 0}).Reload()
    found: dict[tuple[str, int], float] = {}
    for tag in seen.Tags()["tensors"]:
        for event in seen.Tensors(tag) if not tag.startswith("settings") else ():
            key = (tag.replace("/", "."), event.step)
            assert key not in found, "a round that is shown twice"
            found[key] = float(make_ndarray(event.tensor_proto))
    return found


def assert_same(shown: dict[tuple[str, int], float], expected: dict[tuple[str, int], float]) -> None:
    assert shown.keys() == expected.keys()
    assert all(math.isclose(shown[key], expected[key], rel_tol=1e-6) for key in expected)


def test_tensorboard_shows_a_run_while_it_goes_on_and_afterwards(run: Path, tmp_path: Path, capsys: Any) -> None:
    assert_same(shown_by_tensorboard(run.parent / "live" / "mine"), written(run))
    for _ in range(2):  # again, as after a kill
        done = call(capsys, "export", run, "--tensorboard", tmp_path / "logs")
        assert done.code == 0, done.err
    assert f"{ROUNDS + 1} rows written to tensorboard" in done.out
    assert_same(shown_by_tensorboard(tmp_path / "logs" / "mine"), written(run))


@contextmanager
def mlflow_client(uri: str) -> Iterator[Any]:
    """Ask a database of MLflow, and close its connections, which MLflow would keep."""
    client = mlflow.tracking.MlflowClient(tracking_uri=uri)
    try:
        yield client
    finally:
        client._tracking_client.store.engine.dispose()


@pytest.mark.slow(part="docs")
@pytest.mark.filterwarnings("ignore::sqlalchemy.exc.SADeprecationWarning")  # MLflow's own
def test_mlflow_takes_every_number_once_and_fills_what_a_kill_left_out(run: Path, tmp_path: Path, capsys: Any) -> None:
    uri = f"sqlite:///{tmp_path}/mlflow.db"
    for _ in range(2):
        done = call(capsys, "export", run, "--mlflow", uri)
        assert done.code == 0, done.err
    with mlflow_client(uri) as client:
        place = client.get_experiment_by_name("winnow").experiment_id
        (tracked,) = client.search_runs([place])
        assert tracked.info.status == "FINISHED"
        assert tracked.data.params["local.learning_rate"]
        shown: dict[tuple[str, int], float] = {}
        for name in tracked.data.metrics:
            for each in client.get_metric_history(tracked.info.run_id, name):
                assert (name, each.step) not in shown
                shown[name, each.step] = each.value
    assert_same(shown, written(run))


def test_a_run_is_followed_until_it_is_finished(tmp_path: Path) -> None:
    folder = tmp_path / "followed"
    winnow.run("demo", rounds=2, out=folder)
    (folder / "result.json").unlink()  # unfinished again
    rows: list[int] = []
    follower = threading.Thread(
        target=lambda: rows.append(export_run(folder, TensorBoardTracker(folder=str(tmp_path)), follow=True))
    )
    follower.start()
    winnow.run("demo", rounds=3, out=folder, resume=True)
    follower.join(timeout=PATIENCE)
    assert rows == [4]
    assert_same(shown_by_tensorboard(tmp_path / "followed"), written(folder))


@pytest.mark.slow(part="docs")
def test_a_follower_that_is_killed_is_started_again_and_doubles_nothing(tmp_path: Path) -> None:
    folder, logs = tmp_path / "followed", tmp_path / "logs"
    winnow.run("demo", rounds=3, out=folder)
    (folder / "result.json").unlink()  # unfinished again
    command = [sys.executable, "-m", "winnow.cli", "export", str(folder), "--tensorboard", str(logs), "--follow"]
    with running(command, stdout=subprocess.DEVNULL):
        eventually(lambda: any(file.stat().st_size > 200 for file in logs.rglob("events*")), "nothing was written")
    winnow.run("demo", rounds=5, out=folder, resume=True)
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    assert_same(shown_by_tensorboard(logs / "followed"), written(folder))


class _Falling(TrackWriter):
    def write(self, row: Any) -> None:
        raise ConnectionError("nobody\nthere")

    def close(self, *, finished: bool) -> None:
        raise AssertionError("closed although it had ended")


def test_a_tracker_that_fails_never_ends_a_run(monkeypatch: pytest.MonkeyPatch, caplog: Any) -> None:
    monkeypatch.setattr(TensorBoardTracker, "_open", lambda self, run: _Falling())
    result = winnow.run("demo", rounds=2, tracking=["tensorboard"])
    assert result.summary.rounds == 2
    (warning,) = [record.getMessage() for record in caplog.records if "tracking" in record.getMessage()]
    assert warning.startswith("tracking by tensorboard 1 ends here: ConnectionError: nobody there")


def test_mistakes_get_one_line(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    assert "say what to write" in call(capsys, "export", run).err
    assert "no run" in call(capsys, "export", tmp_path, "--tensorboard", tmp_path / "logs").err
    (tmp_path / "file").write_text("")
    assert len(call(capsys, "export", run, "--tensorboard", tmp_path / "file").err.splitlines()) == 1
    monkeypatch.setattr(Tracker, "package", "not_there", raising=False)
    monkeypatch.setattr(TensorBoardTracker, "package", "not_there")
    with pytest.raises(ConfigError, match=r"not_there is not installed: pip install .*\[tensorboard\]"):
        winnow.run("demo", rounds=1, tracking=["tensorboard"])
