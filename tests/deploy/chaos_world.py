"""A federation of real processes that faults are done to, and how long each fault interrupts a job.

    with cluster() as postgres:
        world = World(tmp_path, fresh_database(postgres), servers=3)
        with world.running("job", rounds=LONG):
            for _ in range(10):
                tally.add("kill", world.interruption(world.kill))
                world.start_missing()
    print(tally)

`World` makes kits, settings and data of servers and sites, starts them, and kills, stops and continues any of them by
name. `interruption` does a fault to the leader and returns the seconds from the last commit before it to the first
commit of the next leader, by the database's clock. `Tally` is the table that a suite prints.
"""

import os
import re
import signal
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

import tomli_w
from process_trees import Seen, tree, wait_until_ended
from sqlalchemy import create_engine, text

from waiting import PATIENCE, eventually
from winnow.config.resolve import resolve
from winnow.data.split_into_site_folders import split_into_folders
from winnow.deploy.client.connection import connect
from winnow.deploy.client.free_port import free_port
from winnow.deploy.trust.project_file import Project, ProjectPerson, ProjectServer, ProjectSite
from winnow.deploy.trust.provisioning import open_provisioner
from winnow.experiment.prepare_clients import data_settings_for

SETTINGS = ["data.clients=9", "engine.execution=loop", "select.fraction=0.5", "local.epochs=1"]
"""A job whose rounds take a fraction of a second: what is measured is the interruption."""
LONG = 100_000
"""Rounds of a job that lasts as long as the test."""
SEED = 7
PERSON = "me"


@dataclass(frozen=True, kw_only=True)
class Committed:
    """A committed round, the token it was committed under, and when, by the database's clock."""

    round: int
    token: int
    at: float


