"""The run folder: what is written, who may write it, and what survives a kill at any moment."""

import csv
import json
import multiprocessing
import os
import random
import re
import signal
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from winnow.core import (
    AnyEvent,
    Cost,
    Evaluated,
    Rejected,
    RoundFinished,
    RunError,
    Scored,
    Selected,
    Snapshot,
    stream,
)
from winnow.runs import RunFolder, RunLabel, check_folder_is_free, file_names, result_record
from winnow.runs.atomic_write import one_line_errors, write_text_atomically
from winnow.runs.checkpoint import load_checkpoint_info

LABEL = RunLabel(name="toy", algorithm="fedprof", seed=1, metric="accuracy", target=0.5)
CONDITIONS = {"labels": ["clean", "noise"], "of_client": np.array([0, 1, 1])}
ROUNDS, CHECKPOINT_EVERY = 12, 5
forked = multiprocessing.get_context("fork")


def checkpoint_round(folder: Path) -> int:
    return load_checkpoint_info(folder / file_names.CHECKPOINT).round


class Toy:
    """A deterministic stand-in for a workflow: its model is a running sum of random draws."""

    def __init__(self, snapshot: Snapshot | None) -> None:
        self.round = snapshot.values["round"] if snapshot else 0
        self.best = snapshot.values["best"] if snapshot else -np.inf
        self.arrays: dict[str, Any] = (
            dict(snapshot.arrays) if snapshot else {"model": torch.zeros(3), "best": torch.zeros(3)}
        )

    def snapshot(self) -> Snapshot:
        return Snapshot(arrays=self.arrays, values={"round": self.round, "best": self.best})

    def models(self) -> dict[str, dict[str, torch.Tensor]]:
        return {"best": {"w": self.arrays["best"]}, "last": {"w": self.arrays["model"]}}

    def play(self) -> list[AnyEvent]:
        self.round += 1
        rng = stream(1, "toy", self.round)
        self.arrays["model"] = self.arrays["model"] + torch.from_numpy(rng.normal(size=3)).float()
        score = float(rng.random())
        if score > self.best:
            self.best, self.arrays["best"] = score, self.arrays["model"]
        return round_events(self.round, score, rng)


def round_events(number: int, score: float, rng: np.random.Generator) -> list[AnyEvent]:
    clients, scores = np.array([0, 2]), rng.dirichlet(np.ones(3))
    cost = Cost(training_seconds=1.5, transfer_joules=score)
    return [
        Scored(round=number, at=number * 1.0, scores=scores),
        Selected(round=number, at=number * 1.0, version=number - 1, clients=clients, counts=np.ones(2, np.int64)),
        Rejected(round=number, at=number + 0.5, client=2, reason='not finite: "w"'),
        RoundFinished(
            round=number, at=number + 1.0, version=number, metrics={"reference": {"accuracy": score}},
            aggregated=clients[:1], loss=float(rng.random()), joules=cost.joules, cost=cost,
        ),
    ]  # fmt: skip


def run_toy(path: Path) -> None:
    """Begin or take up the toy run and bring it to its end."""
    folder, snapshot = RunFolder.resume(path) if (path / "run.json").exists() else (create(path), None)
    with folder:
        toy = Toy(snapshot)
        if snapshot is None:
            folder.record(Evaluated(round=0, at=0.0, version=0, metrics={"reference": {"accuracy": 0.1}}))
        while toy.round < ROUNDS:
            for event in toy.play():
                folder.record(event)
            if toy.round % CHECKPOINT_EVERY == 0:
                folder.checkpoint(toy.snapshot(), toy.models())
        folder.checkpoint(toy.snapshot(), toy.models())
        summary = folder.view().summary()
        folder.finish(result_record(summary, LABEL, parameters=3, message_bytes=12, wall_seconds=folder.wall_seconds))


