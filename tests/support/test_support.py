"""The tools of the test suite: each is tried on a small suite in a folder of its own."""

import itertools
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from child_processes import running
from support import steady, waiting_time
from waiting import eventually

PLUGINS = ("needs", "processes", "shuffle", "time_limits", "waiting_time")
TESTS = Path(__file__).parents[1]
OPTIONS = ["-pxdist", "-ppytest_timeout", *(f"-psupport.{name}" for name in PLUGINS)]
WORKERS = pytest.mark.parametrize("workers", ["-n0", "-n2"])


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """A folder for small tests."""
    folder = tmp_path / "suite"
    folder.mkdir()
    marks = "markers =\n  processes\n  slow"
    (folder / "pytest.ini").write_text(f"[pytest]\naddopts = {' '.join(OPTIONS)} -pno:cacheprovider\n{marks}\n")
    return folder


def run(suite: Path, *options: str, **environment: str) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "pytest", *options]
    return subprocess.run(
        command, cwd=suite, env=environment_of(suite) | environment, capture_output=True, text=True, check=False
    )


def environment_of(suite: Path) -> dict[str, str]:
    """As outside this suite, with a temporary folder next to the small suite."""
    quickly = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1"}
    inherited = {name: value for name, value in os.environ.items() if name != "CI" and not name.startswith("PYTEST_")}
    return inherited | quickly | {"PYTHONPATH": str(TESTS), "TMPDIR": str(suite.parent)}


# Time limits ----------------------------------------------------------------------------------------------------------

HANGING = """
import threading, time
import pytest

def wait_in_a_thread():
    time.sleep(1000)

@pytest.mark.timeout(0.5)
def test_hangs():
    threading.Thread(target=wait_in_a_thread, name="helper", daemon=True).start()
    time.sleep(1000)

@pytest.fixture
def fixture_that_hangs():
    yield
    time.sleep(1000)

@pytest.mark.timeout(0.5)
def test_fails_and_hangs_at_its_end(fixture_that_hangs):
    raise ValueError("wrong value")

def test_ends():
    pass
"""


@WORKERS
def test_a_test_that_hangs_fails_with_the_stacks_of_all_threads(suite: Path, workers: str) -> None:
    (suite / "test_hanging.py").write_text(HANGING)
    done = run(suite, workers)
    assert "test_hanging.py::test_hangs exceeded its time limit of 0.5 s" in done.stdout
    assert "Thread 'helper'" in done.stdout
    assert "in wait_in_a_thread" in done.stdout
    assert "in test_hangs" in done.stdout
    assert "wrong value" in done.stdout
    assert "in fixture_that_hangs" in done.stdout
    assert "2 failed, 1 passed, 1 error" in done.stdout
    assert done.returncode == 1


@WORKERS
def test_a_test_that_cannot_be_interrupted_ends_with_its_process(suite: Path, workers: str) -> None:
    (suite / "conftest.py").write_text("from support import time_limits\ntime_limits.EXTRA = 0.2\n")
    uninterruptible = "import signal, time\nsignal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGALRM])\n"
    (suite / "test_deaf.py").write_text(
        f"{uninterruptible}\nimport pytest\n@pytest.mark.timeout(0.5)\ndef test_deaf():\n    time.sleep(1000)\n"
    )
    done = run(suite, workers)
    assert "in test_deaf" in done.stderr
    assert done.returncode == 1
    if workers != "-n0":
        assert "crashed while running 'test_deaf.py::test_deaf'" in done.stdout


def test_every_test_has_a_limit(request: pytest.FixtureRequest, suite: Path) -> None:
    assert float(request.config.getini("timeout")) == 300
    limit = "request.node.get_closest_marker('timeout').args == ({},)"
    (suite / "test_limits.py").write_text(
        "import pytest\n"
        f"@pytest.mark.slow\ndef test_slow(request):\n    assert {limit.format(3600.0)}\n"
        f"@pytest.mark.slow\n@pytest.mark.timeout(7)\ndef test_own(request):\n    assert {limit.format(7)}\n"
    )
    done = run(suite)
    assert "2 passed" in done.stdout, done.stdout


# Order ----------------------------------------------------------------------------------------------------------------


def order(suite: Path, *options: str) -> list[str]:
    """Run the tests; return their names in the order in which they ran."""
    log = suite / "log"
    log.unlink(missing_ok=True)
    done = run(suite, *options, LOG=str(log))
    assert "24 passed" in done.stdout, done.stdout
    return log.read_text().split()


@pytest.fixture
def logging_suite(suite: Path) -> Path:
    """Tests that write their names to a file."""
    test = "import os\nimport pytest\n@pytest.mark.parametrize('n', range(6))\ndef test_log(n, request):\n"
    test += "    with open(os.environ['LOG'], 'a') as file:\n        file.write(f'{request.node.nodeid}\\n')\n"
    for name in "abcd":
        (suite / f"test_{name}.py").write_text(test)
    return suite