class World:
    """Servers on one database and sites, as processes that can be killed, stopped and started again."""

    def __init__(
        self,
        folder: Path,
        database: str,
        *,
        servers: int = 2,
        sites: int = 3,
        settings: dict[str, object] | None = None,
    ) -> None:
        """`settings` go into every server's `server.toml`."""
        self.folder = folder
        self.servers = [f"server-{number}" for number in range(1, servers + 1)]
        self.sites = [f"site-{number}" for number in range(1, sites + 1)]
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        self.environment: dict[str, dict[str, str]] = {}
        """What is added to the environment of whom."""
        self._orphans: set[Seen] = set()
        self._engine = create_engine(database)
        ports = {name: free_port() for name in self.servers}
        self._provision(ports)
        for name, port in ports.items():
            table = {
                "database": database,
                "address": f"grpc://127.0.0.1:{port}",
                "listen": f"127.0.0.1:{port}",
                "data": {"digits": {"folder": str(folder / "data" / "server" / "digits"), "classes": 10}},
                **(settings or {}),
            }
            (self.kit(name) / "server.toml").write_text(tomli_w.dumps(table))
        for name in self.sites:
            data = {"digits": {"folder": str(folder / "data" / name / "digits")}}
            (self.kit(name) / "site.toml").write_text(tomli_w.dumps({"data": data}))
            rule = {"people": [PERSON], "data": ["digits"]}
            (self.kit(name) / "policy.toml").write_text(tomli_w.dumps({"jobs": [rule]}))
        experiment = resolve("demo", sets=SETTINGS, seed=SEED)
        split_into_folders(data_settings_for(experiment), SEED, sites, folder / "data")

    def revoke(self, name: str) -> None:
        """As `winnow provision --revoke` does; the servers read the new list by themselves."""
        with open_provisioner(self.folder / "project", self._project, None, datetime.now(UTC)) as workshop:
            list(workshop.revoke(name))

    def _provision(self, ports: dict[str, int]) -> None:
        here = "here"
        self._project = Project(
            name="chaos",
            servers=tuple(
                ProjectServer(name=n, organisation=here, hosts=("127.0.0.1",), port=p) for n, p in ports.items()
            ),
            sites=tuple(ProjectSite(name=name, organisation=here) for name in self.sites),
            people=(ProjectPerson(name=PERSON, organisation=here, role="admin"),),
        )
        with open_provisioner(self.folder / "project", self._project, None, datetime.now(UTC)) as workshop:
            list(workshop.issue_missing())

    def kit(self, name: str) -> Path:
        return self.folder / "project" / "kits" / name

    def log(self, name: str) -> str:
        return (self.folder / f"{name}.log").read_text()

    # Processes --------------------------------------------------------------------------------------------------------

    def start(self, *names: str) -> None:
        for name in names:
            command = "server" if name in self.servers else "site"
            with (self.folder / f"{name}.log").open("ab") as log:
                self.processes[name] = subprocess.Popen(
                    [sys.executable, "-m", "winnow.cli", command, str(self.kit(name))],
                    env={**os.environ, **self.environment.get(name, {})},
                    stdout=log,
                    stderr=log,
                    start_new_session=True,
                )

    def start_all(self) -> None:
        self.start(*self.servers, *self.sites)

    def start_missing(self) -> None:
        """Start again whoever was killed."""
        self.start(*(name for name, process in self.processes.items() if process.poll() is not None))

    def kill(self, name: str) -> None:
        """The process alone: what it started must notice by itself."""
        process = self.processes[name]
        self._orphans |= tree(process.pid)
        process.kill()
        process.wait()

    def stop(self, name: str) -> None:
        """It hangs: it holds its connections and says nothing."""
        self.signal(name, signal.SIGSTOP)

    def go_on(self, name: str) -> None:
        self.signal(name, signal.SIGCONT)

    def signal(self, name: str, number: int) -> None:
        os.kill(self.processes[name].pid, number)

    def close(self) -> None:
        """Kill all processes, and wait until all that they started has ended."""
        processes = list(self.processes.values())
        started = self._orphans.union(*(tree(process.pid) for process in processes))
        for process in processes:
            process.kill()
        for process in processes:
            process.wait()
        self._engine.dispose()
        wait_until_ended(started)

    # What the database says -------------------------------------------------------------------------------------------

    def committed(self) -> list[Committed]:
        rows = self._rows("SELECT number, token, at FROM rounds ORDER BY number")
        return [Committed(round=row[0], token=row[1], at=row[2]) for row in rows]

    def leader(self) -> str | None:
        rows = self._rows("SELECT server FROM lease WHERE expires > extract(epoch FROM clock_timestamp())")
        return rows[0][0] if rows else None

    def _rows(self, query: str) -> list[tuple]:
        with self._engine.connect() as connection:
            return [tuple(row) for row in connection.execute(text(query))]

    # A job and what interrupts it -------------------------------------------------------------------------------------

    @contextmanager
    def running(self, name: str = "job", *, rounds: int = LONG) -> Iterator[None]:
        """Everything is started, and a job of short rounds runs."""
        self.start_all()
        with connect(self.kit(PERSON), PATIENCE) as connection:
            connection.submit("demo", sets=SETTINGS, rounds=rounds, seed=SEED, min_sites=len(self.sites), name=name)
            self.wait_for_rounds(2)
            yield

    def wait_for_rounds(self, count: int) -> None:
        """Until so many more rounds are committed."""
        reached = len(self.committed())
        eventually(lambda: len(self.committed()) >= reached + count, "no round was committed")

    def interruption(self, fault: Callable[[str], None]) -> float:
        """Do a fault to the leader; seconds from its last commit to the first one of the next leader."""
        leader = eventually(self.leader, "nobody leads")
        token = self.committed()[-1].token
        fault(leader)
        eventually(lambda: self.committed()[-1].token > token, f"nobody committed a round after {leader}")
        rounds = self.committed()
        last = max(each.at for each in rounds if each.token == token)
        return min(each.at for each in rounds if each.token > token) - last

    def times_prepared(self, site: str) -> int:
        """How often a site prepared for a job, worker and all, by its audit."""
        return (self.kit(site) / "audit.jsonl").read_text().count('"job accepted"')

    def wait_for_reserves(self) -> None:
        """Until every server has a preloaded runner, and all know the leader: faults seldom come one after another."""
        # They load with the lowest priority: on a busy machine that takes its time.
        eventually(lambda: all(map(self._has_reserve, self.servers)), "a server has no preloaded runner", 600)
        self.wait_for_rounds(1)

    def _has_reserve(self, server: str) -> bool:
        """Whether the last process that its log tells of is there, and no job's yet."""
        kept = re.findall(r"process (\d+) is preloaded", self.log(server))
        used = re.findall(r"process (\d+) starts", self.log(server))
        return bool(kept) and kept[-1] not in used and Path("/proc", kept[-1]).exists()


@dataclass
class Tally:
    """By fault: the seconds of each interruption, or why there is none."""

    seconds: dict[str, list[float]] = field(default_factory=dict)
    failures: dict[str, list[str]] = field(default_factory=dict)

    def add(self, fault: str, seconds: float) -> None:
        self.seconds.setdefault(fault, []).append(seconds)

    def fail(self, fault: str, why: str) -> None:
        self.failures.setdefault(fault, []).append(why)

    def median(self, fault: str) -> float:
        return statistics.median(self.seconds[fault])

    def longest(self, fault: str) -> float:
        return max(self.seconds[fault])

    def __str__(self) -> str:
        faults = sorted({*self.seconds, *self.failures})
        width = max(map(len, faults), default=0)
        lines = [f"{'fault':<{width}} {'tries':>5}  {'outcome':<20} {'median':>7} {'longest':>8}"]
        for fault in faults:
            gaps, failed = self.seconds.get(fault, []), self.failures.get(fault, [])
            outcome = f"{len(failed)} failed" if failed else "all went on"
            figures = f"{statistics.median(gaps):>6.1f}s {max(gaps):>7.1f}s" if gaps else f"{'–':>7} {'–':>8}"
            lines.append(f"{fault:<{width}} {len(gaps) + len(failed):>5}  {outcome:<20} {figures}")
            lines += [f"    {why}" for why in failed]
        return "\n".join(lines)
