"""Pages of 1,000 runs of 500 rounds: the list, a comparison, and how soon a new round shows.

Baselines are the goals, so a ratio of at most 1 reaches them.
"""

import http.client
import json
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from urllib.parse import urlsplit

import numpy as np

from bench.table import Row
from winnow.core import Cost, Evaluated, RoundFinished, Selected
from winnow.runs import RunFolder, RunLabel, result_record
from winnow.runs.event_log import encode_event

RUNS, ROUNDS, CLIENTS, SELECTED, SEEDS = 1_000, 500, 100, 10, 5
COMPARED, APPENDED, REPEATS, CALM_SECONDS = 100, 20, 7, 12.0
CONFIG = """name = "made"\nrounds = {rounds}\nseed = {seed}\nalgorithm = "{algorithm}"
[data]\nname = "digits"\nclients = 100
[local]\nname = "sgd"\nlearning_rate = {rate}\nbatch_size = 32
"""


def measure() -> list[Row]:
    with tempfile.TemporaryDirectory() as place:
        runs = Path(place) / "runs"
        make_runs(runs)
        with served(runs) as server:
            rows = [*_listed(server), *_compared(server), _new_round(server, runs)]
            rows.append(Row(name="memory at its height", value=server.memory(), unit="MB", baseline=300))
    return rows


def _listed(server: "Server") -> list[Row]:
    cpu = server.cpu()
    first = server.timed("/")
    used = server.cpu() - cpu
    time.sleep(1.0)
    again = median(server.timed("/") for _ in range(REPEATS))
    return [
        Row(name="first list, which indexes", value=first, unit="s", baseline=10.0, goal=f"{used:.2f} s of CPU"),
        Row(name="list", value=again, unit="s", baseline=1.0),
    ]


def _compared(server: "Server") -> list[Row]:
    """Of runs that were not read before, and once more."""
    keys = server.keys()[:COMPARED]
    server.get(f"/compare?run={keys[0]}&run={keys[1]}")  # imports what figures need
    address = "/compare?" + "&".join(f"run={key}" for key in keys)
    cpu = server.cpu()
    first = server.timed(address)
    used = server.cpu() - cpu
    again = median(server.timed(address) for _ in range(3))
    return [
        Row(name=f"comparison of {COMPARED}", value=first, unit="s", baseline=2.0, goal=f"{used:.2f} s of CPU"),
        Row(name="the same again", value=again, unit="s", baseline=2.0),
    ]


def _new_round(server: "Server", runs: Path) -> Row:
    """From a round's last byte in the log to its arrival at the browser's end of the stream."""
    folder = runs / "live"
    write_run(folder, "fedavg", 0, finished=False)
    time.sleep(1.0)
    key = server.key_of("live")
    stream = server.stream(f"/runs/{key}/live?after={ROUNDS + 1}")
    delays = []
    for number in range(ROUNDS + 1, ROUNDS + 1 + APPENDED):
        if number == ROUNDS + APPENDED:
            time.sleep(CALM_SECONDS)  # after which pages are looked after less often
        with (folder / "events.jsonl").open("ab") as log:
            log.write(encode_event(finished_round(number, 0)))
        written = time.monotonic()
        while f'"round":{number},'.encode() not in stream.readline():
            pass
        delays.append(time.monotonic() - written)
        time.sleep(0.13)
    return Row(name="a new round on the page, worst", value=max(delays), unit="s", baseline=1.0)


# Runs -----------------------------------------------------------------------------------------------------------------


def make_runs(folder: Path, runs: int = RUNS, rounds: int = ROUNDS) -> None:
    """Finished runs of a few algorithms, each with some seeds; their events are those of the first of each seed."""
    for number in range(runs):
        seed, rate = number % SEEDS, f"0.{1 + number // SEEDS:04d}"
        path = folder / f"run-{number:05d}"
        if number < SEEDS:
            write_run(path, "fedavg", seed, rounds=rounds)
            continue
        shutil.copytree(folder / f"run-{seed:05d}", path)
        label = json.loads((path / "run.json").read_text()) | {"algorithm": f"method{number // 50}"}
        (path / "run.json").write_text(json.dumps(label))
        config = CONFIG.format(rounds=rounds, seed=seed, algorithm=label["algorithm"], rate=rate)
        (path / "config.toml").write_text(config)


