"""A job's process can be stopped at any time, in any state, and any number of times; nothing of it stays open."""

import os
import signal
import socket
import sys
from collections.abc import Callable
from contextlib import closing
from functools import partial
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from waiting import PATIENCE, eventually
from winnow.core import RunError
from winnow.deploy.client import local_federation as local
from winnow.deploy.jobs.ipc_channel import Channel, ChannelClosedError, stop_process
from winnow.deploy.jobs.ipc_messages import FromWorker, StopWorker
from winnow.deploy.sandbox.child_entry_point import LaunchSpec
from winnow.deploy.sandbox.forked_process_handle import ForkedProcess
from winnow.deploy.sandbox.isolation import ProcessLimits, environment
from winnow.deploy.sandbox.job_process import IdleProcess, JobProcess, fork_from, start_new

LIMITS = ProcessLimits(memory_mb=2000, cpus=sorted(os.sched_getaffinity(0)))
PROGRAMS = {
    "exits at once": "",
    "closes its connection": "import os, sys, time; os.close(int(sys.argv[1])); time.sleep(600)",
    "obeys": "import os, sys; os.read(int(sys.argv[1]), 1)",
    "hears nothing": "import time; time.sleep(600)",
}
FORKED, NEW = "forked", "new"


def descriptors() -> set[str]:
    return {path.name for path in Path("/proc/self/fd").iterdir() if path.exists()}


def alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def started(folder: Path, program: str, launch: Callable[..., Any]) -> tuple[JobProcess, Channel[Any]]:
    path = folder / "program.py"
    path.write_text(PROGRAMS[program])
    process = JobProcess(
        folder=folder / "work",
        log=folder / "log",
        limits=LIMITS,
        sandbox=None,
        program=str(path),
        launch=launch,
    )
    return process, Channel(process.socket, FromWorker)  # type: ignore[arg-type]


@pytest.mark.parametrize("how", [FORKED, NEW])
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_process_can_be_stopped_in_any_state_and_twice(
    program: str,
    how: str,
    tmp_path: Path,
    fork_server: Path,
) -> None:
    before = descriptors()
    launch = partial(fork_from, fork_server) if how == FORKED else start_new
    process, channel = started(tmp_path, program, launch)
    if program == "exits at once":
        process.wait(PATIENCE)
    if program == "closes its connection":
        with pytest.raises(ChannelClosedError):
            channel.receive()
    grace = PATIENCE if program == "obeys" else 0.1
    status = stop_process(process, channel, StopWorker(), grace)
    assert status == (0 if program in ("exits at once", "obeys") else -signal.SIGKILL)
    assert not alive(process.pid)
    assert stop_process(process, channel, StopWorker(), grace) == status
    assert descriptors() == before


def test_a_process_that_was_stopped_signals_no_other_that_got_its_number(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process, channel = started(tmp_path, "hears nothing", start_new)
    stop_process(process, channel, StopWorker(), 0.0)
    signalled: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, number: signalled.append(group))
    process.kill()
    process.end()
    assert signalled == []


def sleeping(folder: Path) -> LaunchSpec:
    program = folder / "program.py"
    program.write_text(PROGRAMS["hears nothing"])
    return LaunchSpec(
        limits=LIMITS,
        program=str(program),
        folder=str(folder),
        log=str(folder / "log"),
        environment=environment(folder, LIMITS),
    )


def test_a_forked_process_is_closed_while_it_runs_and_while_it_is_waited_for(
    tmp_path: Path,
    fork_server: Path,
) -> None:
    before = descriptors()
    ours, theirs = socket.socketpair()
    statuses: list[int] = []
    with ours, theirs, closing(ForkedProcess(fork_server, sleeping(tmp_path), theirs.fileno())) as process:
        waiting = Thread(target=lambda: statuses.append(process.wait(PATIENCE)))
        waiting.start()
        process.close()
        waiting.join(PATIENCE)
    assert statuses == [-signal.SIGKILL]
    assert process.poll() == -signal.SIGKILL
    eventually(lambda: not alive(process.pid))
    assert descriptors() == before


def test_an_idle_process_ends_when_it_is_closed_unless_it_was_launched(tmp_path: Path) -> None:
    before = descriptors()
    with closing(IdleProcess()) as idle:
        assert alive(idle.process.pid)
    assert idle.process.returncode == -signal.SIGKILL
    assert descriptors() == before
    with closing(IdleProcess()) as launched:
        process, connection = launched.launch(sleeping(tmp_path))
    assert process.poll() is None
    with connection:
        process.kill()
        process.wait(PATIENCE)
    assert descriptors() == before


def test_an_idle_process_that_cannot_be_launched_is_ended(tmp_path: Path) -> None:
    before = descriptors()
    idle = IdleProcess()
    with pytest.raises(TypeError):
        idle.launch(object())  # type: ignore[arg-type]
    assert idle.process.returncode == -signal.SIGKILL
    assert descriptors() == before


def test_no_connection_stays_open_where_no_process_can_be_started(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    before = descriptors()
    with pytest.raises(FileNotFoundError):
        fork_from(tmp_path / "nothing", sleeping(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "nothing"))
    with pytest.raises(FileNotFoundError):
        IdleProcess()
    assert descriptors() == before


def fork_servers(folder: Path) -> list[int]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cwd"):
        try:
            if path.readlink() == folder:
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


def test_a_fork_server_leaves_the_socket_of_another_alone(tmp_path: Path) -> None:
    path = tmp_path / local.FORK_SERVER_SOCKET
    with socket.socket(socket.AF_UNIX) as other:
        other.bind(str(path))
        with pytest.raises(RunError, match=r"fork-server did not start: .*already in use"):
            local.running_fork_server(tmp_path).__enter__()
        assert path.is_socket()
    assert fork_servers(tmp_path) == []


def test_a_fork_server_that_does_not_come_up_says_why(tmp_path: Path) -> None:
    (tmp_path / f"{local.FORK_SERVER_SOCKET}.starting").mkdir()
    with pytest.raises(RunError, match=r"fork-server did not start: .*Is a directory"):
        local.running_fork_server(tmp_path).__enter__()
    assert fork_servers(tmp_path) == []


def test_a_fork_server_is_stopped_where_a_signal_arrives_while_it_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def interrupted(*_: object) -> Callable[[], None]:
        assert len(fork_servers(tmp_path)) == 1
        return lambda: signal.raise_signal(signal.SIGINT)

    monkeypatch.setattr(local, "_startup_check", interrupted)
    with pytest.raises(KeyboardInterrupt):
        local.running_fork_server(tmp_path).__enter__()
    assert fork_servers(tmp_path) == []


def test_an_impatient_second_signal_leaves_no_process(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    running = local.running_fork_server(tmp_path)
    running.__enter__()
    assert len(fork_servers(tmp_path)) == 1
    interrupt = partial(signal.raise_signal, signal.SIGINT)
    monkeypatch.setattr("subprocess.Popen.terminate", lambda process: interrupt())
    with pytest.raises(KeyboardInterrupt):
        running.__exit__(None, None, None)
    assert fork_servers(tmp_path) == []
