"""A federation on this machine, as processes that are started in batches, and looked at from outside."""

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import tomli_w

from winnow.deploy.client.connection import Connection, connect
from winnow.deploy.client.free_port import free_port
from winnow.deploy.client.local_federation import start_process
from winnow.deploy.trust.project_file import Project, ProjectPerson, ProjectServer, ProjectSite
from winnow.deploy.trust.provisioning import open_provisioner

DATA = "numbers"
BATCH = 8
"""Sites that start at the same time: more would only wait for each other."""
PATIENCE = 600.0
HERE = "this machine"


@dataclass(kw_only=True)
class World:
    folder: Path
    names: Sequence[str]
    connection: Connection
    processes: "dict[str, subprocess.Popen[bytes]]" = field(default_factory=dict)
    seconds: float = 0.0
    """From the start of the first site until all were connected."""

    @property
    def server(self) -> int:
        return self.processes["server"].pid

    def kit(self, name: str) -> Path:
        return _kit(self.folder, name)

    def connected(self) -> int:
        return sum(site.connected for site in self.connection.sites())


@contextmanager
def world(
    folder: Path, sites: int, configure: Callable[[int, Path], object] = lambda place, kit: None
) -> Iterator[World]:
    """A server and so many sites, all connected; stopped at the end. `configure` may change what is in a site's kit."""
    names = [f"site-{number:03}" for number in range(1, sites + 1)]
    _provision(folder, names)
    for place, name in enumerate(names):
        configure(place, _kit(folder, name))
    processes: dict[str, subprocess.Popen[bytes]] = {}
    try:
        processes["server"] = start_process(folder, "server")
        with connect(_kit(folder, "me")) as connection:
            here = World(folder=folder, names=names, connection=connection, processes=processes)
            connection.status()
            _start_sites(here)
            yield here
    finally:
        for process in processes.values():
            process.terminate()
        for process in processes.values():
            try:
                process.wait(20)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _start_sites(here: World) -> None:
    begun = time.perf_counter()
    for first in range(0, len(here.names), BATCH):
        batch = here.names[first : first + BATCH]
        for name in batch:
            here.processes[name] = start_process(here.folder, name)
        while here.connected() < first + len(batch):
            if time.perf_counter() - begun > PATIENCE:
                raise TimeoutError(f"only {here.connected()} of {len(here.names)} sites connected")
            time.sleep(0.1)
    here.seconds = time.perf_counter() - begun


def _kit(folder: Path, name: str) -> Path:
    return folder / "project" / "kits" / name


def _provision(folder: Path, names: Sequence[str]) -> None:
    server = ProjectServer(name="server", organisation=HERE, hosts=("127.0.0.1",), port=free_port())
    project = Project(
        name="bench",
        servers=(server,),
        sites=tuple(ProjectSite(name=name, organisation=HERE) for name in names),
        people=(ProjectPerson(name="me", organisation=HERE, role="admin"),),
    )
    with open_provisioner(folder / "project", project, None, datetime.now(UTC)) as workshop:
        list(workshop.issue_missing())
    data = folder / "numbers.npz"
    np.savez(data, x=np.zeros((4, 2), np.float32), y=np.zeros((4, 1), np.float32))
    for name in names:
        (_kit(folder, name) / "site.toml").write_text(tomli_w.dumps({"data": {DATA: {"file": str(data)}}}))
        rule = {"people": ["me"], "data": [DATA], "own_code": True}
        (_kit(folder, name) / "policy.toml").write_text(tomli_w.dumps({"jobs": [rule]}))


# What the kernel knows of processes -----------------------------------------------------------------------------------


def rss(process: int) -> int:
    """Resident memory in bytes; 0 if the process has gone."""
    return _field(f"/proc/{process}/status", "VmRSS:")


def pss(process: int) -> int:
    """Its fair share of memory: pages that several processes have in common are divided between them."""
    return _field(f"/proc/{process}/smaps_rollup", "Pss:")


def cpu_seconds(process: int) -> float:
    fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def uses_torch(process: int) -> bool:
    try:
        return "libtorch" in Path(f"/proc/{process}/maps").read_text()
    except OSError:
        return False


def children(process: int) -> list[int]:
    """Also those that are in sessions of their own."""
    try:
        threads = list(Path(f"/proc/{process}/task").iterdir())
        return [int(child) for thread in threads for child in (thread / "children").read_text().split()]
    except OSError:
        return []


def working_in(folder: Path) -> list[int]:
    """Processes that work in a folder or below: a party's runners and workers, whoever their parent is."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if (process / "cwd").readlink().is_relative_to(folder):
                found.append(int(process.name))
        except OSError:
            continue  # it has gone, or is not ours to look at
    return sorted(found)


def _field(path: str, name: str) -> int:
    try:
        lines = Path(path).read_text().splitlines()
    except OSError:
        return 0
    return next((1024 * int(line.split()[1]) for line in lines if line.startswith(name)), 0)
