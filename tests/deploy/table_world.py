"""A federation of real processes whose sites hold parts of a table: a server, agents with rules, and two people."""

import os
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
from process_trees import Seen, tree, wait_until_ended

from waiting import PATIENCE
from winnow.analytics.question import MergedTerms, QueryTerms, Question, merge_terms
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.analytics.tables.parse_table_section import parse_table
from winnow.analytics.tables.read_rows import read_rows
from winnow.deploy.client.connection import Connection, connect
from winnow.deploy.client.free_port import free_port
from winnow.deploy.client.local_federation import start_process, stop_processes, wait_until_connected
from winnow.deploy.trust.project_file import Project, ProjectPerson, ProjectServer, ProjectSite
from winnow.deploy.trust.provisioning import open_provisioner

COLUMNS = {
    "ward": {"level": "public", "values": ["cardiac", "surgery", "eyes"]},
    "age": {"level": "protected", "bounds": [0, 110]},
    "cost": {"level": "protected", "bounds": [0, 50000]},
}
SECTION = """
[tables.stays]
file = "stays.csv"
[tables.stays.columns]
ward = { level = "public", values = ["cardiac", "surgery", "eyes"] }
age = { level = "protected", bounds = [0, 110] }
cost = { level = "protected", bounds = [0, 50000] }
"""
RULE = """
[[queries]]
people = ["ana"]
tables = ["stays"]
allow = ["statistics", "correlation"]
"""
NOISE_RULE = RULE + "noise = { epsilon = 4.0 }\n"


def stays(owner: int, rows: int = 120) -> str:
    """An owner's rows as CSV; only its number decides what they are."""
    rng = np.random.default_rng([18, owner])
    wards = rng.choice(["cardiac", "surgery", "eyes"], rows, p=[0.5, 0.4, 0.1])
    ages, costs = rng.integers(0, 100, rows), np.round(rng.gamma(2.0, 3000.0, rows), 2)
    lines = [f"{ward},{age},{cost}" for ward, age, cost in zip(wards, ages, costs, strict=True)]
    return "\n".join(["ward,age,cost", *lines]) + "\n"


class TableWorld:
    """Processes by name: "server", and the sites."""

    def __init__(self, folder: Path, sites: Sequence[str]) -> None:
        self.folder, self.sites = folder, tuple(sites)
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self._orphans: set[Seen] = set()
        self.port = free_port()
        project = Project(
            name="tables",
            servers=(ProjectServer(name="server", organisation="Institute", hosts=("127.0.0.1",), port=self.port),),
            sites=tuple(ProjectSite(name=name, organisation=name.title()) for name in sites),
            people=tuple(ProjectPerson(name=name, organisation="Institute", role="lead") for name in ("ana", "bo")),
            validity_days=7,
        )
        with open_provisioner(folder / "project", project, None, datetime.now(UTC)) as provisioner:
            for _ in provisioner.issue_missing():
                pass
        (self.kit("server") / "server.toml").write_text(f'listen = "127.0.0.1:{self.port}"\n')
        for number, name in enumerate(sites):
            self.configure(name, stays(number))

    def kit(self, name: str) -> Path:
        return self.folder / "project" / "kits" / name

    def configure(self, site: str, rows: str, section: str = SECTION, policy: str = RULE) -> None:
        (self.kit(site) / "stays.csv").write_text(rows)
        (self.kit(site) / "site.toml").write_text(section)
        (self.kit(site) / "policy.toml").write_text(policy)

    def allow(self, policy: str, *sites: str) -> None:
        for name in sites or self.sites:
            (self.kit(name) / "policy.toml").write_text(policy)

    def start(self, *names: str) -> None:
        for name in names:
            self.processes[name] = start_process(self.folder, name)

    def kill(self, name: str) -> None:
        """At once, with all that it started."""
        process = self.processes.pop(name)
        self._orphans |= tree(process.pid)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()

    def stop(self) -> None:
        """Stop all processes, and wait until all that they started has ended."""
        processes = list(self.processes.values())
        started = self._orphans.union(*(tree(process.pid) for process in processes))
        stop_processes(processes)
        wait_until_ended(started)

    def table(self, site: str) -> OwnerTable:
        declaration, source = parse_table({"file": "stays.csv", "columns": COLUMNS}, "table stays")
        return read_rows(source.absolute(self.kit(site)), declaration)

    def terms(self, question: Question, **changes: object) -> MergedTerms:
        """What all sites' terms come to, worked out here."""
        allow = ("statistics", "correlation", "fit", "trees", "aggregate")
        own = {
            site: QueryTerms(declaration=self.table(site).declaration, allow=allow, **changes) for site in self.sites
        }
        return merge_terms(question, own)

    @property
    def log(self) -> str:
        return "".join(path.read_text(errors="replace") for path in sorted((self.folder / "logs").glob("*.log")))


@contextmanager
def running(world: TableWorld) -> Iterator[Connection]:
    """All processes, and ana's connection once all sites are there."""
    try:
        world.start("server", *world.sites)
        with connect(world.kit("ana"), retry_seconds=PATIENCE) as connection:
            wait_until_connected(world.folder, world.processes, connection, world.port)
            yield connection
    finally:
        world.stop()
