"""A site's agent and its worker answer a question for a server that would like to learn more than its answer."""

import json
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from siting import Script, World, agent_at, deploy, serving, task

from waiting import eventually
from winnow.analytics.agreement import Statement, encode_statements
from winnow.analytics.question import read_question
from winnow.analytics.stats.statistics_question import StatisticsQuestion
from winnow.core import ConfigError
from winnow.deploy.client.submit_question import question_config
from winnow.deploy.jobs.bundle_format import Bundle, read_bundle, write_bundle
from winnow.deploy.sandbox.child_entry_point import OUTPUT_FILTER_MODULE, WORKER_MODULE
from winnow.deploy.server.job_spec import read_job_spec
from winnow.deploy.site.agent import STATE_FILE, Agent
from winnow.deploy.site.state_store import SiteStateStore
from winnow.deploy.wire.messages import (
    AssignTask,
    ClientResult,
    DataDescription,
    DeployResult,
    PeerSite,
    StopJob,
    SubmitResult,
)
from winnow.deploy.wire.safetensors_files import StoredArrays
from winnow.deploy.wire.task_digest import with_task_id

SITE = """
[resources]
memory_mb = 4000
cpus = 1
[tables.turbines]
file = "secret-place/rows.csv"
[tables.turbines.columns]
flow = { level = "protected", bounds = [0, 100] }
"""
RULE = """
[[queries]]
people = ["the-lead"]
tables = ["turbines"]
allow = ["statistics", "per-owner"]
noise = { epsilon = 2.0 }
"""
QUESTION = StatisticsQuestion(table="turbines", epsilon=1.5)
LYING_WORKER = """
import sys
from winnow.deploy.jobs.ipc_messages import AssignClientNumbers, JobReady, PrepareJob, RunTask, StopWorker, TaskResult
from winnow.deploy.jobs.ipc_messages import ToWorker
from winnow.deploy.jobs.parent_channel import StopRequestedError, open_parent_channel
from winnow.deploy.wire.messages import ClientResult, DataDescription

parent = open_parent_channel(int(sys.argv[1]), ToWorker, ends=StopWorker)
prepare = parent.receive(PrepareJob)
parent.send(JobReady(data=DataDescription(sizes=[1])))
try:
    while True:
        run = parent.receive(RunTask)
        told = ClientResult(job=prepare.job, task=run.task.id, client=run.task.clients[0], metrics={"rows": 1234.0})
        parent.send(TaskResult(result=told))
except StopRequestedError:
    pass
"""


class Asking:
    """A scripted server that puts a question to one owner, alone: it computes without letters."""

    def __init__(self, folder: Path, policy: str = RULE) -> None:
        self.world = World(folder / "project", policy=policy, site=SITE)
        rows = "\n".join(["flow", *(str(7 * number % 100) for number in range(60))])
        (self.world.kit_folder / "secret-place" / "rows.csv").write_text(rows + "\n")
        self.script = Script(folder / "server")
        self._joined = self._given = 0

    def bundle(self, question: StatisticsQuestion = QUESTION, author: str = "the-lead", *, job: Any = None) -> bytes:
        return self.world.bundle(question_config(question, job or {}), author)

    def deploy(self, bundle: bytes, *, first: int = 0, anew: bool = False, **changes: Any) -> DeployResult:
        kit = self.world.kit()
        own = PeerSite(site=kit.name, first_client=first, client_count=1, certificate=kit.certificate_pem)
        order = deploy(self.script, bundle, first_client=first, peer_sites=[own], **changes)
        self.script.tell(*[StopJob(job="job-1")] * anew, order)
        self._joined += 1
        joined: DeployResult = self.script.wait(DeployResult, self._joined)
        return joined

    def ask(self, name: str, settings: Any = None, client: int = 0, round: int = 1) -> ClientResult:
        wire = msgspec.structs.replace(
            task(name, clients=(client,), round=round).task, settings=json.dumps(settings).encode()
        )
        self.script.tell(AssignTask(job="job-1", task=with_task_id(wire)))
        self._given += 1
        given: SubmitResult = self.script.wait(SubmitResult, self._given)
        return given.result

    def terms(self) -> str:
        told = self.ask("analysis-begin")
        return self.part(told, "terms", "json").decode()

    def step(self, attempt: str, statements: list[Statement], round: int = 1) -> ClientResult:
        settings = {"attempt": attempt, "exchange": 0, "statements": encode_statements(statements)}
        return self.ask("analysis-step", settings, round=round)

    def part(self, result: ClientResult, part: str, name: str) -> bytes:
        assert result.blob is not None, result
        with StoredArrays(self.script.spool.path(result.blob)) as stored:
            return np.asarray(stored.parts()[part][name]).tobytes()

    def opened(self, result: ClientResult) -> bytes:
        return self.part(result, "opened", "values")

    def spent(self) -> float:
        state = SiteStateStore(self.world.kit_folder / "state" / STATE_FILE)
        try:
            return state.budgets.spent("the-lead", "turbines")
        finally:
            state.close()

    @contextmanager
    def running(self, worker: str = WORKER_MODULE) -> Iterator[Agent]:
        with (
            serving(self.world, self.script, "grpc://localhost:0") as server,
            agent_at(self.world, server.url, worker, OUTPUT_FILTER_MODULE) as agent,
        ):
            yield agent


