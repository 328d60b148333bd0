"""Sites and the leading server are killed at random throughout a job on PostgreSQL; it ends as if nothing had been."""

import json
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from chaos_world import SEED, SETTINGS, World
from postgres import cluster, fresh_database
from safetensors.torch import load_file

from waiting import PATIENCE
from winnow.config.resolve import resolve
from winnow.deploy.client.connection import connect
from winnow.experiment.run import run_experiment

ROUNDS = 25
KILLS = 12


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    with cluster() as postgres:
        world = World(tmp_path, fresh_database(postgres))
        try:
            yield world
        finally:
            world.close()


@pytest.mark.slow(part="chaos")
def test_a_job_survives_random_kills_of_sites_and_of_the_leading_server(world: World, tmp_path: Path) -> None:
    experiment = resolve("demo", sets=SETTINGS, rounds=ROUNDS, seed=SEED)
    run_experiment(experiment, out=tmp_path / "simulated")
    world.start_all()
    dice, failovers = random.Random(3), list[float]()
    with connect(world.kit("me"), PATIENCE) as connection:
        job = connection.submit("demo", sets=SETTINGS, rounds=ROUNDS, seed=SEED, min_sites=len(world.sites))
        over = threading.Event()

        def disturb() -> None:
            for number in range(KILLS):
                if over.wait(dice.uniform(2.0, 6.0)):
                    return
                victim = dice.choice(world.sites) if number % 2 else connection.status().leader
                world.kill(victim)
                if victim in world.servers:
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
    assert [event["round"] for event in events if event["kind"] == "round_finished"] == list(range(1, ROUNDS + 1))
    assert failovers
    assert max(failovers) < 10, failovers
