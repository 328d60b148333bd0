"""Questions with noise while processes are killed: one answer, one noise, one booking, whatever dies."""

import hmac
import os
import signal
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from table_world import NOISE_RULE, TableWorld, running

from waiting import eventually
from winnow.analytics.program import Sum, local_vector, noise_share, opened_length, thresholds_of
from winnow.analytics.stats.statistics_question import StatisticsQuestion
from winnow.deploy.client.connection import Connection, connect
from winnow.deploy.client.submit_question import DeployedAnswer
from winnow.deploy.jobs.bundle_format import read_bundle
from winnow.deploy.jobs.client_statement_signatures import submission_id
from winnow.deploy.site.agent import STATE_FILE
from winnow.deploy.site.noise_secret import noise_seed
from winnow.deploy.site.state_store import SiteStateStore
from winnow.deploy.wire.resumable_blob_files import BlobFolder
from winnow.learn.secure_randomness import secure_generator
from winnow.privacy.concentrated_privacy import rho_of

SITES = ("east", "north", "west")
EPSILON = 0.4
KILLS = 4
"""In each question."""


def processes_in(folder: Path) -> list[int]:
    """Those that work somewhere below a folder."""
    found = []
    for each in Path("/proc").iterdir():
        try:
            if each.name.isdecimal() and (each / "cwd").resolve().is_relative_to(folder):
                found.append(int(each.name))
        except OSError:
            continue
    return found


def strike(world: TableWorld, what: str, rng: np.random.Generator) -> None:
    """Kill a site's worker, its agent, the runner, or the server; who would be missed is started again."""
    site = SITES[rng.integers(len(SITES))]
    if what in ("worker", "runner"):
        party = site if what == "worker" else "server"
        for pid in processes_in(world.kit(party).resolve()):
            if pid != world.processes[party].pid:
                os.kill(pid, signal.SIGKILL)
        return
    name = site if what == "agent" else "server"
    world.kill(name)
    world.start(name)


def noisy_answer(world: TableWorld, question: StatisticsQuestion, submission: str) -> Any:
    """Worked out from the secrets of the sites, which no party but a test has together."""
    terms = world.terms(question, noise_needed=True, noise_delta=1e-6)
    tables = [world.table(site) for site in terms.owners]
    seeds = [noise_seed(world.kit(site) / "state", submission) for site in terms.owners]
    program, owners, number = question.program(terms), len(tables), 1
    try:
        step = next(program)
        while True:
            total = np.zeros(opened_length(step, owners), object)
            for owner, (table, seed) in enumerate(zip(tables, seeds, strict=True)):
                key = hmac.digest(seed, b"step" + number.to_bytes(4, "big"), "sha256")
                total += local_vector(step, table, owner, owners)
                total += noise_share(step, owners, secure_generator(key))
            opened = total if isinstance(step, Sum) else (total >= thresholds_of(step, owners)).astype(bool)
            step, number = program.send(opened), number + 1
    except StopIteration as ended:
        return ended.value


def submission_of(connection: Connection, job: str) -> str:
    with tempfile.TemporaryDirectory() as folder:
        path = connection.fetch(job, connection.result(job).bundle, BlobFolder(Path(folder)))
        return submission_id(read_bundle(path.read_bytes()))


def _running(connection: Connection) -> int:
    """How many jobs run, or have run."""
    return sum(job.status not in ("queued", "starting") for job in connection.jobs())


@pytest.mark.slow(part="chaos")
@pytest.mark.parametrize("what", ["worker", "agent", "runner", "server"])
def test_a_kill_shows_no_second_noise_and_frees_no_budget(tmp_path: Path, what: str) -> None:
    world, rng = TableWorld(tmp_path, SITES), np.random.default_rng(18)
    world.allow(NOISE_RULE)
    question = StatisticsQuestion(table="stays", by=("ward",), epsilon=EPSILON)
    with running(world) as connection, connect(world.kit("bo"), retry_seconds=60.0) as watching:
        for asked in range(1, 4):
            answers: list[DeployedAnswer] = []
            asking = threading.Thread(target=lambda into=answers: into.append(connection.ask(question, timeout=120)))
            asking.start()
            eventually(lambda asked=asked: _running(watching) == asked)
            for _ in range(KILLS):
                time.sleep(float(rng.uniform(0.1, 2.0)))
                if asking.is_alive():
                    strike(world, what, rng)
            asking.join(240)
            [answer] = answers
            assert answer.values == noisy_answer(world, question, submission_of(connection, answer.job))
            for site in SITES:
                state = SiteStateStore(world.kit(site) / "state" / STATE_FILE)
                assert state.budgets.spent("ana", "stays") == pytest.approx(asked * rho_of(EPSILON, 1e-6))
                state.close()