@pytest.fixture
def server(tmp_path: Path) -> Asking:
    return Asking(tmp_path)


def alone(terms: str) -> list[Statement]:
    return [Statement(client=0, owner="plant-a", terms=terms)]


def test_one_noise_and_one_booking_however_often_a_step_is_asked_for(server: Asking) -> None:
    """Another attempt, the job deployed anew, its worker killed, its agent restarted: the same bytes leave."""
    bundle = server.bundle()
    with server.running():
        joined = server.deploy(bundle)
        assert joined.data == DataDescription(sizes=[1]), "not even how many rows there are"
        assert server.spent() == 0.0
        terms = server.terms()
        assert server.spent() == 0.0, "terms cost nothing"
        first = server.opened(server.step("one", alone(terms)))
        cost = server.spent()
        assert cost > 0
        seen = [server.opened(server.step("two", alone(terms)))]
        for pid in _workers(server.world.job_folder):
            os.kill(pid, signal.SIGKILL)
        seen.append(server.opened(server.step("three", alone(terms))))
        assert server.deploy(bundle, anew=True).accepted
        seen.append(server.opened(server.step("four", alone(terms))))
        changed = server.step("five", alone(terms.replace('"minimum":10', '"minimum":1')))
        assert changed.failure == "the server's list of terms has not those of this owner"
        invented = [*alone(terms), Statement(client=1, owner="plant-b", terms=terms)]
        refused = server.step("six", invented).failure
        assert refused == "client 1 belongs to no site of this job with a valid certificate"
        renamed = server.step("six and a half", [Statement(client=0, owner="plant-b", terms=terms)]).failure
        assert renamed == "the server calls client 0 plant-b; it is another site"
        late = server.step("seven", alone(terms), round=2)
        assert late.failure == "the server asks for step 2; this owner's next one is 1"
    server.script.sessions, server.script.outstanding, server.script.orders = 0, [], []
    with server.running():
        assert server.deploy(bundle).accepted
        seen.append(server.opened(server.step("eight", alone(terms))))
        assert {*seen} == {first}
        assert server.spent() == cost
        renumbered = server.deploy(bundle, first=3, anew=True)
        assert renumbered.reason.startswith(
            "the server numbers this site's clients from 3, but this job started with 0"
        )
        other = server.deploy(server.bundle(), job="job-2")
        assert other.reason == "ε 1.5 is too much: 1.29 of 2 is left for the-lead at plant-a"
    assert server.spent() == cost


@pytest.mark.slow(part="deploy")
def test_the_process_that_is_kept_ready_answers_as_a_new_one_does(server: Asking) -> None:
    bundle = server.bundle()
    with server.running() as agent:
        eventually(lambda: agent._context.warm_worker.ready)
        assert server.deploy(bundle).accepted
        assert not agent._context.warm_worker.ready
        first = server.opened(server.step("one", alone(server.terms())))
        assert server.deploy(bundle, anew=True).accepted, "by a new process: the next one is not loaded yet"
        assert server.opened(server.step("two", alone(server.terms()))) == first


@pytest.mark.parametrize("job", [{"sites": ["plant-a", "plant-b"]}, {"min_sites": 2}])
def test_a_server_cannot_leave_out_whom_the_author_wants_to_take_part(server: Asking, job: dict[str, Any]) -> None:
    """Two of three owners would be left, and the server compute as the third party: with one it learns the other's."""
    with server.running():
        assert server.deploy(server.bundle(job=job)).accepted
        left_out = server.step("one", alone(server.terms()))
        assert left_out.failure == "the server lists 1 of the 2 parties that the question's author wants"
    assert server.spent() == 0.0


