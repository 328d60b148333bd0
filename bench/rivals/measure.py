"""What a process tree takes: seconds to its first round and a round, memory, and the score it ends with.

All contenders are measured alike and from outside. Each appends a line of JSON to a log after every
round; the log is read every few milliseconds, and a round ends when its line is seen.
"""

import json
import os
import signal
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WARM_UP = 2
LOOK_SECONDS, WEIGH_SECONDS, LIMIT_SECONDS = 0.002, 0.1, 900.0
PAGE = os.sysconf("SC_PAGE_SIZE")
ROUND_KINDS = {"round", "round_finished"}
"""What other contenders call the end of a round, and what Winnow's own log does."""


class FailedError(Exception):
    """Why there is nothing to show, in one line."""


@dataclass(frozen=True, kw_only=True)
class Start:
    """How a contender is started, and where it leaves word of its rounds."""

    command: Sequence[str]
    environment: Mapping[str, str]
    log: Path
    score: Callable[[Mapping[str, Any]], float | None]
    """Of a round's line in the log."""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """`first` counts from the start of the process; `steady` is the mean of the rounds after the warm-up."""

    first: float
    steady: float | None
    peak_bytes: int
    score: float | None
    rounds: int


def measure(start: Start, words: Path) -> Figures:
    """Run a contender to its end and watch it; what it prints goes to the file `words`."""
    with words.open("w") as output:
        began = time.perf_counter()
        process = subprocess.Popen(
            start.command,
            stdout=output,
            stderr=subprocess.STDOUT,
            env={**os.environ, **start.environment},
            start_new_session=True,
        )
        try:
            moments, peak = _watch(process, start.log, began)
        finally:
            _end(process)
    if not moments:  # an exit code says little: some contenders abort once all is done
        last = words.read_text(errors="replace").strip().splitlines()[-1:]
        raise FailedError(last[0] if last else f"it ended with {process.returncode}")
    steady, finished = moments[WARM_UP - 1 :], _rounds(start.log)
    return Figures(
        first=moments[0] - began,
        steady=(steady[-1] - steady[0]) / (len(steady) - 1) if len(steady) > 1 else None,
        peak_bytes=peak,
        score=start.score(finished[-1]),
        rounds=len(finished),
    )


def _watch(process: subprocess.Popen[bytes], log: Path, began: float) -> tuple[list[float], int]:
    """When each round ended, and the peak of the tree's memory."""
    moments: list[float] = []
    peak, size, weighed = 0, 0, began
    while process.poll() is None and (now := time.perf_counter()) - began < LIMIT_SECONDS:
        grown = log.stat().st_size if log.exists() else 0
        if grown != size:
            size = grown
            moments += [now] * (len(_rounds(log)) - len(moments))
        if now - weighed > WEIGH_SECONDS:
            peak, weighed = max(peak, tree_bytes(process.pid)), now
        time.sleep(LOOK_SECONDS)
    return moments, peak


def _rounds(log: Path) -> list[Mapping[str, Any]]:
    """The rounds whose lines are complete."""
    lines = log.read_text().splitlines(keepends=True) if log.exists() else []
    return [record for line in lines if line.endswith("\n") and (record := json.loads(line))["kind"] in ROUND_KINDS]


def _end(process: subprocess.Popen[bytes]) -> None:
    """Whatever the contender left running ends with it."""
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def tree_bytes(root: int) -> int:
    """Resident memory (RSS) summed over a process and its descendants; pages that they share count in each."""
    children: dict[int, list[int]] = defaultdict(list)
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            parent = int((folder / "stat").read_text().rpartition(")")[2].split()[1])
        except OSError:  # it ended meanwhile
            continue
        children[parent].append(int(folder.name))
    total, todo = 0, [root]
    while todo:
        process = todo.pop()
        todo += children[process]
        try:
            total += int(Path(f"/proc/{process}/statm").read_text().split()[1]) * PAGE
        except OSError:
            continue
    return total


def free_bytes() -> int:
    """Memory that a new process could take."""
    fields = dict(line.split(":") for line in Path("/proc/meminfo").read_text().splitlines())
    return int(fields["MemAvailable"].split()[0]) * 1024
