"""Odd text, floods and leftovers: they hurt at most the job that they come from, and the server goes on leading."""

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from threading import Event
from typing import Any

import pytest
from postgres import fresh_database
from serving import World, a_world, eventually, job_config, of, signed
from sqlalchemy.exc import DataError

from support.needs import SANDBOX
from winnow.deploy.jobs.bundle_format import write_bundle
from winnow.deploy.sandbox.isolation import ProcessLimits, Sandbox, sandbox_unavailable_reason
from winnow.deploy.server import database_reads, user_commands
from winnow.deploy.server.database_reads import Queries
from winnow.deploy.server.database_writes import LeaderWrites
from winnow.deploy.server.runner_process_handle import RunnerProcess
from winnow.deploy.server.running_job import RunnerError
from winnow.deploy.wire.atomic_files import blob_of
from winnow.deploy.wire.blob_transfer import upload_blob
from winnow.deploy.wire.errors import RequestRefusedError
from winnow.deploy.wire.message_codec import MAX_MESSAGE, encode
from winnow.deploy.wire.messages import (
    AbortJob,
    AssignTask,
    DeployJob,
    FollowLog,
    GetJobResult,
    GetStatus,
    JobInfo,
    JobList,
    ListJobs,
    LogLine,
    StopJob,
    SubmitJob,
)

HERE = "sites = ['plant-a']"


@pytest.fixture
def world(kits: Path, tmp_path: Path) -> Iterator[World]:
    with a_world(kits, tmp_path, "[limits]\nlog_lines = 5\n") as world:
        yield world


def lines_of(world: World, job: str = "job") -> list[LogLine]:
    return list(world.person().link.follow(FollowLog(job=job)))


# Text -----------------------------------------------------------------------------------------------------------------


def test_letters_that_a_database_does_not_take_end_nothing(postgres: str, kits: Path, tmp_path: Path) -> None:
    with a_world(kits, tmp_path, f"database = '{fresh_database(postgres)}'\n") as world:
        site = world.site("plant-a", answers=False)
        person = world.submit(job_config(2, HERE, "give_up_at = 2\nodd = true").replace("'trial'", '"tri\\u0000al"'))
        [order] = eventually(lambda: of(AssignTask, site))
        for client in order.task.clients:
            site.give("job", order.task.id, client, b"x")
        state = person.wait("job", "failed")
        assert state.title == "tri?al"
        assert state.reason == "it makes no sensea line with ? and ?[31m"
        texts = [line.text for line in lines_of(world) if line.kind == "log"]
        assert "a line with ? and ?[31m" in texts
        world.site("plant-b", refuses="no\0")
        person.submit("other", world.folder, job_config(1, "sites = ['plant-b']"))
        eventually(lambda: "plant-b rejected the job: no?" in person.state("other").reason)
        assert person.link.call(GetStatus()).lease_token == 1, "it went on leading"


@pytest.mark.parametrize("name", ["x" * 201, "a\0b"])
def test_an_output_with_an_impossible_name_fails_its_job(world: World, name: str) -> None:
    world.site("plant-a")
    quoted = name.replace("\0", "\\u0000")
    person = world.submit(job_config(1, HERE, f'output = "{quoted}"'))
    assert "an output file with the invalid name" in person.wait("job", "failed", "finished").reason


