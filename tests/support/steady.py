"""Repeat the tests in random orders, under changing loads and on 1, 3 and 6 workers.

`make test-steady` runs rounds of the tests that start processes and rounds of the whole suite. One call runs the
rounds of each kind that are missing since the last failure, and exits with 1 if a round failed. The file
`.steady/rounds.jsonl` gets a line per round, so the next call resumes; the log of a failed round stays next to it.
"""

import argparse
import ctypes
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from multiprocessing import Process, active_children
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

KINDS = {"processes": "processes and not slow", "whole": "not slow"}
"""Which tests a round runs, as an expression of pytest's marks."""
LOADS = ("idle", *(f"{count} spinning" for count in range(1, 7)), "page cache")
WORKERS = (1, 3, 6)
CACHE_FILES = 8
CACHE_FILE_BYTES = 128 * 1024**2
TIME_LIMIT = 1800
"""Seconds for a test that shares its core with several processes."""
SECONDS_TO_STOP = 60
SLOWEST = 20
PR_SET_PDEATHSIG, PR_SET_CHILD_SUBREAPER = 1, 36


@dataclass(kw_only=True)
class Round:
    """A round, and what came of it."""

    number: int
    commit: str
    kind: str
    load: str
    workers: int
    seed: int
    seconds: float = 0.0
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    leaks: list[str] = field(default_factory=list)
    slowest: list[tuple[str, float]] = field(default_factory=list)


# Rounds ---------------------------------------------------------------------------------------------------------------


def next_round(kind: str, rounds: list[Round]) -> Round:
    """Return the next round of a kind: loads and numbers of workers take turns, and the seed is new."""
    turn = sum(each.kind == kind for each in rounds)
    return Round(
        number=len(rounds) + 1,
        commit=commit(),
        kind=kind,
        load=LOADS[turn % len(LOADS)],
        workers=WORKERS[turn % len(WORKERS)],
        seed=random.SystemRandom().randrange(1_000_000),
    )


def commit() -> str:
    """Return the commit of the checkout, marked if files have changed since."""
    command = ["git", "describe", "--always", "--dirty", "--exclude=*"]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


def carry_out(this: Round, tests: list[str], folder: Path) -> None:
    """Run the tests once and complete the round."""
    log = folder / f"round-{this.number}.log"
    with ExitStack() as stack:
        scratch = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="s", ignore_cleanup_errors=True)))
        stack.enter_context(loaded(this.load, scratch))
        report = scratch / "report.xml"
        command = [sys.executable, "-m", "pytest", "--dist", "worksteal", "-m", KINDS[this.kind], *tests]
        command += [f"-n{this.workers}", f"--shuffle={this.seed}", f"--timeout={TIME_LIMIT}", f"--junitxml={report}"]
        begun = time.monotonic()
        with log.open("wb") as file:
            status, left = run(command, file, scratch)
        this.seconds = round(time.monotonic() - begun, 1)
        read_report(this, report)
    this.leaks += left
    if left:
        this.failed.append("(processes outlived the round)")
    if status and not this.failed:
        this.failed.append(f"(pytest ended with status {status})")
    if not this.failed:
        log.unlink()


def run(command: list[str], log: Any, scratch: Path) -> tuple[int, list[str]]:
    """Return the exit status of a command and the processes that it left; end those, also after an interrupt."""
    environment = {**os.environ, "TMPDIR": str(scratch)}
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
    )
    try:
        process.wait()
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGINT)
            try:
                process.wait(SECONDS_TO_STOP)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        left = end_orphans()
    return process.returncode, left


def read_report(this: Round, report: Path) -> None:
    """Count what passed, and name what failed, leaked or took longest."""
    seconds: dict[str, float] = {}
    cases = ElementTree.parse(report).iter("testcase") if report.exists() else ()
    for case in cases:
        name = f"{case.get('classname')}::{case.get('name')}"
        seconds[name] = seconds.get(name, 0.0) + float(case.get("time", 0.0))
        texts = ["".join(wrong.itertext()) for tag in ("failure", "error") for wrong in case.iter(tag)]
        if texts and name not in this.failed:
            this.failed.append(name)
        this.leaks += [text.strip() for text in texts if " leaks:\n" in text]
        this.passed += not texts and case.find("skipped") is None
    this.slowest = [(name, round(seconds[name], 1)) for name in longest(seconds)]


# Loads ----------------------------------------------------------------------------------------------------------------


@contextmanager
def loaded(load: str, scratch: Path) -> Iterator[None]:
    """Keep the machine as busy as a load says."""
    if load == "page cache":
        processes = [Process(target=fill_page_cache, args=(scratch,))]
    else:
        processes = [Process(target=spin) for _ in range(0 if load == "idle" else int(load[0]))]
    try:
        for process in processes:
            process.start()
        yield
    finally:
        for process in processes:
            process.kill()
            process.join()


def spin() -> None:
    """Take a core."""
    end_with_parent()
    while True:
        pass


def fill_page_cache(folder: Path) -> None:
    """Write and read large files over and over."""
    end_with_parent()
    block = os.urandom(1024**2)
    while True:
        for number in range(CACHE_FILES):
            path = folder / f"cache-{number}"
            with path.open("wb") as file:
                for _ in range(CACHE_FILE_BYTES // len(block)):
                    file.write(block)
            with path.open("rb") as file:
                while file.read(len(block)):
                    pass


# Processes ------------------------------------------------------------------------------------------------------------


def end_with_parent() -> None:
    """Have the kernel end this process with its parent."""
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)