def create(path: Path) -> RunFolder:
    return RunFolder.create(path, 'name = "toy"\n', CONDITIONS, LABEL)


def contents(path: Path) -> dict[str, Any]:
    """All that must not depend on interruptions: everything but wall time and the checkpoint that tells it."""
    files: dict[str, Any] = {
        entry.name: entry.read_bytes() for entry in path.iterdir() if entry.name != "checkpoint.safetensors"
    }
    result = json.loads(files["result.json"])
    del result["wall_seconds"]
    return files | {"result.json": result}


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    path = tmp_path_factory.mktemp("runs") / "uninterrupted"
    run_toy(path)
    return contents(path)


# What is written ---------------------------------------------------------------------------------------------------


def test_a_finished_folder_holds_everything(tmp_path: Path) -> None:
    run_toy(tmp_path / "run")
    assert {entry.name for entry in (tmp_path / "run").iterdir()} == {
        "run.json", "config.toml", "conditions.json", "events.jsonl", "metrics.csv", "checkpoint.safetensors",
        "best.safetensors", "last.safetensors", "result.json", "lock",
    }  # fmt: skip
    view = RunFolder.open(tmp_path / "run")
    assert view.label == LABEL
    assert view.config == {"name": "toy"}
    assert view.conditions == {"labels": ["clean", "noise"], "of_client": [0, 1, 1], "names": [], "sizes": []}
    assert checkpoint_round(tmp_path / "run") == ROUNDS
    assert view.result is not None
    assert view.result["rejected"] == ROUNDS


def test_events_come_back_as_they_went(tmp_path: Path) -> None:
    sent = Toy(None).play()
    with create(tmp_path) as folder:
        for event in sent:
            folder.record(event)
        back = list(folder.view().events())
    assert [type(event) for event in back] == [type(event) for event in sent]
    scored, invited, refused, finished = back
    np.testing.assert_allclose(scored.scores, sent[0].scores, rtol=1e-5)
    np.testing.assert_array_equal(invited.clients, [0, 2])
    assert invited.clients.dtype == np.int64
    assert refused == sent[2]
    assert (finished.metrics, finished.loss, finished.cost) == (sent[3].metrics, sent[3].loss, sent[3].cost)


def test_every_line_is_json_with_its_kind_first_and_six_digits_a_score(tmp_path: Path) -> None:
    with create(tmp_path) as folder:
        folder.record(Scored(round=1, at=0.0, scores=np.array([1 / 3, 2e-30 / 3, 0.0])))
        folder.record(
            RoundFinished(
                round=1, at=1.0, version=1, metrics={"reference": {"accuracy": np.float64(0.5)}},
                aggregated=np.array([], np.int64), loss=float("nan"), joules=1.0, cost=Cost(),
            )
        )  # fmt: skip
    lines = (tmp_path / "events.jsonl").read_text().splitlines()
    assert lines[0] == '{"kind":"scored","round":1,"at":0.0,"scores":[0.333333,6.66667e-31,0.0]}'
    assert json.loads(lines[1], parse_constant=pytest.fail)["loss"] is None
    assert np.isnan(list(RunFolder.open(tmp_path).events())[1].loss)


def test_scores_of_large_populations_are_not_kept(tmp_path: Path) -> None:
    with create(tmp_path) as folder:
        for clients in (2_000, 2_001):
            folder.record(Scored(round=1, at=0.0, scores=np.full(clients, 1 / clients)))
        assert [len(event.scores) for event in folder.view().events()] == [2_000]