def test_what_the_database_refuses_is_the_jobs_failure(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    real = LeaderWrites.commit_round

    def refuse(self: LeaderWrites, job: str, **row: Any) -> None:
        if job == "job":
            raise DataError("INSERT", {}, ValueError("out of range"))
        real(self, job, **row)

    monkeypatch.setattr(LeaderWrites, "commit_round", refuse)
    world.site("plant-a")
    person = world.submit(job_config(1, HERE))
    assert "the database rejected what the job wrote: out of range" in person.wait("job", "failed").reason
    person.submit("other", world.folder, job_config(1, HERE))
    person.wait("other", "finished")
    assert person.link.call(GetStatus()).lease_token == 1


def test_a_job_whose_code_fills_the_disk_fails_and_the_server_goes_on(
    kits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "winnow.deploy.server.leader_services.sandbox_unavailable_reason",
        lambda: "the fake runner lies outside of all walls",
    )
    with a_world(kits, tmp_path, "sandbox = 'none'\n[limits]\ncustom_code_disk_mb = 64\n") as world:
        world.site("plant-a")
        person = world.person()
        person.submit("job", world.folder, job_config(1, HERE, "fill_mb = 300"), **{"mine.py": b"x = 1"})
        assert "it wrote more than 64 MB (limits.custom_code_disk_mb" in person.wait("job", "failed").reason
        eventually(lambda: not list(world.folder.rglob("full-*")))
        person.submit("other", world.folder, job_config(1, HERE, "fill_mb = 70"))
        person.wait("other", "finished")
        assert person.link.call(GetStatus()).lease_token == 1


def test_a_reign_that_begins_anew_has_a_new_token(kits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, failures = LeaderWrites.append, []

    def fail(self: LeaderWrites, job: str, lines: Any) -> None:
        if not failures:
            failures.append(job)
            raise OSError("the disk is gone for a moment")
        real(self, job, lines)

    monkeypatch.setattr(LeaderWrites, "append", fail)
    with a_world(kits, tmp_path, lease=2.0) as world:
        world.site("plant-a")
        person = world.submit(job_config(3, HERE, "pause = 0.3"))
        assert person.wait("job", "finished", "failed").status == "finished"
        assert failures
        assert person.link.call(GetStatus()).lease_token == 2


# Floods ---------------------------------------------------------------------------------------------------------------


def test_a_job_that_prints_without_end_is_cut_off(world: World) -> None:
    world.site("plant-a")
    world.submit(job_config(1, HERE, "chatter = 50")).wait("job", "finished")
    texts = [line.text for line in lines_of(world)]
    assert texts.count("chatter") == 4
    assert "the job reached the limit of 5 log lines; further lines are dropped" in texts


FLOOD = """
import socket, sys
from pathlib import Path
from winnow.deploy.jobs.ipc_channel import Channel
from winnow.deploy.jobs.ipc_messages import RunnerLogLine, ToRunner
channel = Channel(socket.socket(fileno=int(sys.argv[1])), ToRunner)
for _ in range(100):
    channel.send(RunnerLogLine(line="x" * 60_000))
Path("done").touch()
channel.receive()
"""


def test_a_runner_is_not_listened_to_faster_than_it_is_heard(tmp_path: Path) -> None:
    worker, done = tmp_path / "flood.py", tmp_path / "done"
    worker.write_text(FLOOD)

    async def listen() -> None:
        limits = ProcessLimits(memory_mb=512, cpus=sorted(os.sched_getaffinity(0)))
        process = RunnerProcess(tmp_path, tmp_path / "log", limits=limits, sandbox=None, program=str(worker))
        assert await asyncio.wait_for(process.receive(), 20) is not None
        await asyncio.sleep(0.5)
        assert not done.exists()
        for _ in range(99):
            assert await asyncio.wait_for(process.receive(), 20) is not None
        await asyncio.to_thread(eventually, done.exists)
        await process.end()

    asyncio.run(listen())


def a_state(number: int, size: int) -> JobInfo:
    return JobInfo(
        job=f"job-{number}",
        title="t" * size,
        status="queued",
        reason="",
        submitter="ana",
        organisation="x",
        priority=0,
        round=0,
        rounds=0,
        sites=[],
        submitted=0.0,
        metrics={},
    )


def test_the_latest_jobs_are_listed_as_far_as_a_message_goes(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    fitting = user_commands.latest_that_fit([a_state(number, 60_000) for number in range(100)])
    assert fitting[-1].job == "job-99"
    assert MAX_MESSAGE / 2 < len(encode(JobList(jobs=fitting))) <= MAX_MESSAGE
    monkeypatch.setattr(database_reads, "MAX_LISTED_JOBS", 2)
    person = world.person()
    for number in range(3):
        person.submit(f"job-{number}", world.folder, job_config(1, "sites = ['plant-c']"))
    assert [state.job for state in person.link.call(ListJobs()).jobs] == ["job-1", "job-2"]


# What a job may see ---------------------------------------------------------------------------------------------------

DATA = "[data.turbine]\nfolder = 'turbine'\n[data.secret]\nfolder = 'secret'\n"


def test_a_runner_sees_its_own_data_and_nothing_of_the_servers_environment(
    kits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PGPASSWORD", "hush")
    with a_world(kits, tmp_path, DATA) as world:
        world.site("plant-a")
        world.submit(job_config(1, HERE, "show_data = true")).wait("job", "finished")
        assert "sees data ['turbine'], password None" in [line.text for line in lines_of(world)]


@SANDBOX.unless(sandbox_unavailable_reason() is None)
def test_code_of_a_jobs_own_is_shown_its_own_data_alone(
    kits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    walls: list[Sandbox] = []

    def start(*_: Any, sandbox: Sandbox, **__: Any) -> None:
        walls.append(sandbox)
        raise RunnerError("that is enough")

    monkeypatch.setattr("winnow.deploy.server.runner_start.RunnerProcess", start)
    with a_world(kits, tmp_path, DATA) as world:
        world.site("plant-a")
        person, path = world.person(), tmp_path / "own"
        path.write_bytes(write_bundle(signed(person.kit, job_config(1, HERE), **{"own.py": b""})))
        upload_blob(person.link, "job", path, blob_of(path))
        person.link.call(SubmitJob(job="job", bundle=blob_of(path)))
        person.wait("job", "failed")
    assert str(tmp_path / "turbine") in walls[0].read
    assert str(tmp_path / "secret") not in walls[0].read


# Leftovers ------------------------------------------------------------------------------------------------------------


def files_under(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_bundles_are_not_kept_where_they_arrived(world: World) -> None:
    person = world.person()
    person.submit("job", world.folder, job_config(1, "sites = ['plant-c']"))
    with pytest.raises(RequestRefusedError, match="a different job is already called job"):
        person.submit("job", world.folder, job_config(2))
    with pytest.raises(RequestRefusedError, match="min_sites"):
        person.submit("other", world.folder, job_config(2, "min_sites = 0"))
    assert files_under(world.folder / "state" / "uploads") == []


def test_the_events_of_a_job_lie_in_one_file(world: World) -> None:
    site = world.site("plant-a", delay=0.2)
    person = world.submit(job_config(3, HERE))
    eventually(lambda: person.state("job").round >= 1)
    first = person.link.call(GetJobResult(job="job")).events
    person.wait("job", "finished")
    last = person.link.call(GetJobResult(job="job")).events
    assert first != last
    assert [path.name for path in files_under(world.folder / "state" / "results")] == [last.digest]
    assert site.session


def test_blobs_that_nothing_names_are_cleared_away_when_a_server_begins(kits: Path, tmp_path: Path) -> None:
    blobs = tmp_path / "state" / "blobs" / "job"
    with a_world(kits, tmp_path) as world:
        blob = world.person().submit("job", tmp_path, job_config(1, HERE))
    (blobs / ("a" * 64)).write_bytes(b"put, but never committed")
    with a_world(kits, tmp_path) as world:
        world.person().state("job")
        assert [path.name for path in blobs.iterdir()] == [blob.digest]
        world.site("plant-a")
        world.person().wait("job", "finished")


def test_a_job_aborted_while_it_starts_does_not_start(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    starting, aborted = Event(), Event()
    real = Queries.certificates

    def slow(self: Queries) -> dict[str, bytes]:
        starting.set()
        aborted.wait(60)
        return real(self)

    monkeypatch.setattr(Queries, "certificates", slow)
    site = world.site("plant-a")
    person = world.submit(job_config(1, HERE))
    assert starting.wait(60)
    assert person.link.call(AbortJob(job="job")).note == "aborted"
    aborted.set()
    eventually(lambda: of(StopJob, site))
    person.submit("next", world.folder, job_config(1, HERE))
    person.wait("next", "finished")
    assert {order.job for order in of(AssignTask, site)} == {"next"}
    assert [order.first_client for order in of(DeployJob, site) if order.job == "job"] == [None]
    assert person.state("job").status == "aborted"
