"""A site's state on the disk: it reads that of older versions, and what it cannot read is one line."""

import sqlite3
import subprocess
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import msgspec
import pytest
from siting import World

from winnow.deploy.site.agent import STATE_FILE
from winnow.deploy.site.state_database import SCHEMA, VERSION
from winnow.deploy.site.state_store import SiteStateStore, StateStoreError, StoredResult
from winnow.deploy.wire.messages import Blob, ClientResult, DeployJob, PeerSite, Resources, Settle

BLOB = {"digest": "b" * 64, "size": 7}
DEPLOY = {
    "type": "Deploy",
    "job": "job-1",
    "bundle": BLOB,
    "submitter": "the-lead",
    "organisation": "Institute",
    "role": "lead",
    "resources": {"cpus": 1.0, "memory_mb": 500, "gpus": 0},
    "clients_from": 4,
    "neighbours": [{"site": "plant-b", "clients_from": 2, "clients": 2, "certificate": b"pem"}],
}
ANSWER = {
    "type": "Answer",
    "job": "job-1",
    "task": "a" * 64,
    "client": 4,
    "metrics": {"loss": 0.5},
    "blob": BLOB,
    "letters": {7: b"sealed"},
}


def old_state(path: Path, answer: Any = ANSWER) -> Path:
    """As Winnow 0.1 wrote it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    database = sqlite3.connect(path)
    database.executescript(SCHEMA)
    database.execute("INSERT INTO jobs VALUES ('job-1', ?)", (msgspec.msgpack.encode(DEPLOY),))
    encoded = msgspec.msgpack.encode(answer)
    database.execute("INSERT INTO replies VALUES ('job-1', ?, 4, 3, ?, 'out', 'state', '')", ("a" * 64, encoded))
    database.execute("INSERT INTO departures VALUES ('submission', 0, 'update', 3, 1)")
    database.commit()
    database.close()
    return path


def test_the_jobs_of_an_older_version_go_on(tmp_path: Path) -> None:
    path = old_state(tmp_path / STATE_FILE)
    for _ in range(2):
        state = SiteStateStore(path)
        assert state.deployment("job-1") == DeployJob(
            job="job-1",
            bundle=Blob(**BLOB),
            submitter="the-lead",
            resources=Resources(cpus=1.0, memory_mb=500),
            first_client=4,
            peer_sites=[PeerSite(site="plant-b", first_client=2, client_count=2, certificate=b"pem")],
        )
        [result] = state.results("job-1", "a" * 64).values()
        assert result.result == ClientResult(
            job="job-1",
            task="a" * 64,
            client=4,
            metrics={"loss": 0.5},
            blob=Blob(**BLOB),
            peer_messages={7: b"sealed"},
        )
        assert (result.round, result.payload, result.new_client_state, result.worker_id) == (3, "out", "state", "")
        assert state.submissions.record_release("submission", 0, 3, "update") == 0, "it left before"
        state.close()


@pytest.mark.parametrize("answer", [[], {"type": "Answer", "never": "heard of"}])
def test_state_that_cannot_be_read_is_one_line(tmp_path: Path, answer: Any) -> None:
    path = old_state(tmp_path / STATE_FILE, answer)
    with (
        pytest.raises(StateStoreError, match=f"cannot use the site's state in {path}") as error,
        closing(SiteStateStore(path)) as state,
    ):
        state.results("job-1", "a" * 64)
    assert "\n" not in str(error.value)


def test_an_agent_does_not_start_with_state_of_a_newer_version(tmp_path: Path) -> None:
    world = World(tmp_path / "project")
    path = old_state(world.kit_folder / "state" / STATE_FILE)
    with sqlite3.connect(path) as database:
        database.execute(f"PRAGMA user_version = {VERSION + 1}")
    database.close()
    command = [sys.executable, "-m", "winnow.deploy.site", str(world.kit_folder)]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    last = ended.stderr.splitlines()[-1]
    assert (ended.returncode, last) == (
        2,
        f"winnow: error: a newer Winnow wrote the site's state in {path}; upgrade this site",
    )
    assert "Traceback" not in ended.stderr


def _stored(task: str, worker: str = "", **files: str) -> StoredResult:
    result = ClientResult(job="job-1", task=task, client=2, peer_messages={1: b"sealed"})
    return StoredResult(result=result, round=3, worker_id=worker, **files)


def test_results_that_nothing_could_use_after_a_kill_are_not_written_to_the_disk(tmp_path: Path) -> None:
    """A letter under keys of a process is kept in memory; what has a file, or may be sent later, is on the disk."""
    short, ended, with_state, lasting = "a" * 64, "b" * 64, "c" * 64, "d" * 64
    state = SiteStateStore(tmp_path / STATE_FILE)
    for stored in (
        _stored(short, "worker"),
        _stored(ended, "worker"),
        _stored(with_state, "worker", new_client_state="kept"),
        _stored(lasting),
    ):
        state.add_result(stored)
        assert state.results("job-1", stored.result.task) == {2: stored}
    state.settle(Settle(job="job-1", round=3, tasks={with_state: [2]}, ended_tasks=[ended]))
    assert state.results("job-1", short), "its task goes on"
    assert state.results("job-1", ended) == {}
    assert state.client_state_files("job-1") == {2: "kept"}
    state.close()
    restarted = SiteStateStore(tmp_path / STATE_FILE)
    assert restarted.results("job-1", short) == {}
    assert restarted.results("job-1", lasting) == {2: _stored(lasting)}
    assert restarted.client_state_files("job-1") == {2: "kept"}
    restarted.close()


@pytest.mark.parametrize("delete", ["job", "result"])
def test_results_in_memory_are_deleted_with_their_job_or_alone(tmp_path: Path, delete: str) -> None:
    state, stored = SiteStateStore(tmp_path / STATE_FILE), _stored("a" * 64, "worker")
    state.add_result(stored)
    state.delete_job("job-1") if delete == "job" else state.delete_result(stored)
    assert state.results("job-1", "a" * 64) == {}
    state.close()
