"""What a run loses while a browser follows it, in CPU time, so that it needs no quiet machine; and what pages use idle.

The run's own CPU time tells what watching does to it. What `winnow ui` itself uses is told beside it: on a machine
without a free core that is taken from the run.
"""

import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, median, stdev

from bench.table import Row
from bench.ui import Server, make_runs, served, write_run

PAIRS, IDLE_RUNS, IDLE_SECONDS = 8, 100, 30.0

PROGRAM = """
import sys, time, winnow
began, cpu = time.monotonic(), time.process_time()
winnow.run("demo", rounds=1500, progress=False, out=sys.argv[1], quality={"evidence": []})
print(time.monotonic() - began, time.process_time() - cpu)
"""


@dataclass(frozen=True, kw_only=True)
class Spent:
    wall: float
    cpu: float
    pages: float = 0.0
    """CPU seconds of winnow ui while the run was followed."""


def measure() -> list[Row]:
    pairs = []
    for number in range(PAIRS):  # in turn, so that what else goes on meets both alike
        order = [False, True] if number % 2 else [True, False]
        spent = {watched: _run_seconds(watched=watched) for watched in order}
        pairs.append((spent[False], spent[True]))
    losses = [100 * (seen.cpu / alone.cpu - 1) for alone, seen in pairs]
    error = stdev(losses) / len(losses) ** 0.5
    used = median(100 * seen.pages / seen.wall for _, seen in pairs)
    told = f"± {error:.2f} over {PAIRS} pairs; median {median(losses):.2f} %"
    return [
        Row(name="CPU time that a watched run loses", value=mean(losses), unit="%", baseline=1.0, goal=told),
        Row(name="of a core, for watching it", value=used, unit="%", baseline=100.0),
        Row(name="of a core, idle with two live pages", value=_idle(), unit="%", baseline=1.0),
    ]


def _idle() -> float:
    """Of pages that are open while nothing happens: the list and a run that was interrupted."""
    with tempfile.TemporaryDirectory() as place:
        make_runs(Path(place), runs=IDLE_RUNS, rounds=50)
        write_run(Path(place) / "interrupted", "fedavg", 0, rounds=50, finished=False)
        with served(Path(place)) as server:
            key = server.key_of("interrupted")
            streams = [server.stream("/live"), server.stream(f"/runs/{key}/live?after=0")]
            time.sleep(3.0)
            cpu, began = server.cpu(), time.monotonic()
            time.sleep(IDLE_SECONDS)
            share = 100 * (server.cpu() - cpu) / (time.monotonic() - began)
            for stream in streams:
                stream.close()
            return share


def _run_seconds(*, watched: bool) -> Spent:
    with tempfile.TemporaryDirectory() as place:
        runs = Path(place)
        command = [sys.executable, "-c", PROGRAM, str(runs / "live")]
        if not watched:
            return _spent(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
        with served(runs) as server:
            process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
            cpu = server.cpu()
            watching = threading.Event()
            threading.Thread(target=_watch, args=(server, watching), daemon=True).start()
            out, _ = process.communicate()
            if not watching.is_set():
                raise SystemExit("the run ended before its page was open, so nothing was measured; free the machine")
            return _spent(out, server.cpu() - cpu)


def _watch(server: Server, watching: threading.Event) -> None:
    while (key := server.key_of("live", missing_ok=True)) is None:
        time.sleep(0.2)
    server.get(f"/runs/{key}")
    stream = server.stream(f"/runs/{key}/live?after=0")
    while stream.readline():
        watching.set()


def _spent(text: str, pages: float = 0.0) -> Spent:
    wall, cpu = map(float, text.split())
    return Spent(wall=wall, cpu=cpu, pages=pages)
