"""Two servers on one PostgreSQL: whichever dies or sleeps, the other leads soon, and no round is lost or made twice."""

import signal
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from papers import audit_problems, kit_of
from postgres import fresh_database
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
    tls,
)

from winnow.deploy.client.free_port import free_port
from winnow.deploy.server.audit_store import DatabaseAuditStore
from winnow.deploy.server.database import Database
from winnow.deploy.wire.errors import RequestRefusedError, UnreachableError
from winnow.deploy.wire.messages import FollowLog, GetStatus
from winnow.deploy.wire.transport_registry import open_link

ROUNDS = 15


class Pair:
    """Two servers on one PostgreSQL, which share nothing else."""

    def __init__(self, postgres: str, folder: Path, settings: str = "") -> None:
        self.url = fresh_database(postgres)
        ports = (free_port(), free_port())
        self.kits = federation(folder / "kits", ports)
        self.endpoints = tuple(f"grpc://127.0.0.1:{port}" for port in ports)
        self.servers = {}
        for index, endpoint in enumerate(self.endpoints, start=1):
            own = folder / f"own-{index}"
            own.mkdir()
            (own / "server.toml").write_text(
                f"database = '{self.url}'\naddress = '{endpoint}'\njoin_wait = 0.5\n{settings}"
            )
            name = f"server-{index}"
            self.servers[name] = ServerProcess(self.kits / "kits" / name, own / "server.toml", folder / f"{name}.log")
        self.person = Person(kit_of(self.kits, "the-lead"), self.endpoints)

    def leader(self) -> str:
        return self.person.link.call(GetStatus()).leader

    def close(self) -> None:
        self.person.close()
        for server in self.servers.values():
            server.kill()


@pytest.fixture
def pair(request: pytest.FixtureRequest, postgres: str, tmp_path: Path) -> Iterator[Pair]:
    with closing(Pair(postgres, tmp_path, getattr(request, "param", ""))) as made:
        yield made


def check_standby(pair: Pair, leader: str) -> None:
    """It does nothing but say who leads."""
    where = dict(zip(pair.servers, pair.endpoints, strict=True))
    [standby] = where.keys() - {leader}
    with closing(open_link(where[standby], tls(pair.person.kit))) as link:

        def refusal() -> str:
            try:
                with pytest.raises(RequestRefusedError, match=f"the leader is {leader}") as refused:
                    link.call(GetStatus())
            except UnreachableError:  # it is still starting
                return ""
            assert refused.value.retry
            return refused.value.leader

        assert eventually(refusal, "the standby never answered") == where[leader]


def test_a_standby_takes_over_and_the_job_goes_on(pair: Pair, tmp_path: Path) -> None:
    with sites(pair.kits, *pair.endpoints):
        pair.person.submit("job", tmp_path, job_config(ROUNDS, WANTED, "pause = 0.05"))
        eventually(lambda: pair.person.state("job").round >= 3)
        first = pair.leader()
        check_standby(pair, first)
        pair.servers[first].kill()
        reached = len(rounds_in(pair.url))
        eventually(lambda: len(rounds_in(pair.url)) > reached)
        assert pair.leader() != first
        state = pair.person.wait("job", "finished", "failed")
        assert (state.status, state.round) == ("finished", ROUNDS), state.reason
        check_result(pair.person, ROUNDS)
        numbers = [line.number for line in pair.person.link.follow(FollowLog(job="job"))]
        assert numbers == list(range(len(numbers)))
    check_rounds(pair.url, ROUNDS)
    with closing(Database(pair.url)) as database:
        assert audit_problems(DatabaseAuditStore(database), kit_of(pair.kits, "server-1").authority) == []


@pytest.mark.parametrize("pair", ["lease = 2.0\nheartbeat = 1.0\n"], indirect=True)
@pytest.mark.slow(part="kills")
def test_a_leader_that_was_asleep_cannot_commit_when_it_wakes(pair: Pair, tmp_path: Path) -> None:
    with sites(pair.kits, *pair.endpoints):
        pair.person.submit("job", tmp_path, job_config(ROUNDS, WANTED, "pause = 0.1"))
        eventually(lambda: pair.person.state("job").round >= 3)
        first = pair.leader()
        pair.servers[first].signal(signal.SIGSTOP)
        before = len(rounds_in(pair.url))
        tokens = eventually(
            lambda: len(found) > 1 and found if (found := {token for _, token in rounds_in(pair.url)}) else None
        )
        pair.servers[first].signal(signal.SIGCONT)
        eventually(lambda: "this server is now a standby" in pair.servers[first].log.read_text())
        eventually(lambda: len(rounds_in(pair.url)) > before + 3)
        newest = max(tokens)
        assert all(token == newest for number, token in rounds_in(pair.url) if number > before + 1)
        state = pair.person.wait("job", "finished", "failed")
        assert state.status == "finished", state.reason
        check_result(pair.person, ROUNDS)
    check_rounds(pair.url, ROUNDS)