def _workers(folder: Path) -> list[int]:
    """Processes that work in a job's folder."""
    found = []
    for each in Path("/proc").iterdir():
        try:
            if each.name.isdecimal() and (each / "cwd").resolve().is_relative_to(folder.resolve()):
                found.append(int(each.name))
        except OSError:
            continue
    assert found
    return found


def test_what_the_author_did_not_sign_is_not_answered(server: Asking) -> None:
    plain = read_bundle(server.bundle())
    louder = msgspec.structs.replace(plain, config=plain.config.replace("epsilon = 1.5", "epsilon = 1.9"))
    with server.running():
        reasons = [
            server.deploy(write_bundle(louder)).reason,
            server.deploy(server.bundle(), submitter="the-admin").reason,
            server.deploy(server.bundle(author="the-admin"), submitter="the-admin").reason,
            server.deploy(server.bundle(StatisticsQuestion(table="turbines"))).reason,
            server.deploy(server.bundle(QUESTION.model_copy(update={"correlation": True}))).reason,
            server.deploy(server.bundle(QUESTION.model_copy(update={"table": "towers"}))).reason,
        ]
        assert "signature" in reasons[0]
        assert reasons[1].startswith("the job was submitted by the-admin but signed by ")
        assert reasons[2].endswith(" may not ask questions here")
        assert reasons[3] == "questions about table 'turbines' are answered with noise only here; add --epsilon"
        assert reasons[4].endswith(" may not ask table 'turbines' for correlation here")
        assert reasons[5].endswith(" may not ask about table 'towers' here")
    assert server.spent() == 0.0


@pytest.mark.parametrize(
    ("change", "files", "says"),
    [
        (('kind = "statistics"', 'kind = "statistic"'), {}, "[job] kind = 'statistic' is unknown; did you mean"),
        (("", ""), {"own.py": "1"}, "a job of kind 'statistics' has no code of its own; this bundle contains"),
        (("[question]", "[queston]"), {}, "the job is of kind 'statistics', and has no [question] section"),
        (('[data]\nname = "turbines"', '[data]\nname = "gears"'), {}, "[question] table and [data] name differ"),
        (("epsilon = 1.5", "epsilon = 1.5\nplan = 3"), {}, "[question]: "),
        (("epsilon = 1.5", "epsilon = -1.5"), {}, "[question]: epsilon = -1.5: must be above 0"),
        (("epsilon = 1.5", ""), {}, "[question]: delta belongs to noise; add epsilon, or leave it out"),
    ],
)
def test_a_bundle_that_is_no_question_is_one_line(
    server: Asking, change: tuple[str, str], files: dict[str, str], says: str
) -> None:
    config = question_config(QUESTION, {}).replace(*change)
    bundle = msgspec.msgpack.encode(Bundle(config=config, files=dict.fromkeys(files, b"")))
    with pytest.raises(ConfigError) as error:
        _read(bundle)
    assert str(error.value).startswith(says)
    assert "\n" not in str(error.value)


def _read(bundle: bytes) -> None:
    """As a server does, and then a site."""
    job = read_bundle(bundle)
    read_job_spec(job)
    read_question(job.question or {})


def test_nothing_leaves_a_worker_that_has_not_booked(server: Asking, tmp_path: Path) -> None:
    worker = tmp_path / "lying.py"
    worker.write_text(LYING_WORKER)
    with server.running(str(worker)):
        assert server.deploy(server.bundle()).accepted
        told = server.ask("analysis-step", {})
        assert (told.blob, told.metrics) == (None, {})
        assert told.failure == "the job's process returned a step of an answer before it was booked; nothing leaves"
    assert server.spent() == 0.0


def test_a_site_without_a_rule_refuses_and_one_that_ends_its_rule_stops_answering(tmp_path: Path) -> None:
    server = Asking(tmp_path, policy="")
    with server.running():
        assert server.deploy(server.bundle()).reason.endswith(" may not ask questions here")
        server.world.allow(RULE)
        assert server.deploy(server.bundle(), anew=True).accepted
        terms = server.terms()
        server.world.allow("")
        refused = server.step("one", alone(terms))
        assert str(refused.failure).endswith(" may not ask questions here")
    assert server.spent() == 0.0