def test_metrics_add_up_energy_and_leave_gaps_empty(tmp_path: Path) -> None:
    def finished(number: int, metrics: dict[str, dict[str, float]]) -> RoundFinished:
        return RoundFinished(
            round=number, at=10.0 * number, version=number, metrics=metrics, aggregated=np.array([0]), loss=0.25,
            joules=1.5, cost=Cost(),
        )  # fmt: skip

    with create(tmp_path) as folder:
        folder.record(Evaluated(round=0, at=0.0, version=0, metrics={"reference": {"accuracy": 0.1}}))
        folder.record(finished(1, {"reference": {"accuracy": 0.2}}))
        folder.record(finished(2, {"reference": {"accuracy": 0.3}, "test": {"accuracy": 0.4}}))
        folder.record(finished(3, {}))
    with (tmp_path / "metrics.csv").open(newline="") as file:
        header, *rows = csv.reader(file)
    assert header == ["round", "version", "seconds", "joules", "loss", "reference.accuracy", "test.accuracy"]
    assert rows == [
        ["0", "0", "0.0", "0.0", "", "0.1", ""],
        ["1", "1", "10.0", "1.5", "0.25", "0.2", ""],
        ["2", "2", "20.0", "3.0", "0.25", "0.3", "0.4"],
        ["3", "3", "30.0", "4.5", "0.25", "", ""],
    ]


def test_a_snapshot_comes_back_bit_for_bit(tmp_path: Path) -> None:
    shared = torch.arange(6.0).reshape(2, 3)
    arrays = {
        "model/w": shared, "model/tied": shared.T, "half": torch.tensor([1.5, -0.0], dtype=torch.bfloat16),
        "steps": torch.tensor(7), "nothing": torch.empty(0, 4), "profile/mean": np.array([0.1, np.nan]),
        "seen": np.array([True, False]), "one": np.float64(0.1),
    }  # fmt: skip
    values = {"best": -np.inf, "loss": np.nan, "third": 1 / 3, "round": np.int64(3), "nested": {"list": [1, None]}}
    with create(tmp_path) as folder:
        folder.checkpoint(Snapshot(arrays=arrays, values=values), {})
    folder, snapshot = RunFolder.resume(tmp_path)
    folder.close()
    assert snapshot is not None
    assert set(snapshot.arrays) == set(arrays)
    for name, array in arrays.items():
        back = snapshot.arrays[name]
        assert isinstance(back, torch.Tensor if isinstance(array, torch.Tensor) else np.ndarray)
        assert back.dtype == array.dtype
        assert back.shape == array.shape
        np.testing.assert_array_equal(torch.as_tensor(back).float().numpy(), torch.as_tensor(array).float().numpy())
    assert np.isnan(snapshot.values["loss"])
    assert {**snapshot.values, "loss": 0} == {**values, "loss": 0}


def test_a_checkpoint_may_hold_arrays_without_elements(tmp_path: Path) -> None:
    empty = {"clients": np.array([], np.int64), "of_none": np.empty((0, 4, 2))}
    with create(tmp_path / "run") as folder:
        folder.checkpoint(Snapshot(arrays=empty, values={}), {})
    resumed, snapshot = RunFolder.resume(tmp_path / "run")
    with resumed:
        assert snapshot is not None
        assert {name: tuple(array.shape) for name, array in snapshot.arrays.items()} == {
            "clients": (0,),
            "of_none": (0, 4, 2),
        }


def test_a_checkpoint_right_after_resuming_can_be_resumed(tmp_path: Path) -> None:
    with create(tmp_path) as folder:
        toy = Toy(None)
        folder.record(toy.play()[-1])
        folder.checkpoint(toy.snapshot(), {})
        folder.record(toy.play()[-1])
    for _ in range(2):
        folder, snapshot = RunFolder.resume(tmp_path)
        with folder:
            assert snapshot is not None
            folder.checkpoint(snapshot, {})
    assert [event.round for event in RunFolder.open(tmp_path).events()] == [1]


# Who may write -----------------------------------------------------------------------------------------------------


def fails_in_one_line(action: Callable[[], object], *words: str) -> None:
    with pytest.raises(RunError) as caught:
        action()
    message = str(caught.value)
    assert "\n" not in message
    assert all(word in message for word in words), message


