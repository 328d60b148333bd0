"""What a server stored of a job is changed behind its back: it says so, and goes on from nothing that is damaged."""

import sqlite3
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from papers import kit_of
from serving import (
    WANTED,
    Person,
    ServerProcess,
    check_result,
    eventually,
    federation,
    job_config,
    sites,
)

from winnow.deploy.client.free_port import free_port
from winnow.deploy.wire.errors import RequestRefusedError
from winnow.deploy.wire.messages import FollowLog, GetJobResult

ROUNDS = 8

SLOW = pytest.mark.slow(part="kills")


class OneServer:
    """A server on SQLite whose job has committed some rounds, and which was killed then."""

    def __init__(self, folder: Path) -> None:
        port = free_port()
        self.folder, self.state = folder, folder / "state"
        self.kits = federation(folder / "kits", (port,))
        (folder / "server.toml").write_text("heartbeat = 1.0\njoin_wait = 0.5\n")
        self.server = ServerProcess(self.kits / "kits" / "server-1", folder / "server.toml", folder / "log")
        self.endpoint = f"grpc://127.0.0.1:{port}"
        self.person = Person(kit_of(self.kits, "the-lead"), (self.endpoint,))

    def submit_and_kill(self) -> None:
        self.person.submit("job", self.folder, job_config(ROUNDS, WANTED, "pause = 0.2"))
        eventually(lambda: self.person.state("job").round >= 3)
        self.server.kill()

    def sql(self, statement: str) -> list[tuple]:
        with sqlite3.connect(self.state / "server.db") as connection:
            rows = connection.execute(statement).fetchall()
        connection.close()
        return rows

    def ended(self) -> str:
        state = self.person.wait("job", "finished", "failed", seconds=60)
        return f"{state.status}: {state.reason}"


@pytest.fixture
def one(tmp_path: Path) -> Iterator[OneServer]:
    one = OneServer(tmp_path)
    with one.server, sites(one.kits, one.endpoint), one.person:
        yield one


def change_a_line(one: OneServer) -> str:
    one.sql("""UPDATE lines SET text = replace(text, '2', '6') WHERE kind = 'event' AND text LIKE '%2%'""")
    return "event lines of job job in the database differ from those committed with round 2"


def lose_a_line(one: OneServer) -> str:
    one.sql("DELETE FROM lines WHERE kind = 'event' AND text LIKE '%3%'")
    return "event lines of job job in the database differ from those committed with round 3"


def change_the_configuration(one: OneServer) -> str:
    one.sql("UPDATE jobs SET config = replace(config, 'rounds', 'roundt')")
    return "event lines of job job in the database differ from those committed with round 1"


def change_a_blob(one: OneServer, digest: str) -> None:
    file = one.state / "blobs" / "job" / digest
    content = bytearray(file.read_bytes())
    content[len(content) // 2] ^= 1
    file.write_bytes(content)


def change_the_checkpoint(one: OneServer) -> str:
    ((digest,),) = one.sql("SELECT checkpoint FROM rounds ORDER BY number DESC LIMIT 1")
    change_a_blob(one, digest)
    return "the checkpoint of job job after round"


def change_the_bundle(one: OneServer) -> str:
    ((digest,),) = one.sql("SELECT bundle FROM jobs")
    change_a_blob(one, digest)
    return "the bundle of job job after round"


@pytest.mark.parametrize(
    "damage",
    [
        change_a_line,
        change_the_checkpoint,
        pytest.param(lose_a_line, marks=SLOW),
        pytest.param(change_the_configuration, marks=SLOW),
        pytest.param(change_the_bundle, marks=SLOW),
    ],
)
def test_a_job_does_not_go_on_from_a_damaged_record(one: OneServer, damage: Callable[[OneServer], str]) -> None:
    one.submit_and_kill()
    told = damage(one)
    one.server.start()
    ended = one.ended()
    assert ended.startswith("failed: ")
    assert told in ended
    assert "from a backup, or submit the job again" in ended


def test_damaged_events_are_not_handed_out(one: OneServer) -> None:
    one.person.submit("job", one.folder, job_config(3, WANTED))
    assert one.ended() == "finished: "
    check_result(one.person, 3)
    told = change_a_line(one)
    with pytest.raises(RequestRefusedError, match=told):
        one.person.link.call(GetJobResult(job="job"))


def test_a_job_that_cannot_go_on_for_now_says_after_which_round_it_is_tried_again(one: OneServer) -> None:
    one.submit_and_kill()
    ((committed, token),) = one.sql("SELECT round, token FROM jobs, lease")
    for later in range(token + 1, token + 10):
        (one.state / "jobs" / "job" / f"run-{later}-1").write_text("no folder can be made here")
    one.server.start()
    told = f"restarting it after round {committed} (attempt 1 of 3)"

    def said() -> list[str]:
        return [line.text for line in one.person.link.follow(FollowLog(job="job", wait=False))]

    eventually(lambda: any(told in line for line in said()), lambda: "\n".join(said()))
    assert one.ended() == "finished: "
    check_result(one.person, ROUNDS)
    assert not any("from the beginning" in line for line in said())