def adopt_orphans() -> None:
    """Become the parent of processes whose own parent has ended."""
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1)


def end_orphans() -> list[str]:
    """Wait for the processes that a round left, end those that stay, and return their commands."""
    until = time.monotonic() + SECONDS_TO_STOP / 10
    while (orphans := living_orphans()) and time.monotonic() < until:
        time.sleep(0.05)
    commands = [f"process: {command[:120]}" for command in orphans.values()]
    while orphans := living_orphans():
        for process in orphans:
            os.kill(process, signal.SIGKILL)
        time.sleep(0.05)
    return commands


def living_orphans() -> dict[int, str]:
    """Return the commands of adopted processes, and wait for those that have exited."""
    loads = {process.pid for process in active_children()}
    found = {}
    for listing in Path("/proc/self/task").glob("*/children"):
        for process in map(int, listing.read_text().split()):
            if process not in loads and os.waitpid(process, os.WNOHANG) == (0, 0):
                found[process] = Path(f"/proc/{process}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    return found


# Results --------------------------------------------------------------------------------------------------------------


def read_rounds(file: Path) -> list[Round]:
    """Return the rounds of a file; a last line that was not completed does not count."""
    lines = file.read_text().split("\n")[:-1] if file.exists() else []
    return [Round(**json.loads(line)) for line in lines]


def since_failure(rounds: list[Round]) -> list[Round]:
    """Return the rounds after the last one that failed."""
    return rounds[max((at for at, each in enumerate(rounds, 1) if each.failed), default=0) :]


def table(rounds: list[Round]) -> str:
    """Show rounds by kind and load, failures and leaks by test, and the slowest tests."""
    good = Counter((each.kind, each.load) for each in since_failure(rounds))
    lines = ["| rounds since the last failure | " + " | ".join(LOADS) + " | all |", "|---" * (len(LOADS) + 2) + "|"]
    for kind in KINDS:
        counts = [good[kind, load] for load in LOADS]
        lines.append(f"| {kind} | " + " | ".join(map(str, [*counts, sum(counts)])) + " |")
    slowest: dict[str, float] = {}
    for name, seconds in (pair for each in rounds for pair in each.slowest):
        slowest[name] = max(seconds, slowest.get(name, 0.0))
    failures = Counter(name for each in rounds for name in each.failed)
    leaks = Counter(leak for each in rounds for leak in each.leaks)
    parts = (
        ("failures", [f"{count} × {name}" for name, count in failures.most_common()]),
        ("leaks", [f"{count} × {leak}" for leak, count in leaks.most_common()]),
        ("slowest tests", [f"{slowest[name]:.1f} s {name}" for name in longest(slowest)]),
    )
    for title, entries in parts:
        lines += ["", f"{title}:" + ("" if entries else " none"), *(f"  {entry}" for entry in entries[:SLOWEST])]
    return "\n".join(lines)


def longest(seconds: dict[str, float]) -> list[str]:
    """Return the names of the slowest tests."""
    return sorted(seconds, key=lambda name: seconds[name], reverse=True)[:SLOWEST]


def main() -> int:
    """Attempt the missing rounds of each kind once; return 1 if rounds are still missing."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--process-rounds", type=int, default=20, help="rounds of tests that start processes")
    parser.add_argument("--whole-rounds", type=int, default=4, help="rounds of the whole suite")
    parser.add_argument("--folder", type=Path, default=Path(".steady"), help="folder for counts and logs")
    parser.add_argument("tests", nargs="*", help="files and folders with tests; by default the whole suite")
    options = parser.parse_args()
    wanted = {"processes": options.process_rounds, "whole": options.whole_rounds}
    options.folder.mkdir(exist_ok=True)
    file = options.folder / "rounds.jsonl"
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, signal.default_int_handler)
    adopt_orphans()
    try:
        for kind, attempts in missing(wanted, read_rounds(file)).items():
            for _ in range(attempts):
                attempt(next_round(kind, read_rounds(file)), options.tests, options.folder)
    except KeyboardInterrupt:
        print("\ninterrupted; run this again to resume")
    rounds = read_rounds(file)
    print(f"\n{table(rounds)}")
    return int(any(missing(wanted, rounds).values()))


def missing(wanted: dict[str, int], rounds: list[Round]) -> dict[str, int]:
    """Return how many rounds of each kind have yet to pass."""
    passed = Counter(each.kind for each in since_failure(rounds))
    return {kind: max(0, number - passed[kind]) for kind, number in wanted.items()}


def attempt(this: Round, tests: list[str], folder: Path) -> None:
    """Run a round, add it to the file, and print a line on it."""
    conditions = f"round {this.number}: {this.kind}, {this.load}, -n {this.workers}, --shuffle={this.seed}"
    print(conditions, end=" ", flush=True)
    carry_out(this, tests, folder)
    with (folder / "rounds.jsonl").open("a") as file:
        file.write(json.dumps(asdict(this)) + "\n")
    print(f"{len(this.failed)} failed, {this.passed} passed in {this.seconds:.0f} s", flush=True)


if __name__ == "__main__":
    sys.exit(main())
