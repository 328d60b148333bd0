"""Workers forked from a preloaded process: behind the same walls, ended with whoever asked for them, and small."""

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.deploy.world import children, pss

from support.needs import SANDBOX
from winnow.deploy.client.bundle import describe_job
from winnow.deploy.client.local_federation import local_federation, running_fork_server
from winnow.deploy.sandbox.forked_process_handle import FORK_SERVER_VARIABLE
from winnow.deploy.sandbox.isolation import ProcessLimits, Sandbox, sandbox_unavailable_reason
from winnow.deploy.site.worker_process_handle import WorkerExitedError, WorkerProcess

MB = 1e6
PATIENCE = 120.0

LOOK_AROUND = """
import json, os, socket, sys
from pathlib import Path

def attempt(action):
    try:
        return repr(action())
    except OSError as error:
        return type(error).__name__

status = dict(line.split(":\\t", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":\\t" in line)
found = {
    "torch": "torch" in sys.modules,
    "environment": sorted(os.environ),
    "started with": Path("/proc/self/environ").read_text(),
    "files": sorted(int(each) for each in os.listdir("/proc/self/fd")),
    "threads": status["Threads"].strip(),
    "seccomp": status["Seccomp"].strip(),
    "no new privileges": status["NoNewPrivs"].strip(),
    "group": os.getpgid(0) == os.getpid(),
    "fork": attempt(os.fork),
    "socket": attempt(socket.socket),
    "passwords": attempt(lambda: open("/etc/passwd").read()),
}
Path("found.json").write_text(json.dumps(found))
"""


def ended(process: WorkerProcess) -> str:
    with pytest.raises(WorkerExitedError) as caught:
        process.receive(PATIENCE)
    return str(caught.value)


@pytest.fixture(scope="module")
def preloaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """With a name that is longer than the path of a socket may be."""
    folder = tmp_path_factory.mktemp("a-folder-with-a-long-name-" * 4)
    with running_fork_server(folder) as path:
        yield path


@pytest.fixture
def limits() -> ProcessLimits:
    return ProcessLimits(memory_mb=2000, cpus=sorted(os.sched_getaffinity(0))[:1])


@pytest.fixture
def program(tmp_path: Path, preloaded: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(FORK_SERVER_VARIABLE, str(preloaded))
    monkeypatch.setenv("PASSWORD", "1234")
    return tmp_path / "program.py"


@SANDBOX.unless(sandbox_unavailable_reason() is None)
def test_a_forked_worker_of_own_code_stands_behind_its_walls(
    tmp_path: Path, program: Path, limits: ProcessLimits
) -> None:
    program.write_text(LOOK_AROUND)
    folder = tmp_path / "work"
    sandbox = Sandbox(read=[str(program)], write=[str(folder)])
    process = WorkerProcess(folder=folder, log=tmp_path / "log", limits=limits, sandbox=sandbox, program=str(program))
    said = ended(process)
    assert said == "the job's process ended with status 0", (tmp_path / "log").read_text()
    process.close()
    found = json.loads((folder / "found.json").read_text())
    assert len(found.pop("files")) <= 5, "the standard ones, the line to the agent, and the folder being listed"
    assert "PASSWORD" not in found["environment"]
    assert "1234" not in found.pop("started with")
    del found["environment"]
    assert found == {
        "torch": True, "threads": "1", "seccomp": "2", "no new privileges": "1", "group": True,
        "fork": "PermissionError", "socket": "PermissionError", "passwords": "PermissionError",
    }  # fmt: skip


def test_how_a_forked_worker_ended_is_known(tmp_path: Path, program: Path, limits: ProcessLimits) -> None:
    endings = {
        "raise SystemExit(3)": "ended with status 3",
        "import os; os.kill(os.getpid(), 11)": "ended by SIGSEGV",
        "1 / 0": "ended with status 1",
    }
    for text, told in endings.items():
        program.write_text(text)
        process = WorkerProcess(
            folder=tmp_path / "work", log=tmp_path / "log", limits=limits, sandbox=None, program=str(program)
        )
        assert told in ended(process)
        assert not process.alive
        process.close()
    assert "ZeroDivisionError" in (tmp_path / "log").read_text()


THE_SECOND_FORK_FAILS = """
import os
from winnow.deploy.sandbox import fork_server

def fork(real=os.fork, ways=iter("forks, fails, forks".split(", "))):
    if next(ways) == "fails":
        raise BlockingIOError(11, "Resource temporarily unavailable")
    return real()

os.fork, fork_server.PRELOADED_MODULES = fork, ()
fork_server.main()
"""


def test_a_process_that_cannot_be_forked_ends_no_other(
    tmp_path: Path, program: Path, limits: ProcessLimits, monkeypatch: pytest.MonkeyPatch
) -> None:
    command = [sys.executable, "-c", THE_SECOND_FORK_FAILS, "workers"]
    forking = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL)
    monkeypatch.setenv(FORK_SERVER_VARIABLE, str(tmp_path / "workers"))
    program.write_text("import time; time.sleep(600)")

    def a_worker() -> WorkerProcess:
        return WorkerProcess(
            folder=tmp_path / "work", log=tmp_path / "log", limits=limits, sandbox=None, program=str(program)
        )

    try:
        waited((tmp_path / "workers").is_socket)
        first = a_worker()
        with pytest.raises(WorkerExitedError, match="the fork server does not respond"):
            a_worker()
        second = a_worker()
        assert first.alive
        for each in (first, second):
            each.kill()
            each.close()
    finally:
        forking.kill()
        forking.wait()


