"""Averaging among peers when processes die amid a round: it costs that round at most."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
from killing import job_processes
from test_secure_deployed import DEADLINES, SETS, SITES, answers

from waiting import eventually
from winnow.core import Rejected, RoundFinished
from winnow.deploy.client.bundle import describe_job
from winnow.deploy.client.local_federation import LocalFederation, local_federation, start_process
from winnow.deploy.client.unsigned_requests import SubmittedJob
from winnow.runs import RunFolder

pytestmark = pytest.mark.slow(part="kills")

ROUNDS = 6
EVERYBODY, GONE = {*range(8)}, {6, 7}
PEERS = (
    *SETS,
    *DEADLINES,
    "quality.evidence=[]",
    "collect={name='peers', average_to_server=true}",
    "aggregate={name='partial', weights='size'}",
)
VICTIM = "site-4"


@pytest.fixture
def federation(tmp_path: Path) -> Iterator[LocalFederation]:
    with local_federation(describe_job("demo", sets=SETS, seed=5), SITES, tmp_path / "federation") as running:
        yield running


def submitted(federation: LocalFederation) -> SubmittedJob:
    job = federation.connection.submit(
        "demo", sets=list(PEERS), min_sites=SITES, seed=5, rounds=ROUNDS, algorithm="fedavg"
    )
    eventually(lambda: answers(federation, VICTIM, job.name) >= 2, "a client of the site has trained")
    return job


def rounds_of(job: SubmittedJob, folder: Path) -> tuple[list[set[int]], list[Rejected]]:
    """Who keeps the average of each round, and who was left out."""
    assert job.wait(400).status == "finished"
    log = RunFolder.open(job.download(folder / "run")).log
    finished = [{*event.aggregated} for event in log if isinstance(event, RoundFinished)]
    assert len(finished) == ROUNDS
    return finished, [event for event in log if isinstance(event, Rejected)]


def test_peers_go_on_without_a_site_that_was_killed(federation: LocalFederation, tmp_path: Path) -> None:
    job = submitted(federation)
    os.killpg(federation.processes[VICTIM].pid, signal.SIGKILL)
    finished, refused = rounds_of(job, tmp_path)
    assert all(kept in (EVERYBODY, EVERYBODY - GONE, set()) for kept in finished), finished
    assert sum(kept == set() for kept in finished) <= 1, finished
    assert finished[-1] == EVERYBODY - GONE
    assert {event.client for event in refused} >= GONE


def test_a_site_that_was_killed_comes_back_to_the_others_average(federation: LocalFederation, tmp_path: Path) -> None:
    job = submitted(federation)
    os.killpg(federation.processes[VICTIM].pid, signal.SIGKILL)
    federation.processes[VICTIM].wait()
    federation.processes[VICTIM] = start_process(federation.folder, VICTIM)
    finished, _ = rounds_of(job, tmp_path)
    assert finished[-1] == EVERYBODY
    assert sum(kept != EVERYBODY for kept in finished) <= 3, finished


def test_a_runner_that_was_killed_amid_a_round_costs_no_other(federation: LocalFederation, tmp_path: Path) -> None:
    job = submitted(federation)
    runners = job_processes(federation.kit("server"), federation.processes["server"].pid)
    assert runners
    for runner in runners:
        os.kill(runner, signal.SIGKILL)
    finished, _ = rounds_of(job, tmp_path)
    assert finished[-1] == EVERYBODY
    assert sum(kept != EVERYBODY for kept in finished) <= 1, finished
