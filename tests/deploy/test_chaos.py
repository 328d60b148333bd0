"""Sites and the leading server are killed at random throughout a job on PostgreSQL; it ends as if nothing had been."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest
import tomli_w
import torch
from postgres import cluster, fresh_database
from safetensors.torch import load_file

from winnow.deploy.people.connection import connect
from winnow.deploy.people.local import free_port
from winnow.deploy.trust.project import Person, Project, Server, Site
from winnow.deploy.trust.provision import open_workshop
from winnow.experiment.build import held_out
from winnow.experiment.divide import divide
from winnow.experiment.resolve import resolve
from winnow.experiment.run import execute

SITES, SERVERS = ("site-1", "site-2", "site-3"), ("server-1", "server-2")
SETTINGS = ["data.clients=9", "engine.execution=loop", "select.fraction=0.5", "local.epochs=1"]
ROUNDS = 25
KILLS = 12


class World:
    """Two servers on one PostgreSQL and three sites, as processes that can be killed and started again."""

    def __init__(self, folder: Path, database: str) -> None:
        self.folder = folder
        self.processes: dict[str, subprocess.Popen[bytes]] = {}
        ports = {name: free_port() for name in SERVERS}
        here = "here"
        project = Project(
            name="chaos",
            servers=tuple(Server(name=n, organisation=here, hosts=("127.0.0.1",), port=p) for n, p in ports.items()),
            sites=tuple(Site(name=name, organisation=here) for name in SITES),
            people=(Person(name="me", organisation=here, role="admin"),),
        )
        with open_workshop(folder / "project", project, None, datetime.now(UTC)) as workshop:
            list(workshop.add_new())
        for name, port in ports.items():
            table = {
                "database": database,
                "address": f"grpc://127.0.0.1:{port}",
                "listen": f"127.0.0.1:{port}",
                "data": {"digits": {"folder": str(folder / "data" / "server" / "digits"), "classes": 10}},
            }
            (self.kit(name) / "server.toml").write_text(tomli_w.dumps(table))
        for name in SITES:
            data = {"digits": {"folder": str(folder / "data" / name / "digits")}}
            (self.kit(name) / "site.toml").write_text(tomli_w.dumps({"data": data}))
            rule = {"people": ["me"], "data": ["digits"]}
            (self.kit(name) / "policy.toml").write_text(tomli_w.dumps({"jobs": [rule]}))

    def kit(self, name: str) -> Path:
        return self.folder / "project" / "kits" / name

    def start(self, name: str) -> None:
        command = "server" if name in SERVERS else "site"
        with (self.folder / f"{name}.log").open("ab") as log:
            self.processes[name] = subprocess.Popen(
                [sys.executable, "-m", "winnow.cli", command, str(self.kit(name))],
                stdout=log,
                stderr=log,
                start_new_session=True,
            )

    def kill(self, name: str) -> None:
        """The process alone: what it started must notice by itself."""
        os.kill(self.processes[name].pid, signal.SIGKILL)
        self.processes[name].wait()

    def stop(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with cluster() as postgres:
        world = World(tmp_path, fresh_database(postgres))
        try:
            yield world
        finally:
            world.stop()


@pytest.mark.slow
def test_a_job_survives_random_kills_of_sites_and_of_the_leading_server(world: World, tmp_path: Path) -> None:
    experiment = resolve("demo", sets=SETTINGS, rounds=ROUNDS, seed=7)
    divide(held_out(experiment), experiment.seed, len(SITES), tmp_path / "data")
    execute(experiment, out=tmp_path / "simulated")
    for name in (*SERVERS, *SITES):
        world.start(name)
    dice, failovers = random.Random(3), list[float]()
    with connect(world.kit("me")) as connection:
        job = connection.submit("demo", sets=SETTINGS, rounds=ROUNDS, seed=7, min_sites=len(SITES))
        over = threading.Event()

        def disturb() -> None:
            for number in range(KILLS):
                if over.wait(dice.uniform(2.0, 6.0)):
                    return
                victim = dice.choice(SITES) if number % 2 else connection.status().leader
                world.kill(victim)
                if victim in SERVERS:
                    begun = time.monotonic()
                    while connection.status().leader == victim:
                        time.sleep(0.1)
                    failovers.append(time.monotonic() - begun)
                world.start(victim)

        disturbing = threading.Thread(target=disturb)
        disturbing.start()
        try:
            job.wait(600)
        finally:
            over.set()
            disturbing.join()
        job.download(tmp_path / "deployed")
    ours, theirs = (load_file(tmp_path / folder / "last.safetensors") for folder in ("deployed", "simulated"))
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs)
    events = [json.loads(line) for line in (tmp_path / "deployed" / "events.jsonl").read_text().splitlines()]
    assert [event["round"] for event in events if event["kind"] == "round"] == list(range(1, ROUNDS + 1))
    assert failovers
    assert max(failovers) < 10, failovers
