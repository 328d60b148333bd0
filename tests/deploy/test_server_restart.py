"""A server alone on SQLite is killed or stopped, and started again: it goes on where it was."""

import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from papers import kit_of
from serving import (
    WANTED,
    Person,
    ServerProcess,
    check_result,
    check_rounds,
    eventually,
    federation,
    job_config,
    rounds_in,
    sites,
)

from winnow.deploy.client.free_port import free_port

ROUNDS = 15


@contextmanager
def server_and_person(folder: Path) -> Iterator[tuple[ServerProcess, Person]]:
    """A server with its sites, and somebody who submits jobs to it."""
    port = free_port()
    kits = federation(folder / "kits", (port,))
    config = folder / "server.toml"
    config.write_text("heartbeat = 1.0\njoin_wait = 0.5\n")
    endpoint = f"grpc://127.0.0.1:{port}"
    with (
        ServerProcess(kits / "kits" / "server-1", config, folder / "log") as server,
        sites(kits, endpoint),
        Person(kit_of(kits, "the-lead"), (endpoint,)) as person,
    ):
        yield server, person


@pytest.mark.slow(part="kills")
def test_a_server_on_sqlite_killed_at_random_moments_goes_on_where_it_was(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'state' / 'server.db'}"
    rng = random.Random(6)
    with server_and_person(tmp_path) as (server, person):
        person.submit("job", tmp_path, job_config(ROUNDS, WANTED, "pause = 0.05"))
        for _ in range(2):
            reached = person.state("job").round
            eventually(lambda reached=reached: person.state("job").round > reached)
            time.sleep(rng.uniform(0.0, 0.4))
            server.kill()
            server.start()
        state = person.wait("job", "finished", "failed")
        assert (state.status, state.round) == ("finished", ROUNDS), state.reason
        check_result(person, ROUNDS)
        check_rounds(url, ROUNDS)
        assert len({token for _, token in rounds_in(url)}) > 1


def test_a_server_that_is_asked_to_stop_leaves_in_order(tmp_path: Path) -> None:
    with server_and_person(tmp_path) as (server, person):
        person.submit("job", tmp_path, job_config(8, WANTED, "pause = 0.1"))
        eventually(lambda: person.state("job").round >= 2)
        server.signal(signal.SIGTERM)
        assert server.process.wait(60) == 0
        server.start()
        assert person.wait("job", "finished", "failed").status == "finished"
        check_result(person, 8)
