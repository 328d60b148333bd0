"""Everything that can go wrong around a running job, done to real processes one after another; prints what came of it.

WINNOW_FAULTS says how often each fault is done. The job's model must come out bit for bit as if nothing had happened.
"""

import os
import re
import signal
import subprocess
import threading
import time
import tomllib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import tomli_w
import torch
from bench.deploy.world import working_in
from chaos_world import PERSON, SEED, SETTINGS, Tally, World, eventually
from clock_shift import Clock, compile_library
from postgres import cluster, fresh_database
from relay import Relay
from safetensors.torch import load_file
from sqlalchemy.exc import SQLAlchemyError

from winnow.config.resolve import resolve
from winnow.deploy.client.connection import connect
from winnow.deploy.client.free_port import free_port
from winnow.deploy.client.unsigned_requests import SubmittedJob
from winnow.experiment.run import run_experiment

pytestmark = pytest.mark.slow(part="chaos")

TRIES = int(os.environ.get("WINNOW_FAULTS", "2"))
PATIENCE = 120.0
"""Seconds within which a job must have gone on after any fault, however busy the machine is."""
AFTERWARDS = 3
"""Rounds after a fault is over."""
DISK = "48m"
RATE = 40_000.0
HOUR = 3600


class Watch:
    """When each round of the job was first seen, by this process's own clock: those of servers may jump."""

    def __init__(self, world: World) -> None:
        self._world, self._over = world, threading.Event()
        self.seen: list[float] = []
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def _run(self) -> None:
        while not self._over.wait(0.05):
            try:
                rounds = len(self._world.committed())
            except SQLAlchemyError:  # the database may be out of order for a while, too
                continue
            now = time.monotonic()
            self.seen += [now] * (rounds - len(self.seen))

    def wait_for(self, more: int) -> None:
        reached = len(self.seen)
        eventually(lambda: len(self.seen) >= reached + more, "no round was committed any more", PATIENCE)

    def longest_gap(self, since: int) -> float:
        return max(after - before for before, after in pairwise(self.seen[since - 1 :]))

    def close(self) -> None:
        self._over.set()
        self._thread.join()


class Chaos:
    """A world, a job, and faults. A fault is a context: it begins, lasts for as long as is said, and is mended."""

    def __init__(self, world: World, clocks: dict[str, Clock], relays: dict[str, Relay], job: SubmittedJob) -> None:
        self.world, self.clocks, self.relays, self.job = world, clocks, relays, job
        self.watch = Watch(world)

    def tell(self, tally: Tally, name: str, fault: "Fault", seconds: float) -> None:
        try:
            tally.add(name, self.interruption(fault, seconds))
        except AssertionError as error:
            tally.fail(name, str(error))
            raise

    def interruption(self, fault: "Fault", seconds: float) -> float:
        """Do a fault for so long; the longest time between two commits until the job has gone on."""
        self.watch.wait_for(AFTERWARDS)
        before = len(self.watch.seen)
        with fault(self):
            time.sleep(seconds)
        self.watch.wait_for(AFTERWARDS)
        return self.watch.longest_gap(before)

    @property
    def leader(self) -> str:
        if len(self.world.servers) == 1:
            return self.world.servers[0]
        return str(eventually(self.world.leader, "nobody leads"))

    def close(self) -> None:
        self.watch.close()


Fault = Callable[[Chaos], AbstractContextManager[None]]


@contextmanager
def server_killed(chaos: Chaos) -> Iterator[None]:
    leader = chaos.leader
    chaos.world.kill(leader)
    yield
    chaos.world.start(leader)


@contextmanager
def server_stopped(chaos: Chaos) -> Iterator[None]:
    leader = chaos.leader
    chaos.world.stop(leader)
    yield
    chaos.world.go_on(leader)


@contextmanager
def runner_killed(chaos: Chaos) -> Iterator[None]:
    runner = re.findall(r"process (\d+) starts", chaos.world.log(chaos.leader))[-1]
    os.kill(int(runner), signal.SIGKILL)
    yield


