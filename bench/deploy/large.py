"""A model of 1 GB to ten sites, and ten replies of 1 GB folded; the baseline is what the server may take, 300 MB.

The server's memory is that of its process and of the job's, sampled together, above the idle server. DEPLOY_MB sets
the size of the model, whose arrays have 32 MB each; on the disk there are about 33 times as many.
"""

import os
import shutil
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bench.deploy.exchange import mean_after, write_program
from bench.deploy.world import World, children, rss, uses_torch, world
from bench.table import Row
from winnow.deploy.wire.safetensors_files import StoredArrays

MEGABYTES = int(os.environ.get("DEPLOY_MB", "1024"))
ARRAY_MB = 32
SITES = 10
SETTLING = 5.0
"""Seconds until a server is idle."""
LIMIT_MB, GOAL = 300.0, "< 1 × baseline"
MB = 1e6
LOOK = 0.05


def measure() -> list[Row]:
    peaks, seconds = carry(MEGABYTES, SITES)
    moved = 2 * SITES * MEGABYTES / seconds
    return [
        Row(
            name="server and runner above idle",
            value=peaks.above / MB,
            unit="MB",
            baseline=LIMIT_MB,
            goal="< 1 × baseline",
        ),
        Row(name="  the server alone, peak", value=peaks.alone / MB, unit="MB", baseline=LIMIT_MB),
        Row(name="  the runner alone, peak", value=peaks.runner / MB, unit="MB", baseline=LIMIT_MB),
        Row(name="  the idle server", value=peaks.idle / MB, unit="MB", baseline=LIMIT_MB),
        Row(name="a site's agent, peak", value=peaks.agent / MB, unit="MB", baseline=LIMIT_MB),
        Row(name="a site's worker, peak", value=peaks.worker / MB, unit="MB", baseline=LIMIT_MB),
        Row(name="processes with torch", value=float(peaks.torch), unit="", baseline=1, goal="none"),
        Row(name="from submitting to the end", value=seconds, unit="s", baseline=seconds),
        Row(name="  both ways through the server", value=moved, unit="MB/s", baseline=moved),
    ]


@dataclass(kw_only=True)
class Peaks:
    """Of resident memory, in bytes."""

    idle: int
    """The server before the job."""
    server: int = 0
    """The server and the job's process together."""
    alone: int = 0
    runner: int = 0
    agent: int = 0
    worker: int = 0
    torch: bool = False
    over: threading.Event = field(default_factory=threading.Event)

    @property
    def above(self) -> int:
        return self.server - self.idle


def carry(megabytes: int, sites: int) -> tuple[Peaks, float]:
    """Send a model to sites and fold what they answer, once; what it took of memory, and of time in seconds."""
    # What was sent and what is answered at each site, what has arrived of it, and a few copies at the server.
    needed = 1.2 * (3 * sites + 3) * megabytes * 2**20
    if shutil.disk_usage(tempfile.gettempdir()).free < needed:
        raise SystemExit(f"this needs {needed / 1e9:.0f} GB on {tempfile.gettempdir()}")
    with tempfile.TemporaryDirectory(prefix="winnow-bench-") as name, world(Path(name), sites) as here:
        time.sleep(SETTLING)
        with _watching(here) as peaks:
            seconds = _job(here, megabytes)
        _check(here, megabytes)
    return peaks, seconds


@contextmanager
def _watching(here: World) -> Iterator[Peaks]:
    peaks = Peaks(idle=rss(here.server))
    thread = threading.Thread(target=_until(peaks.over, lambda: _look(here, peaks)))
    thread.start()
    try:
        yield peaks
    finally:
        peaks.over.set()
        thread.join()


def _until(over: threading.Event, look: Callable[[], None]) -> Callable[[], None]:
    def work() -> None:
        while not over.wait(LOOK):
            look()

    return work


def _look(here: World, peaks: Peaks) -> None:
    alone, runners = rss(here.server), children(here.server)
    running = sum(map(rss, runners))
    agents = [here.processes[name].pid for name in here.names]
    workers = [child for agent in agents for child in children(agent)]
    peaks.server = max(peaks.server, alone + running)
    peaks.alone, peaks.runner = max(peaks.alone, alone), max(peaks.runner, running)
    peaks.agent = max(peaks.agent, *map(rss, agents))
    peaks.worker = max([peaks.worker, *map(rss, workers)])
    peaks.torch = peaks.torch or any(map(uses_torch, [*runners, *workers, *agents, here.server]))


def _job(here: World, megabytes: int) -> float:
    program = write_program(here.folder, arrays=megabytes // ARRAY_MB, length=ARRAY_MB * 2**20 // 4, rounds=1)
    begun = time.perf_counter()
    here.connection.submit(program, min_sites=len(here.names)).wait(900)
    return time.perf_counter() - begun


def _check(here: World, megabytes: int) -> None:
    """The checkpoint that the server keeps is the right mean."""
    largest = max((here.kit("server") / "state").rglob("*"), key=lambda path: path.stat().st_size)
    with StoredArrays(largest) as stored:
        names = [name for name in stored if name.startswith("a/")]
        assert len(names) == megabytes // ARRAY_MB
        assert all(np.allclose(stored.numpy(name), mean_after(len(here.names), 1)) for name in names)
