"""A whole federation on one machine: a server and sites as real processes, with real certificates, for one job."""

import os
import signal
import socket
import subprocess
import sys
import threading
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import tomli_w

from winnow.core import RunError
from winnow.data.split_into_site_folders import split_into_folders
from winnow.deploy.client.bundle import JobDescription
from winnow.deploy.client.connection import Connection, connect
from winnow.deploy.client.free_port import free_port
from winnow.deploy.sandbox.forked_process_handle import FORK_SERVER_VARIABLE
from winnow.deploy.sandbox.isolation import ProcessLimits, environment
from winnow.deploy.trust.project_file import Project, ProjectPerson, ProjectServer, ProjectSite
from winnow.deploy.trust.provisioning import open_provisioner

LOCAL_USER = "me"
FORK_SERVER_SOCKET = "fork-server"
"""The socket of the fork server, which starts the job processes of the server and the sites."""
START_SECONDS = 300.0
"""Seconds until all sites must be connected, and the seconds that each site adds: many times what they take on an idle
machine. Only a process that hangs is waited for so long; one that exits is noticed at once.
"""
START_SECONDS_PER_SITE = 3.0
START_POLL_SECONDS = 0.05
STOP_SECONDS = 10.0
ENDING_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@dataclass(frozen=True, kw_only=True)
class LocalFederation:
    """Running processes, and a connection to them."""

    folder: Path
    connection: Connection
    processes: dict[str, "subprocess.Popen[bytes]"] = field(repr=False)

    def kit(self, name: str) -> Path:
        return _kit(self.folder, name)


@contextmanager
def local_federation(
    described: JobDescription,
    sites: int,
    folder: Path,
    *,
    data_directory: Path | None = None,
    port: int | None = None,
    listen: int | None = None,
) -> Iterator[LocalFederation]:
    """Split a job's data, make kits, start all processes and wait until they are connected; stop them at the end.

    Sites connect to `port`. The server listens there, or at `listen` if a relay stands in between.
    """
    names = [f"site-{number}" for number in range(1, sites + 1)]
    described.check_parties(names)
    split_into_folders(described.data, described.seed, sites, folder / "data", data_directory)
    port = port or free_port()
    _provision(folder, names, port)
    _configure(folder, names, described.data.name, listen or port, own_code=bool(described.files))
    with _running_processes(folder, names) as processes, connect(_kit(folder, LOCAL_USER)) as connection:
        wait_until_connected(folder, processes, connection, port)
        yield LocalFederation(folder=folder, connection=connection, processes=processes)


def log_path(folder: Path, name: str) -> Path:
    """The log file of a process."""
    logs = folder / "logs"
    logs.mkdir(exist_ok=True)
    return logs / f"{name}.log"


