"""What a run loses while a browser follows it; and what open pages use while nothing happens.

One run is watched and left alone in turns of two seconds, so that its pace is compared with its own a moment before or
after: another start of the process, another layout of its memory or a machine that is busier later do not count. Each
round tells how much CPU time the run's process has used by then, its own and the system's for it, in all threads, and
when it was committed. The loss is that in CPU time a round: what the run itself has to do more. The loss in elapsed
time is told beside it, since `winnow ui` and whoever watches need a core now and then, too.
"""

import os
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from statistics import mean, median, stdev

from bench.table import Row
from bench.ui import Server, make_runs, served, write_run

RUNS, PAIRS, TURN_SECONDS, WARM_SECONDS = 6, 20, 2.0, 4.0
"""Of each run so many pairs: a turn watched and a turn alone, in changing order."""
RELOADED_EVERY = 4
"""In one of so many watched turns the page is loaded: an open page does so after 5 s and twenty times what it took."""
IDLE_RUNS, CALM_SECONDS, IDLE_SECONDS = 1_000, 15.0, 30.0

PROGRAM = """
import sys, time, winnow
from winnow.core import RoundFinished
from winnow.runs import RunFolder

record = RunFolder.record

def timed_record(folder, event):
    record(folder, event)
    if isinstance(event, RoundFinished):
        print(time.monotonic(), time.process_time(), flush=event.round % 50 == 0)

RunFolder.record = timed_record
winnow.run("demo", rounds=1_000_000, progress=False, out=sys.argv[1], quality={"evidence": []})
"""


@dataclass(frozen=True, kw_only=True)
class Turn:
    watched: bool
    began: float
    ended: float
    pages: float
    """CPU seconds of winnow ui meanwhile."""


@dataclass(kw_only=True)
class TimedRun:
    """A run that goes on, and when each of its rounds was committed, with the CPU seconds used by then."""

    folder: Path
    rounds: list[tuple[float, float]] = field(default_factory=list)

    @contextmanager
    def going_on(self) -> Iterator[None]:
        command = [sys.executable, "-c", PROGRAM, str(self.folder)]
        env = os.environ | {"OMP_NUM_THREADS": "1"}
        process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=env)
        reading = threading.Thread(target=self._read, args=(process,))
        reading.start()
        try:
            yield
        finally:
            process.kill()
            process.wait()
            reading.join()

    def _read(self, process: "subprocess.Popen[str]") -> None:
        assert process.stdout is not None
        for line in process.stdout:
            if line.endswith("\n"):
                at, cpu = map(float, line.split())
                self.rounds.append((at, cpu))

    def spent(self, turn: Turn) -> tuple[float, float]:
        """Elapsed and CPU seconds a round, over the rounds between the first and the last of the turn."""
        inside = [marks for marks in self.rounds if turn.began <= marks[0] <= turn.ended]
        (began, cpu_before), (ended, cpu_after) = inside[0], inside[-1]
        return (ended - began) / (len(inside) - 1), (cpu_after - cpu_before) / (len(inside) - 1)


def measure() -> list[Row]:
    losses: list[tuple[float, float]] = []
    used: list[float] = []
    for _ in range(RUNS):
        run, turns = _watched_in_turns()
        used += [turn.pages / (turn.ended - turn.began) for turn in turns if turn.watched]
        for pair in zip(turns[::2], turns[1::2], strict=True):
            alone, watched = (run.spent(turn) for turn in sorted(pair, key=lambda turn: turn.watched))
            losses.append((100 * (watched[0] / alone[0] - 1), 100 * (watched[1] / alone[1] - 1)))
    return [
        _loss("CPU time that a watched run loses", [cpu for _, cpu in losses]),
        _loss("elapsed time that it loses", [elapsed for elapsed, _ in losses]),
        Row(name="of a core, for watching it", value=100 * median(used), unit="%", baseline=100.0),
        Row(name=f"of a core, idle, {IDLE_RUNS:,} runs, two pages", value=_idle(), unit="%", baseline=1.0),
    ]


def _loss(name: str, losses: list[float]) -> Row:
    told = f"± {stdev(losses) / len(losses) ** 0.5:.2f} over {len(losses)} pairs; median {median(losses):.2f} %"
    return Row(name=name, value=mean(losses), unit="%", baseline=1.0, goal=told)


def _watched_in_turns() -> tuple[TimedRun, list[Turn]]:
    with tempfile.TemporaryDirectory() as place:
        run = TimedRun(folder=Path(place) / "live")
        with served(Path(place)) as server, run.going_on():
            while (key := server.key_of("live", missing_ok=True)) is None or len(run.rounds) < 50:
                time.sleep(0.2)
            server.get(f"/runs/{key}")  # loads what it needs
            time.sleep(WARM_SECONDS)
            order = [place % 4 in (1, 2) for place in range(2 * PAIRS)]  # alone, watched, watched, alone, …
            return run, [
                _turn(server, run, f"/runs/{key}", watched=watched, reload=place // 2 % RELOADED_EVERY == 0)
                for place, watched in enumerate(order)
            ]


def _turn(server: Server, run: TimedRun, address: str, *, watched: bool, reload: bool) -> Turn:
    began, pages = time.monotonic(), server.cpu()
    if watched:
        with server.stream(f"{address}/live?after={len(run.rounds)}") as stream:
            if reload:
                server.get(address)
            while time.monotonic() - began < TURN_SECONDS:
                stream.readline()
    time.sleep(max(0.0, began + TURN_SECONDS - time.monotonic()))
    return Turn(watched=watched, began=began, ended=time.monotonic(), pages=server.cpu() - pages)


def _idle() -> float:
    """Of pages that are open while nothing happens: the list and a run that was interrupted."""
    with tempfile.TemporaryDirectory() as place:
        make_runs(Path(place), runs=IDLE_RUNS, rounds=50)
        write_run(Path(place) / "interrupted", "fedavg", 0, rounds=50, finished=False)
        with served(Path(place)) as server:
            key = server.key_of("interrupted")
            streams = [server.stream("/live"), server.stream(f"/runs/{key}/live?after=0")]
            time.sleep(CALM_SECONDS)
            cpu, began = server.cpu(), time.monotonic()
            time.sleep(IDLE_SECONDS)
            share = 100 * (server.cpu() - cpu) / (time.monotonic() - began)
            for stream in streams:
                stream.close()
            return share