@contextmanager
def site_killed(chaos: Chaos) -> Iterator[None]:
    chaos.world.kill("site-2")
    yield
    chaos.world.start("site-2")


@contextmanager
def site_stopped(chaos: Chaos) -> Iterator[None]:
    chaos.world.stop("site-1")
    yield
    chaos.world.go_on("site-1")


@contextmanager
def worker_killed(chaos: Chaos) -> Iterator[None]:
    for worker in working_in(chaos.world.kit("site-1")):
        os.kill(worker, signal.SIGKILL)
    yield


@contextmanager
def partition(chaos: Chaos) -> Iterator[None]:
    """Between the leader and everybody but its database. Nothing is closed: packets are lost."""
    relay = chaos.relays[chaos.leader]
    relay.silent = True
    yield
    relay.silent = False


@contextmanager
def slow_link(chaos: Chaos) -> Iterator[None]:
    for relay in chaos.relays.values():
        relay.rate = RATE
    yield
    for relay in chaos.relays.values():
        relay.rate = float("inf")


@contextmanager
def server_disk_full(chaos: Chaos) -> Iterator[None]:
    filler = chaos.world.kit(chaos.leader) / "state" / "filler"
    with filler.open("wb", buffering=0) as file, suppress(OSError):
        while file.write(bytes(4096)):
            pass
    yield
    filler.unlink()


@contextmanager
def clock_ahead(chaos: Chaos) -> Iterator[None]:
    """The leader's and a site's, by an hour; then back again."""
    whose = [chaos.clocks[chaos.leader], chaos.clocks["site-1"]]
    for clock in whose:
        clock.jump(HOUR)
    yield
    for clock in whose:
        clock.jump(0)


FAULTS: dict[str, tuple[Fault, float]] = {
    "server killed, 0 s": (server_killed, 0.0),
    "server stopped, 8 s": (server_stopped, 8.0),
    "server paused, 1 s": (server_stopped, 1.0),
    "runner killed": (runner_killed, 0.0),
    "site killed, 0 s": (site_killed, 0.0),
    "site stopped, 4 s": (site_stopped, 4.0),
    "worker killed": (worker_killed, 0.0),
    "leader cut off, 6 s": (partition, 6.0),
    "40 kB/s, 5 s": (slow_link, 5.0),
    "server's disk full, 3 s": (server_disk_full, 3.0),
    "clock an hour ahead, 3 s": (clock_ahead, 3.0),
}


def small_disk(folder: Path) -> bool:
    folder.mkdir(exist_ok=True)
    made = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", f"size={DISK}", "none", folder], capture_output=True, check=False
    )
    return made.returncode == 0


@contextmanager
def put_behind_relays(world: World) -> Iterator[dict[str, Relay]]:
    """Servers listen elsewhere; at the port that everybody knows there is a relay."""
    relays: dict[str, Relay] = {}
    for name in world.servers:
        file, listen = world.kit(name) / "server.toml", free_port()
        table = tomllib.loads(file.read_text())
        known = int(table["listen"].rpartition(":")[2])
        file.write_text(tomli_w.dumps({**table, "listen": f"127.0.0.1:{listen}"}))
        relays[name] = Relay(known, listen)
    try:
        yield relays
    finally:
        for relay in relays.values():
            relay.close()


@contextmanager
def chaos_in(folder: Path, database: str, servers: int, needed: int = 3) -> Iterator[tuple[Chaos, bool]]:
    """Everything is running; also whether a small file system could be mounted for the servers."""
    world = World(folder, database, servers=servers, sites=3)
    library = compile_library(folder)
    clocks = {name: Clock(library, folder / f"{name}.clock") for name in (*world.servers, *world.sites)}
    world.environment = {name: clock.environment for name, clock in clocks.items()}
    states = [world.kit(name) / "state" for name in world.servers]
    mounted = [state for state in states if small_disk(state)]
    try:
        with put_behind_relays(world) as relays, connect(world.kit(PERSON), PATIENCE) as connection:
            world.start_all()
            job = connection.submit("demo", sets=SETTINGS, rounds=100_000, seed=SEED, min_sites=needed, name="job")
            world.wait_for_rounds(2)
            chaos = Chaos(world, clocks, relays, job)
            try:
                yield chaos, bool(mounted)
            finally:
                chaos.close()
    finally:
        for name in world.processes:
            world.go_on(name)
        world.close()
        for state in mounted:
            subprocess.run(["umount", "-l", state], check=True)