def start_process(folder: Path, name: str) -> "subprocess.Popen[bytes]":
    """Start (again) the server or a site, in a session of its own: Ctrl-C is its parent's business."""
    command = "server" if name == "server" else "site"
    with log_path(folder, name).open("ab") as output:
        return subprocess.Popen(  # noqa: S603 - our own interpreter and module
            [sys.executable, "-P", "-m", "winnow.cli", command, str(_kit(folder, name))],
            env={
                **os.environ,
                **(
                    {FORK_SERVER_VARIABLE: str(workers)} if (workers := folder / FORK_SERVER_SOCKET).is_socket() else {}
                ),
            },
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def wait_until_connected(
    folder: Path, processes: "Mapping[str, subprocess.Popen[bytes]]", connection: Connection, port: int
) -> None:
    """Until the server listens at `port` and all other processes, its sites, are connected to it.

    Raises a RunError at once if one of them has exited.
    """
    sites = len(processes) - 1
    still_starting = _startup_check(folder, processes, sites)
    while not _is_open(port):
        still_starting()
    while sum(site.connected for site in connection.sites()) < sites:
        still_starting()


def _kit(folder: Path, name: str) -> Path:
    return folder / "project" / "kits" / name


def _provision(folder: Path, names: Sequence[str], port: int) -> None:
    here = "this machine"
    project = Project(
        name="local",
        servers=(ProjectServer(name="server", organisation=here, hosts=("127.0.0.1",), port=port),),
        sites=tuple(ProjectSite(name=name, organisation=here) for name in names),
        people=(ProjectPerson(name=LOCAL_USER, organisation=here, role="admin"),),
        validity_days=7,
    )
    with open_provisioner(folder / "project", project, None, datetime.now(UTC)) as provisioner:
        for _ in provisioner.issue_missing():
            pass


def _configure(folder: Path, names: Sequence[str], data: str, listen: int, *, own_code: bool) -> None:
    """The operators' own files: where their data are, that `me` may use them, and no access from other machines."""
    for name in ("server", *names):
        file = "server.toml" if name == "server" else "site.toml"
        own, kit = folder.absolute() / "data" / name, _kit(folder, name)
        table = tomllib.loads((own / file).read_text())
        table["data"][data]["folder"] = str(own / data)
        if name == "server":
            (kit / file).write_text(tomli_w.dumps({"listen": f"127.0.0.1:{listen}", **table}))
        else:
            table["data"][data]["client_names"] = True
            (kit / file).write_text(tomli_w.dumps(table))
            rule = {"people": [LOCAL_USER], "data": [data], "own_code": own_code}
            (kit / "policy.toml").write_text(
                tomli_w.dumps({"remote_control": True, "keeper": True, "confusion_matrix": True, "jobs": [rule]})
            )


@contextmanager
def _running_processes(folder: Path, names: Sequence[str]) -> Iterator[dict[str, "subprocess.Popen[bytes]"]]:
    processes: dict[str, subprocess.Popen[bytes]] = {}
    with running_fork_server(folder):
        try:
            for name in ("server", *names):
                with _uninterrupted():
                    processes[name] = start_process(folder, name)
            yield processes
        finally:
            stop_processes(list(processes.values()))


@contextmanager
def running_fork_server(folder: Path) -> Iterator[Path]:
    """Start a fork server, wait until it listens, and stop it at the end. Give the path of its socket.

    At a hundred sites, separately started job processes would not fit into memory.
    """
    path = folder / FORK_SERVER_SOCKET
    if path.exists():
        raise RunError(f"{FORK_SERVER_SOCKET} did not start: {path} is already in use")
    started: dict[str, subprocess.Popen[bytes]] = {}
    try:
        with _uninterrupted():
            started[FORK_SERVER_SOCKET] = _start_fork_server(folder)
        still_starting = _startup_check(folder, started, 0)
        while not path.is_socket():
            still_starting()
        yield path
    finally:
        stop_processes(list(started.values()))
        path.unlink(missing_ok=True)


@contextmanager
def _uninterrupted() -> Iterator[None]:
    """Delay SIGINT and SIGTERM until a process that is being started is known, so that it is stopped too."""
    if threading.current_thread() is not threading.main_thread():  # which gets no signals
        yield
        return
    arrived: list[int] = []
    before = {each: signal.signal(each, lambda number, frame: arrived.append(number)) for each in ENDING_SIGNALS}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)
    for number in arrived[:1]:
        signal.raise_signal(number)


def _start_fork_server(folder: Path) -> "subprocess.Popen[bytes]":
    cpus = sorted(os.sched_getaffinity(0))
    limits = ProcessLimits(memory_mb=0, cpus=cpus[:1])
    with log_path(folder, FORK_SERVER_SOCKET).open("ab") as output:
        return subprocess.Popen(  # noqa: S603
            [sys.executable, "-I", "-m", "winnow.deploy.sandbox.fork_server", FORK_SERVER_SOCKET],
            env=environment(folder, limits, shared_cache=True),
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
        )


def stop_processes(processes: "Sequence[subprocess.Popen[bytes]]") -> None:
    """Terminate these leaders of process groups, the last first; kill the ones that do not exit, and their children.

    A process that has exited is stopped. If a signal interrupts the wait, all are killed at once.
    """
    deadline = time.monotonic() + STOP_SECONDS
    try:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(0.1, deadline - time.monotonic()))
    finally:
        for process in processes:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        for process in processes:
            process.wait()


def _startup_check(folder: Path, processes: "Mapping[str, subprocess.Popen[bytes]]", sites: int) -> Callable[[], None]:
    """A function that waits a moment and raises if a process has exited or the time is up."""
    seconds = START_SECONDS + START_SECONDS_PER_SITE * sites
    deadline = time.monotonic() + seconds

    def check() -> None:
        for name, process in processes.items():
            if process.poll() is not None:
                said = log_path(folder, name).read_text(errors="replace").strip().splitlines()
                raise RunError(f"{name} did not start: {said[-1] if said else f'exit code {process.returncode}'}")
        if time.monotonic() > deadline:
            raise RunError(f"the server and its {sites} sites did not all connect within {seconds:g} seconds")
        time.sleep(START_POLL_SECONDS)

    return check


def _is_open(port: int) -> bool:
    with suppress(OSError), socket.create_connection(("127.0.0.1", port), timeout=1):
        return True
    return False
