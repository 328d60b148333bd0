"""Processes of a federation that are killed while a question with noise is answered, and the answer that must come."""

import hmac
import os
import signal
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from table_world import TableWorld

from winnow.analytics.program import Compare, Sum, local_vector, noise_share, opened_length, thresholds_of
from winnow.analytics.question import Question
from winnow.deploy.client.connection import Connection
from winnow.deploy.jobs.bundle_format import read_bundle
from winnow.deploy.jobs.client_statement_signatures import submission_id
from winnow.deploy.site.noise_secret import noise_seed
from winnow.deploy.wire.resumable_blob_files import BlobFolder
from winnow.learn.secure_randomness import secure_generator


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


def job_processes(kit: Path, agent: int) -> list[int]:
    """Those that work for the agent or the server of a kit, whoever forked them."""
    return [pid for pid in processes_in(kit.resolve()) if pid != agent]


def strike(world: TableWorld, what: str, rng: np.random.Generator) -> None:
    """Kill a site's worker, its agent, the runner, or the server; who would be missed is started again."""
    site = world.sites[rng.integers(len(world.sites))]
    if what in ("worker", "runner"):
        party = site if what == "worker" else "server"
        for pid in job_processes(world.kit(party), world.processes[party].pid):
            os.kill(pid, signal.SIGKILL)
        return
    name = site if what == "agent" else "server"
    world.kill(name)
    world.start(name)


def noisy_answer(world: TableWorld, question: Question, submission: str) -> Any:
    """Worked out from the secrets of the sites, which no party but a test has together."""
    terms = world.terms(question, noise_needed=True, noise_delta=1e-6)
    tables = [world.table(site) for site in terms.owners]
    seeds = [noise_seed(world.kit(site) / "state", submission) for site in terms.owners]
    program, owners, number = question.program(terms), len(tables), 1
    try:
        step = next(program)
        while True:
            assert isinstance(step, Sum | Compare)
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


def jobs_begun(connection: Connection) -> int:
    """How many jobs run, or have run."""
    return sum(job.status not in ("queued", "starting") for job in connection.jobs())