@pytest.fixture(scope="module")
def tally() -> Iterator[Tally]:
    tally = Tally()
    yield tally
    print(f"\n{tally}")


@contextmanager
def database_for(servers: int, folder: Path) -> Iterator[tuple[str, str]]:
    """Its URL, and what the table calls it: PostgreSQL for so many servers, SQLite for none."""
    if not servers:
        yield f"sqlite:///{folder}/project/kits/server-1/state/server.db", "SQLite"
        return
    with cluster() as postgres:
        yield fresh_database(postgres), f"{servers} on PostgreSQL"


@pytest.mark.parametrize("servers", [0, 1, 2, 3], ids=["SQLite", "PostgreSQL", "2 servers", "3 servers"])
def test_a_job_goes_on_whatever_happens(servers: int, tally: Tally, tmp_path: Path) -> None:
    with database_for(servers, tmp_path) as (database, where), chaos_in(tmp_path, database, max(1, servers)) as made:
        chaos, small = made
        for name, (fault, seconds) in FAULTS.items():
            if fault is server_disk_full and not small:
                continue  # it takes a privileged user to mount a small file system
            for _ in range(TRIES):
                chaos.tell(tally, f"{where}: {name}", fault, seconds)
        rounds, state = chaos.world.committed(), chaos.job.state()
        assert state.status == "running", state
        assert [each.round for each in rounds] == list(range(1, len(rounds) + 1))
        assert all(one.token <= other.token for one, other in pairwise(rounds))
        chaos.job.abort("the test is over")
        chaos.job.download(tmp_path / "deployed")
        reached = chaos.job.state().round
    run_experiment(resolve("demo", sets=SETTINGS, rounds=reached, seed=SEED), out=tmp_path / "simulated")
    ours, theirs = (load_file(tmp_path / folder / "last.safetensors") for folder in ("deployed", "simulated"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs), "a fault changed the model"


@contextmanager
def site_revoked(chaos: Chaos) -> Iterator[None]:
    chaos.world.revoke("site-3")
    yield


@contextmanager
def data_relabelled(chaos: Chaos) -> Iterator[None]:
    path = sorted((chaos.world.folder / "data" / "site-1" / "digits").glob("*.npz"))[0]
    before = path.read_bytes()
    with np.load(path) as arrays:
        np.savez(path, **{**arrays, "y": np.roll(arrays["y"], 1)})
    yield
    path.write_bytes(before)


@pytest.mark.parametrize("servers", [0, 3], ids=["SQLite", "3 servers"])
def test_a_job_goes_on_without_a_site_that_is_out(servers: int, tally: Tally, tmp_path: Path) -> None:
    with (
        database_for(servers, tmp_path) as (database, where),
        chaos_in(tmp_path, database, max(1, servers), needed=1) as (chaos, _),
    ):

        def out() -> dict[str, str]:
            return {each.site: each.reason for each in chaos.job.state().absent_sites}

        chaos.tell(tally, f"{where}: data relabelled, 5 s", data_relabelled, 5.0)
        assert any("the data changed since the job started" in line.text for line in chaos.job.lines(follow=False))
        eventually(lambda: not out(), "the site was never readmitted", PATIENCE)
        chaos.tell(tally, f"{where}: site revoked", site_revoked, 0.0)
        eventually(lambda: "revoked" in out().get("site-3", ""), f"{out()}", PATIENCE)
        assert chaos.job.state().status == "running"
