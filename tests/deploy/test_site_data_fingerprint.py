"""A site's data are those with which a job started, or the site takes no part; nobody is told a digest of them."""

import logging
import os
import sqlite3
from collections.abc import Iterator
from contextlib import closing
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from siting import Script, World, agent_at, deploy, serving, task

from winnow.deploy.site.data_fingerprint import DataChangedError, DataFingerprint
from winnow.deploy.site.state_store import SiteStateStore, StateStoreError
from winnow.deploy.wire.messages import DeployResult, StopJob, SubmitResult

NUMBERS = count()
CHANGED = "the data changed since the job started"
BEFORE, RELABELLED, LONGER = "a,flow\n1,2\n3,4\n", "a,flow\n1,4\n3,2\n", "a,flow\n1,2\n3,4\n5,6\n"


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "project")


@pytest.fixture
def server(world: World, script: Script) -> Iterator[Any]:
    with serving(world, script, f"memory://fingerprint-{next(NUMBERS)}") as running:
        yield running


@pytest.fixture
def data(world: World) -> Path:
    return world.kit_folder / "secret-place" / "rows.csv"


@pytest.mark.parametrize("changed", [RELABELLED, LONGER])
def test_data_that_change_while_a_job_runs_end_its_part_until_they_are_restored(
    changed: str, world: World, script: Script, server: Any, data: Path, caplog: pytest.LogCaptureFixture
) -> None:
    order = deploy(script, world.bundle(), first_client=0)
    with agent_at(world, server.url), caplog.at_level(logging.WARNING):
        script.tell(order, task())
        assert script.wait(SubmitResult).result.failure is None
        data.write_text(changed)
        script.tell(task(round=2))
        refusal = script.wait(DeployResult, 2)
        assert not refusal.accepted
        assert refusal.reason.startswith(CHANGED)
        assert len(script.all_of(SubmitResult)) == 1, "the server decides what becomes of the task"
        script.tell(order, order)
        assert not script.wait(DeployResult, 4).accepted
        assert caplog.text.count(CHANGED) == 1
        data.write_text(BEFORE)
        script.tell(order, task(round=3))
        assert script.wait(DeployResult, 5).accepted
        assert script.wait(SubmitResult, 2).result.failure is None
    audit = (world.kit_folder / "audit.jsonl").read_text()
    assert audit.count("job rejected") == 1
    with closing(sqlite3.connect(world.kit_folder / "state" / "site.sqlite")) as state:
        [(digest,)] = state.execute("SELECT digest FROM data")
    assert not any(digest.encode() in raw or bytes.fromhex(digest) in raw for raw in script.raw)


@pytest.mark.parametrize("changed", [RELABELLED, LONGER])
def test_data_that_changed_while_the_agent_was_down_start_no_process(
    changed: str, world: World, script: Script, server: Any, data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with agent_at(world, server.url):
        script.tell(deploy(script, world.bundle(), first_client=0))
        assert script.wait(DeployResult).accepted
    data.write_text(changed)
    monkeypatch.setattr("winnow.deploy.site.process_spec.WorkerProcess", _must_not_start)
    with agent_at(world, server.url):
        assert script.wait(DeployResult, 2).reason.startswith(CHANGED)


def test_data_that_cannot_be_read_are_told_without_their_name(
    world: World, script: Script, server: Any, data: Path
) -> None:
    with agent_at(world, server.url):
        script.tell(deploy(script, world.bundle(), first_client=0))
        assert script.wait(DeployResult).accepted
        data.rename(data.with_name("elsewhere.csv"))
        script.tell(task())
        assert script.wait(DeployResult, 2).reason == "the data cannot be read; see the site's log"


def test_a_server_cannot_have_a_job_forgotten_and_run_with_other_data(
    world: World, script: Script, server: Any, data: Path
) -> None:
    order = deploy(script, world.bundle(), first_client=0)
    with agent_at(world, server.url):
        script.tell(order)
        assert script.wait(DeployResult).accepted
        data.write_text(RELABELLED)
        script.tell(StopJob(job="job-1"), order)
        assert script.wait(DeployResult, 2).reason.startswith(CHANGED)
        script.tell(deploy(script, world.bundle('[data]\nname = "turbines"\n[other]\n'), job="job-2"))
        assert script.wait(DeployResult, 3).accepted, "another submission starts with the data as they are"


def test_a_task_that_meets_a_full_disk_is_answered(
    world: World, script: Script, server: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with agent_at(world, server.url):
        script.tell(deploy(script, world.bundle(), first_client=0))
        assert script.wait(DeployResult).accepted
        with monkeypatch.context() as full:
            full.setattr(SiteStateStore, "results", _full)
            script.tell(task())
            assert "disk is full" in script.wait(SubmitResult).result.failure
        script.tell(task(round=2))
        assert script.wait(SubmitResult, 2).result.failure is None


def test_what_a_fingerprint_covers(tmp_path: Path) -> None:
    state, folder = SiteStateStore(tmp_path / "state"), tmp_path / "data"
    records = state.submissions
    (folder / "deep").mkdir(parents=True)
    (folder / "a").write_bytes(b"1")
    (folder / "deep" / "b").write_bytes(b"2")
    table = {"folder": str(folder), "classes": 2}
    DataFingerprint(records, "one", table).check()
    folder.rename(tmp_path / "moved")
    moved = {**table, "folder": str(tmp_path / "moved")}
    watch = DataFingerprint(records, "one", moved)
    watch.check()
    with pytest.raises(DataChangedError):
        DataFingerprint(records, "one", {**moved, "classes": 3}).check()
    file = tmp_path / "moved" / "a"
    before = file.stat()
    file.write_bytes(b"3")
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    with pytest.raises(DataChangedError):
        watch.check()
    file.write_bytes(b"1")
    watch.check()
    (tmp_path / "moved" / "c").touch()
    with pytest.raises(DataChangedError):
        watch.check()
    state.close()


def test_data_may_change_while_a_job_is_only_offered(tmp_path: Path) -> None:
    state, file = SiteStateStore(tmp_path / "state"), tmp_path / "rows.csv"
    records = state.submissions
    table = {"file": str(file)}
    file.write_bytes(b"1")
    offered = DataFingerprint(records, "one", table)
    offered.check(started=False)
    file.write_bytes(b"12")
    with pytest.raises(DataChangedError):  # its process has read other data than those
        offered.check()
    again = DataFingerprint(records, "one", table)
    again.check(started=False)
    again.check()
    file.write_bytes(b"123")
    with pytest.raises(DataChangedError):
        DataFingerprint(records, "one", table).check(started=False)
    state.close()


def _must_not_start(**_: object) -> None:
    raise AssertionError("a process was started")


def _full(*_: object) -> None:
    raise StateStoreError("database or disk is full")