def write_run(path: Path, algorithm: str, seed: int, *, finished: bool = True, rounds: int = ROUNDS) -> None:
    label = RunLabel(
        name="made", algorithm=algorithm, seed=seed, metric="accuracy", started="2026-01-01T00:00:00+00:00"
    )
    conditions = {"labels": ["clean"], "of_client": [0] * CLIENTS}
    config = CONFIG.format(rounds=rounds, seed=seed, algorithm=algorithm, rate=0.1)
    rng = np.random.default_rng(seed)
    with RunFolder.create(path, config, conditions, label) as folder:
        folder.record(Evaluated(round=0, at=0.0, version=0, metrics={"reference": {"accuracy": 0.1, "loss": 2.3}}))
        for number in range(1, rounds + 1):
            chosen = rng.choice(CLIENTS, SELECTED, replace=False)
            once = np.ones(SELECTED, np.int64)
            folder.record(Selected(round=number, at=30.0 * number, version=number - 1, clients=chosen, counts=once))
            folder.record(replace(finished_round(number, seed), aggregated=chosen))
        if finished:
            view = folder.view()
            folder.finish(result_record(view.summary(), label, parameters=1, message_bytes=1, wall_seconds=1.0))


def finished_round(number: int, seed: int) -> RoundFinished:
    value = 0.95 - 0.85 * np.exp(-number / 100) + 0.01 * np.sin(number + seed)
    scores = {"accuracy": float(value), "loss": float(2.3 - 2 * value)}
    return RoundFinished(
        round=number,
        at=30.0 * number,
        version=number,
        metrics={"reference": scores, "test": scores},
        aggregated=np.arange(SELECTED),
        loss=float(2 - value),
        joules=100.0,
        cost=Cost(sent_bytes=1e6, received_bytes=1e6),
    )


# The server -----------------------------------------------------------------------------------------------------------


@contextmanager
def served(runs: Path) -> "Iterator[Server]":
    """`winnow ui` as a user starts it, in a process of its own."""
    command = [sys.executable, "-m", "winnow.cli", "ui", str(runs), "--no-browser", "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield Server(process.pid, process.stdout.readline().strip())
    finally:
        process.terminate()
        process.wait()


class Server:
    """A browser that has logged in, and what the server has used."""

    def __init__(self, pid: int, address: str) -> None:
        self._pid, self._host = pid, urlsplit(address).netloc
        connection = self._ask("/?" + urlsplit(address).query, {})
        self._cookie = str(connection.getheader("set-cookie")).partition(";")[0]

    def get(self, address: str) -> bytes:
        answer = self._ask(address, {"cookie": self._cookie})
        assert answer.status == 200, answer.status
        return answer.read()

    def timed(self, address: str) -> float:
        began = time.monotonic()
        self.get(address)
        return time.monotonic() - began

    def stream(self, address: str) -> http.client.HTTPResponse:
        return self._ask(address, {"cookie": self._cookie})

    def keys(self) -> list[str]:
        return [part.partition('"')[0] for part in self.get("/").decode().split('href="/runs/')[1:]]

    def key_of(self, name: str, *, missing_ok: bool = False) -> str | None:
        before, there, _ = self.get("/").decode().partition(f'">{name}</a>')
        assert there or missing_ok, f"no run {name}"
        return before.rpartition("/runs/")[2] if there else None

    def cpu(self) -> float:
        """Seconds, of user and system."""
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / 100

    def memory(self) -> float:
        """The most at any time, in MB."""
        status = Path(f"/proc/{self._pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) / 1024

    def _ask(self, address: str, headers: dict[str, str]) -> http.client.HTTPResponse:
        for attempt in range(50):
            try:
                connection = http.client.HTTPConnection(self._host, timeout=120)
                connection.request("GET", address, headers=headers)
                return connection.getresponse()
            except ConnectionError:
                if attempt == 49:
                    raise
                time.sleep(0.1)
        raise AssertionError