def test_a_shuffled_order_is_repeated_from_the_seed_that_it_prints(logging_suite: Path) -> None:
    plain, first = order(logging_suite), order(logging_suite, "--shuffle=1")
    assert sorted(first) == sorted(plain)
    assert first != plain
    assert first == order(logging_suite, "--shuffle=1")
    assert first != order(logging_suite, "--shuffle=2")
    modules = [name.partition("::")[0] for name in first]
    assert len(list(itertools.groupby(modules))) == 4, "the tests of a module stay together"
    done = run(logging_suite, "--shuffle=new", LOG=str(logging_suite / "log"))
    assert re.search(r"^order: --shuffle=\d+$", done.stdout, re.MULTILINE)


@pytest.mark.parametrize("workers", [1, 3, 6])
def test_a_shuffled_order_works_with_workers(logging_suite: Path, workers: int) -> None:
    seed = ["--shuffle=new"] if workers > 1 else ["--shuffle=1"]
    found = order(logging_suite, f"-n{workers}", "--dist=worksteal", *seed)
    assert len(set(found)) == 24
    if workers == 1:
        assert found == order(logging_suite, "--shuffle=1")


# Skips ----------------------------------------------------------------------------------------------------------------

SKIPPING = """
import pytest
from support import needs

@needs.BROWSER.unless(False)
def test_browser(): pass

@needs.GPU.unless(False)
@pytest.mark.parametrize("n", range(2))
def test_gpu(n): pass

def test_data(tmp_path):
    needs.data_set(tmp_path, "digits")

@needs.SANDBOX.unless(True)
def test_sandbox(): pass
"""


@WORKERS
def test_what_was_skipped_is_counted_by_need(suite: Path, workers: str) -> None:
    (suite / "test_skipping.py").write_text(SKIPPING)
    done = run(suite, workers)
    assert (
        "skipped: 2 need a GPU (use a machine with CUDA), 1 need Chromium (apt install chromium), "
        "1 need data sets (set WINNOW_DATA to a folder that has them)"
    ) in ordered_by_count(done.stdout)
    assert "must not be skipped" not in done.stdout
    assert done.returncode == 0


def ordered_by_count(output: str) -> str:
    """Sort the needs of the line on skips that have the same count."""
    line = re.search(r"^skipped: (.*)$", output, re.MULTILINE)
    assert line is not None, output
    parts = sorted(line[1].split(", "), key=lambda part: (-int(part.split()[0]), part))
    return "skipped: " + ", ".join(parts)


@WORKERS
def test_ci_fails_for_each_skip_that_it_could_avoid(suite: Path, workers: str) -> None:
    (suite / "test_skipping.py").write_text(SKIPPING)
    done = run(suite, workers, CI="true")
    assert (
        "test_skipping.py::test_browser must not be skipped in CI: needs Chromium (apt install chromium)" in done.stdout
    )
    assert "test_skipping.py::test_data must not be skipped in CI: needs data sets: " in done.stdout
    assert done.stdout.count("must not be skipped") == 2, "a GPU may be missing"
    assert done.returncode == 1


@WORKERS
def test_a_skip_for_any_other_reason_fails_the_run(suite: Path, workers: str) -> None:
    (suite / "test_lazy.py").write_text("import pytest\ndef test_lazy():\n    pytest.skip('no time')\n")
    done = run(suite, workers)
    assert "test_lazy.py::test_lazy must not be skipped: 'no time' is not a need" in done.stdout
    assert done.returncode == 1


@WORKERS
def test_a_whole_module_cannot_be_skipped(suite: Path, workers: str) -> None:
    (suite / "test_lazy.py").write_text("import pytest\npytest.importorskip('no_such_package')\n")
    done = run(suite, workers)
    assert "test_lazy.py: skip each test with a mark of tests/support/needs.py" in done.stdout + done.stderr
    assert done.returncode != 0


# Waiting --------------------------------------------------------------------------------------------------------------

SLEEPING = "import time\ndef test_a(): time.sleep(0.5)\ndef test_b(): time.sleep(0.5)\n"
USED = """
import itertools
from support import waiting_time

measurements = itertools.count()

def used():
    now = next(measurements)
    return now * 10.0, now * 4.0, {"self": now * 1.0, "7": now * 2.0}

waiting_time._used = used
"""
"""Each test takes 10 s: it works for 4 s, and its two processes have no core for 3 s."""
SPINNING = "import time\nwhile time.process_time() < 0.5: pass\nprint(flush=True)\ninput()"