def test_create_refuses_what_it_would_destroy(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter.tex").write_text("hello")
    fails_in_one_line(lambda: create(tmp_path / "thesis"), "thesis", "--out")
    assert [entry.name for entry in (tmp_path / "thesis").iterdir()] == ["chapter.tex"]

    create(tmp_path / "begun").close()
    fails_in_one_line(lambda: create(tmp_path / "begun"), "unfinished", "--resume", "--out")

    run_toy(tmp_path / "done")
    fails_in_one_line(lambda: create(tmp_path / "done"), "finished", "--out")

    (tmp_path / "file").write_text("")
    fails_in_one_line(lambda: create(tmp_path / "file"), "file")


def test_an_empty_folder_may_be_used(tmp_path: Path) -> None:
    create(tmp_path).close()
    assert RunFolder.open(tmp_path).label == LABEL


def test_whether_a_folder_is_free_is_found_out_without_a_trace(tmp_path: Path) -> None:
    check_folder_is_free(tmp_path / "new" / "run")
    check_folder_is_free(tmp_path)
    assert list(tmp_path.iterdir()) == []
    (tmp_path / "file").write_text("")
    for taken, word in ((tmp_path, "not empty"), (tmp_path / "file", "is a file"), (Path("/proc/nope"), "/proc/nope")):
        fails_in_one_line(partial(check_folder_is_free, taken), word)


def test_a_file_that_cannot_be_written_is_called_as_the_user_does(tmp_path: Path) -> None:
    (tmp_path / "folder").mkdir()
    for place, words in (
        (tmp_path / "none" / "x.html", ("/none/x.html: ", f"create the folder {tmp_path / 'none'}")),
        (tmp_path / "folder", ("/folder: ", "name a file")),
    ):

        def write(place: Path = place) -> None:
            with one_line_errors(place):
                write_text_atomically(place, "x")

        fails_in_one_line(write, *words)
        assert list(tmp_path.iterdir()) == [tmp_path / "folder"]


def test_two_writers_are_one_too_many(tmp_path: Path) -> None:
    with create(tmp_path):
        fails_in_one_line(lambda: RunFolder.resume(tmp_path), "another process")
    RunFolder.resume(tmp_path)[0].close()


def test_there_must_be_a_run_to_resume_or_open(tmp_path: Path) -> None:
    for action in (RunFolder.resume, RunFolder.open):
        fails_in_one_line(lambda action=action: action(tmp_path / "nowhere"), "nowhere", "contains no run")


@pytest.mark.parametrize("at", [3, 40, 200, -30, -1])
def test_a_damaged_checkpoint_is_refused(tmp_path: Path, at: int) -> None:
    run_toy(tmp_path / "run")
    file = tmp_path / "run" / "checkpoint.safetensors"
    damaged = bytearray(file.read_bytes())
    damaged[at] ^= 0x10
    file.write_bytes(damaged)
    before = (tmp_path / "run" / "events.jsonl").read_bytes()
    fails_in_one_line(lambda: RunFolder.resume(tmp_path / "run"), "checkpoint.safetensors", "damaged")
    assert (tmp_path / "run" / "events.jsonl").read_bytes() == before


@pytest.mark.parametrize("left", [0, 5, 100, -1])
def test_a_truncated_checkpoint_is_refused(tmp_path: Path, left: int) -> None:
    run_toy(tmp_path / "run")
    file = tmp_path / "run" / "checkpoint.safetensors"
    file.write_bytes(file.read_bytes()[:left])
    fails_in_one_line(lambda: RunFolder.resume(tmp_path / "run"), "checkpoint.safetensors", "damaged")


def test_a_checkpoint_of_another_schema_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        patched.setattr("winnow.runs.checkpoint.SCHEMA", 2)
        run_toy(tmp_path / "run")
    fails_in_one_line(lambda: RunFolder.resume(tmp_path / "run"), "checkpoint.safetensors", "has schema 2")


def test_a_log_that_lost_its_end_is_refused(tmp_path: Path) -> None:
    run_toy(tmp_path / "run")
    (tmp_path / "run" / "events.jsonl").write_bytes(b"")
    fails_in_one_line(lambda: RunFolder.resume(tmp_path / "run"), "events.jsonl", "shorter")


def test_a_damaged_log_names_the_line(tmp_path: Path) -> None:
    run_toy(tmp_path / "run")
    log = tmp_path / "run" / "events.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(lines[0] + b'{"kind": "nonsense"}\n' + b"".join(lines[1:]))
    fails_in_one_line(lambda: list(RunFolder.open(tmp_path / "run").events()), "events.jsonl", "line 2")


def flip(file: Path, old: bytes, new: bytes) -> None:
    """Change the last of these bytes into others of the same length, as a worn disk might."""
    content = file.read_bytes()
    at = content.rindex(old)
    file.write_bytes(content[:at] + new + content[at + len(old) :])


@pytest.mark.parametrize(
    ("name", "old", "new"),
    [
        ("run.json", b'"seed": 1', b'"seed": 3'),
        ("config.toml", b"toy", b"tox"),
        ("conditions.json", b"noise", b"noisf"),
        ("events.jsonl", b'"client":2', b'"client":0'),
    ],
)
def test_a_flipped_bit_is_refused_by_whoever_reads_or_resumes(
    tmp_path: Path, name: str, old: bytes, new: bytes
) -> None:
    run_toy(tmp_path / "run")
    flip(tmp_path / "run" / name, old, new)
    before = {entry.name: entry.read_bytes() for entry in (tmp_path / "run").iterdir()}
    for action in (RunFolder.resume, RunFolder.open):
        fails_in_one_line(lambda action=action: action(tmp_path / "run"), name, "round 12", "--out")
    assert {entry.name: entry.read_bytes() for entry in (tmp_path / "run").iterdir()} == before


def test_damage_to_a_long_log_is_found_near_its_place(tmp_path: Path) -> None:
    toy = Toy(None)
    with create(tmp_path) as folder:
        for _ in range(400):
            for event in toy.play():
                folder.record(event)
        folder.checkpoint(toy.snapshot(), toy.models())
    log = tmp_path / "events.jsonl"
    lines = log.read_bytes().splitlines(keepends=True)
    damaged = 1_001
    lines[damaged - 1] = lines[damaged - 1].replace(b'"round":', b'"rOund":')
    log.write_bytes(b"".join(lines))
    fails_in_one_line(lambda: RunFolder.open(tmp_path), f"line {damaged}: not an event")
    lines[damaged - 1] = lines[damaged - 1].replace(b'"rOund":251', b'"round":250')
    log.write_bytes(b"".join(lines))
    with pytest.raises(RunError) as caught:
        RunFolder.open(tmp_path)
    first, last = map(int, re.findall(r"lines (\d+) and (\d+)", str(caught.value))[0])
    assert first <= damaged <= last
    assert last - first < 500


def test_what_was_written_after_the_checkpoint_is_not_mistaken_for_damage(tmp_path: Path) -> None:
    toy = Toy(None)
    with create(tmp_path) as folder:
        for _ in range(3):
            for event in toy.play():
                folder.record(event)
            folder.checkpoint(toy.snapshot(), toy.models())
        folder.record(toy.play()[-1])
        assert len(list(folder.view().events())) == 13
    folder, _ = RunFolder.resume(tmp_path)
    folder.close()
    assert checkpoint_round(tmp_path) == 3


@pytest.mark.parametrize("call", [0, 1])
def test_a_kill_while_a_run_is_made_longer_looks_like_no_damage(tmp_path: Path, call: int) -> None:
    run_toy(tmp_path)

    def extend() -> None:
        folder, _ = RunFolder.resume(tmp_path)
        kill_at_call(call, "after")
        folder.extend('name = "toy"\nrounds = 20\n')

    assert in_a_process(extend) == -signal.SIGKILL
    assert ("rounds" in RunFolder.open(tmp_path).config) == (call == 1)
    folder, snapshot = RunFolder.resume(tmp_path)
    with folder:
        assert snapshot is not None
        folder.checkpoint(snapshot, {})
    flip(tmp_path / "config.toml", b"toy", b"tox")
    fails_in_one_line(lambda: RunFolder.resume(tmp_path), "config.toml")


def test_a_line_still_being_written_is_not_read(tmp_path: Path) -> None:
    run_toy(tmp_path / "run")
    whole = list(RunFolder.open(tmp_path / "run").events())
    with (tmp_path / "run" / "events.jsonl").open("ab") as file:
        file.write(b'{"kind": "scored", "rou')
    assert len(list(RunFolder.open(tmp_path / "run").events())) == len(whole)


# Kills -------------------------------------------------------------------------------------------------------------


def in_a_process(action: Callable[[], None], *, kill_after: float = 0.0) -> int:
    """Run it in a process of its own, which the kernel ends once it has used so many seconds of a processor: seconds of
    a clock would be no time at all on a busy machine. 0 is never. Returns the exit code.
    """

    def timed() -> None:
        signal.setitimer(signal.ITIMER_PROF, kill_after)
        action()

    process = forked.Process(target=timed)
    process.start()
    process.join()
    assert process.exitcode is not None
    return process.exitcode


@pytest.mark.slow(part="kills")
def test_kills_at_random_moments_leave_no_trace(tmp_path: Path, uninterrupted: dict[str, Any]) -> None:
    moments = random.Random(4)
    kills = 0
    for attempt in range(200):  # the kernel looks at the time every few milliseconds, so that some come too late
        if attempt >= 8 and kills >= 5:
            break
        path, longest = tmp_path / str(attempt), 0.004
        while code := in_a_process(lambda path=path: run_toy(path), kill_after=moments.uniform(0.001, longest)):
            assert code == -signal.SIGPROF
            kills += 1
            longest *= 1.1  # so that it comes to an end wherever a checkpoint takes longer than that
        assert contents(path) == uninterrupted
    assert kills >= 5


def kill_at_call(call: int, when: str) -> None:
    """Have this process kill itself before or after the n-th time a file is put in place."""
    replace, calls = Path.replace, iter(range(1_000))

    def replace_or_die(source: Path, target: Path) -> Path:
        doomed = next(calls) == call
        if doomed and when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        placed = replace(source, target)
        if doomed:
            os.kill(os.getpid(), signal.SIGKILL)
        return placed

    Path.replace = replace_or_die  # type: ignore[method-assign]


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_kill_around_any_file_being_put_in_place_leaves_no_trace(
    tmp_path: Path, uninterrupted: dict[str, Any], when: str
) -> None:
    def doomed(path: Path, call: int) -> None:
        kill_at_call(call, when)
        run_toy(path)

    for call in range(1_000):
        path = tmp_path / str(call)
        killed = in_a_process(lambda path=path, call=call: doomed(path, call)) == -signal.SIGKILL
        run_toy(path)
        assert contents(path) == uninterrupted, f"killed {when} call {call}"
        if not killed:
            break
    assert call >= 10


@pytest.mark.parametrize("leftover", ["best.safetensors.tmp", ".tmp4lvdiQ"])
def test_what_a_kill_left_half_written_is_cleared_away(
    tmp_path: Path, uninterrupted: dict[str, Any], leftover: str
) -> None:
    killed = in_a_process(lambda: (kill_at_call(6, "after"), run_toy(tmp_path / "run")))
    assert killed == -signal.SIGKILL
    (tmp_path / "run" / leftover).write_bytes(b"half")
    run_toy(tmp_path / "run")
    assert contents(tmp_path / "run") == uninterrupted