def test_a_forked_worker_is_ended_with_its_group_and_small(
    tmp_path: Path, program: Path, limits: ProcessLimits
) -> None:
    program.write_text(FORKING)
    process = WorkerProcess(
        folder=tmp_path / "work", log=tmp_path / "log", limits=limits, sandbox=None, program=str(program)
    )
    try:
        (worker,) = map(int, waited(lambda: numbers(tmp_path / "log", 1)))
        own, loaded = memory(worker, "Private_Dirty"), memory(worker, "Rss")
        assert loaded > 100 * MB, "it has loaded torch"
        assert own < loaded / 4, "and shares most of it with the fork server"
        (tmp_path / "work" / "measured").touch()
        pids = [int(word) for word in waited(lambda: numbers(tmp_path / "log", 3))]
    finally:
        process.kill()
        process.close()
    assert waited(lambda: not any(map(alive, pids)))


FORKING = """
import os, time
from pathlib import Path

print(os.getpid(), flush=True)
while not Path("measured").exists():
    time.sleep(0.01)
os.fork()
print(os.getpid(), flush=True)
time.sleep(600)
"""


def memory(process: int, what: str) -> int:
    """Bytes of a kind; Private_Dirty is what the process has written and shares with no other."""
    lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{what}:"))
    return int(line.split()[1]) * 1024


def test_a_forked_worker_dies_with_the_agent_that_asked_for_it(tmp_path: Path, program: Path) -> None:
    program.write_text("import os, time; print(os.getpid(), flush=True); time.sleep(600)")
    agent = subprocess.Popen([sys.executable, "-c", AGENT, tmp_path, program], env=os.environ)
    (worker,) = map(int, waited(lambda: numbers(tmp_path / "log", 1)))
    agent.kill()
    agent.wait()
    assert waited(lambda: not alive(worker))


AGENT = """
import os, sys, time
from pathlib import Path
from winnow.deploy.sandbox.isolation import ProcessLimits
from winnow.deploy.site.worker_process_handle import WorkerProcess

limits = ProcessLimits(memory_mb=2000, cpus=sorted(os.sched_getaffinity(0))[:1])
folder = Path(sys.argv[1])
process = WorkerProcess(folder=folder / "work", log=folder / "log", limits=limits, sandbox=None, program=sys.argv[2])
time.sleep(600)
"""


def numbers(log: Path, count: int) -> list[str]:
    said = log.read_text().split() if log.exists() else []
    return said if len(said) == count else []


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def waited(look: Callable[[], Any]) -> Any:
    until = time.monotonic() + PATIENCE
    while not (found := look()):
        assert time.monotonic() < until
        time.sleep(0.05)
    return found


@pytest.mark.slow(part="endurance")
def test_a_hundred_sites_finish_ten_rounds_in_the_memory_of_a_small_machine(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sites, rounds = 100, 10
    described = describe_job("demo", rounds=rounds, sets=[f"data.clients={2 * sites}"])
    begun, most = time.monotonic(), 0
    with local_federation(described, sites, tmp_path) as federation:
        connected = time.monotonic()
        job = federation.connection.submit(described, min_sites=sites)
        while (state := job.state()).status not in ("finished", "failed"):
            most = max(most, sum(map(pss, tree(os.getpid()))))
            time.sleep(1.0)
        assert (state.status, state.round, len(state.sites)) == ("finished", rounds, sites), state.reason
    with capsys.disabled():
        print(
            f"\n{sites} sites: connected in {connected - begun:.0f} s, {rounds} rounds in "
            f"{time.monotonic() - connected:.0f} s more, {most / 1e9:.1f} GB at most"
        )
    assert most < 16e9


def tree(process: int) -> list[int]:
    return [process, *(each for child in children(process) for each in tree(child))]