@WORKERS
def test_a_process_that_works_or_has_no_core_does_not_wait(suite: Path, workers: str) -> None:
    (suite / "conftest.py").write_text(USED)
    (suite / "test_times.py").write_text("def test_a(): pass\ndef test_b(): pass\ndef test_c(): pass\n")
    assert "waiting: 30% of 30 s (60% without processor time)\n" in run(suite, workers).stdout


@WORKERS
def test_the_time_spent_waiting_is_measured(suite: Path, workers: str) -> None:
    (suite / "test_times.py").write_text(SLEEPING)
    done = run(suite, workers)
    found = re.search(r"^waiting: \d+% of (\d+) s \(-?\d+% without processor time\)$", done.stdout, re.MULTILINE)
    assert found is not None, done.stdout
    assert int(found[1]) >= 1


def test_the_processor_time_of_child_processes_counts() -> None:
    command = [sys.executable, "-c", SPINNING]
    _, before, _ = waiting_time._used()
    with running(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        _, after, delays = waiting_time._used()
    assert after - before > 0.4
    assert str(process.pid) in delays


# Leaks ----------------------------------------------------------------------------------------------------------------

SHORT_GRACE = """
import gc
from support import leaks

leaks.GRACE = 0.2
gc.disable()
"""
LEAKING = """
import subprocess, tempfile, threading

KEPT = []

def test_closes_all():
    with open(__file__), tempfile.NamedTemporaryFile(), subprocess.Popen(["true"]):
        thread = threading.Thread(target=print)
        thread.start()
        thread.join()

def test_descriptor():
    KEPT.append(open(__file__))

def test_thread():
    threading.Thread(target=threading.Event().wait, name="helper", daemon=True).start()

def test_process():
    KEPT.append(subprocess.Popen(["cat"], stdin=subprocess.PIPE))

def test_file():
    tempfile.mkdtemp(prefix="forgotten")

def test_garbage():
    cycle = [open(__file__)]
    cycle.append(cycle)
"""
SHARING = """
import mmap, socket, sqlite3
import grpc
import pytest

KEPT = []

class Cycle:
    def __init__(self, *held):
        self.held = (self, *held)

@pytest.fixture(scope="module", autouse=True)
def held():
    with socket.socket() as held:
        yield held

def test_closes_all(tmp_path):
    connection = sqlite3.connect(tmp_path / "file.db")
    channel = grpc.insecure_channel("unix:/nowhere")
    connection.close()
    channel.close()
    KEPT.append(open(__file__))  # so that something new remains
    Cycle(connection, channel)

def test_connection(tmp_path):
    Cycle(sqlite3.connect(tmp_path / "file.db"))

def test_mapping(tmp_path):
    (tmp_path / "file").write_bytes(b"x")
    with (tmp_path / "file").open("rb") as file:
        Cycle(mmap.mmap(file.fileno(), 1, access=mmap.ACCESS_READ))

def test_channel():
    KEPT.append(open(__file__))
    Cycle(grpc.insecure_channel("unix:/nowhere"))

def test_socket():
    Cycle(socket.socket())

def test_end():
    pass
"""


def test_the_test_that_leaks_is_the_test_that_fails(suite: Path) -> None:
    (suite / "conftest.py").write_text(SHORT_GRACE)
    (suite / "test_leaking.py").write_text(LEAKING)
    (suite / "test_sharing.py").write_text(SHARING)
    done = run(suite, "-psupport.leaks")
    only_collected = r"\(closed only by the garbage collector\)"
    expected = {
        "test_leaking.py::test_descriptor": r"descriptor \d+: \S+/test_leaking.py",
        "test_leaking.py::test_thread": r"thread 'helper'",
        "test_leaking.py::test_process": r"descriptor \d+: pipe:\S+\n  process \d+: cat",
        "test_leaking.py::test_file": r"temporary file \S+/forgotten\w+",
        "test_leaking.py::test_garbage": r"descriptor \d+: \S+/test_leaking.py \(closed by the garbage collector\)",
        "test_sharing.py::test_connection": rf".*<sqlite3.Connection object at \w+> {only_collected}",
        "test_sharing.py::test_mapping": rf"<mmap.mmap closed=False.*> {only_collected}",
        "test_sharing.py::test_channel": rf"<grpc._channel.Channel object at \w+> {only_collected}",
        "test_sharing.py::test_socket": rf"unclosed <socket.socket fd=.*> {only_collected}",
        "test_sharing.py (fixtures of the module)": r"descriptor .*, open after test_sharing.py::test_closes_all\n"
        r"  descriptor .*, open after test_sharing.py::test_channel",
    }
    for name, leak in expected.items():
        assert re.search(rf"^{re.escape(name)} leaks:\n  {leak}\n[_=]", done.stdout, re.MULTILINE), done.stdout
    assert done.stdout.count(" leaks:\n  ") == len(expected)
    assert re.search(r"\b12 passed, 10 errors in", done.stdout), done.stdout


# Rounds ---------------------------------------------------------------------------------------------------------------

STEADY = [sys.executable, str(TESTS / "support" / "steady.py")]
SOMETIMES = """
import os, pathlib, subprocess, sys, time

def test_process():
    subprocess.run([sys.executable, "-c", ""], check=True)

def test_sometimes():
    assert not pathlib.Path("broken").exists()
    if pathlib.Path("leaking").exists():
        import pytest
        pytest.fail("x leaks:\\n  thread 'y'", pytrace=False)
    if pathlib.Path("hanging").exists():
        pathlib.Path("pids").write_text(str(subprocess.Popen(["sleep", "1000"], start_new_session=True).pid))
        time.sleep(1000)
"""


@pytest.fixture
def repeated(suite: Path) -> Path:
    (suite / "test_sometimes.py").write_text(SOMETIMES)
    return suite


def repeat(suite: Path, process_rounds: int, whole_rounds: int) -> "subprocess.CompletedProcess[str]":
    command = [*STEADY, "--process-rounds", str(process_rounds), "--whole-rounds", str(whole_rounds)]
    return subprocess.run(command, cwd=suite, env=environment_of(suite), capture_output=True, text=True, check=False)


def rounds_of(suite: Path) -> list[steady.Round]:
    return steady.read_rounds(suite / ".steady" / "rounds.jsonl")


@pytest.mark.slow(part="suite")
def test_rounds_are_run_that_are_missing_since_the_last_failure(repeated: Path) -> None:
    assert repeat(repeated, 2, 1).returncode == 0
    first = rounds_of(repeated)
    assert [each.kind for each in first] == ["processes", "processes", "whole"]
    assert [(each.load, each.workers) for each in first] == [("idle", 1), ("1 spinning", 3), ("idle", 1)]
    assert len({each.seed for each in first}) == 3
    assert all(each.passed == 2 and each.slowest and not each.failed for each in first)
    assert not list((repeated / ".steady").glob("*.log"))
    (repeated / "broken").touch()
    broken = repeat(repeated, 3, 1)
    assert broken.returncode == 1
    assert rounds_of(repeated)[3].failed == ["test_sometimes::test_sometimes"]
    assert "assert not True" in (repeated / ".steady" / "round-4.log").read_text()
    assert "1 × test_sometimes::test_sometimes" in broken.stdout
    (repeated / "broken").unlink()
    mended = repeat(repeated, 1, 1)
    assert mended.returncode == 0, "earlier rounds do not count after a failure"
    assert [each.kind for each in rounds_of(repeated)[4:]] == ["processes", "whole"]
    assert repeat(repeated, 1, 1).returncode == 0
    assert len(rounds_of(repeated)) == 6, "nothing is left to do"


@pytest.mark.slow(part="suite")
def test_a_leak_is_a_failure_and_is_listed_as_one(repeated: Path) -> None:
    (repeated / "leaking").touch()
    done = repeat(repeated, 0, 1)
    assert rounds_of(repeated)[0].leaks == ["x leaks:\n  thread 'y'"]
    assert "leaks:\n  1 × x leaks:" in done.stdout
    assert done.returncode == 1


@pytest.mark.slow(part="suite")
def test_an_interrupt_leaves_no_process_and_no_round(repeated: Path) -> None:
    (repeated / "hanging").touch()
    file = repeated / ".steady" / "rounds.jsonl"
    file.parent.mkdir()
    past = steady.Round(number=1, commit="", kind="processes", load="idle", workers=1, seed=1)
    file.write_text("".join(json.dumps(vars(past)) + "\n" for _ in range(7)) + '{"number": 8, "com')
    command = [*STEADY, "--process-rounds", "8", "--whole-rounds", "0"]
    with running(command, cwd=repeated, env=environment_of(repeated), stdout=subprocess.PIPE, text=True) as process:
        eventually(lambda: (repeated / "pids").exists() and (repeated / "pids").read_text(), "the test did not begin")
        everything = descendants(process.pid)
        assert len(everything) >= 4, "pytest, its worker, the process of the test, and the load"
        process.send_signal(signal.SIGINT)
        assert process.stdout is not None
        said = process.stdout.read()
    assert "processes, page cache, -n 3" in said or "processes, page cache, -n 1" in said
    assert "interrupted; run this again to resume" in said
    assert process.returncode == 1
    assert len(rounds_of(repeated)) == 7
    eventually(lambda: not any(Path(f"/proc/{each}").exists() for each in everything), "a process remains")


def descendants(process: int) -> list[int]:
    """Return the processes below this one."""
    found = []
    for listing in Path(f"/proc/{process}/task").glob("*/children"):
        for child in map(int, listing.read_text().split()):
            found += [child, *descendants(child)]
    return found
