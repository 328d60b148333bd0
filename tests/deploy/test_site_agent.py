"""The agent: it takes part in jobs, answers once, keeps what is settled, and comes back by itself."""

import threading
import time
from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import msgspec
import pytest
from papers import audit_problems
from siting import CONFIG, SITE, Script, World, agent_at, deploy, serving, settle, task, wait_for

from waiting import PATIENCE
from winnow.deploy.site import hosted_job
from winnow.deploy.site.job_setup import JobSetup
from winnow.deploy.site.state_store import SiteStateStore, StateStoreError
from winnow.deploy.trust.audit_log_file import FileAuditStore
from winnow.deploy.wire.errors import RequestRefusedError
from winnow.deploy.wire.messages import (
    CancelTasks,
    ControlAgent,
    DeployResult,
    Hello,
    Poll,
    Resources,
    StopJob,
    SubmitResult,
)

NUMBERS = count()


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path / "project")


@pytest.fixture(params=["memory", "grpc"])
def server(request: pytest.FixtureRequest, world: World, script: Script) -> Iterator[Any]:
    url = f"memory://site-{next(NUMBERS)}" if request.param == "memory" else "grpc://127.0.0.1:0"
    with serving(world, script, url) as running:
        yield running


@pytest.fixture
def near(world: World, script: Script) -> Iterator[Any]:
    """In memory only, where the transport is not the point."""
    with serving(world, script, f"memory://site-{next(NUMBERS)}") as running:
        yield running


def test_a_job_from_its_deployment_to_its_end(world: World, script: Script, server: Any) -> None:
    part = script.hold(b"a model")
    first, second = task(clients=(0, 1), parts={"model": part}), task(clients=(0, 1), round=2)
    bundle = world.bundle()
    with agent_at(world, server.url):
        script.tell(deploy(script, bundle))
        joined = script.wait(DeployResult)
        assert joined.accepted
        assert joined.data.sizes == [2, 2]
        script.tell(deploy(script, bundle, first_client=0), first)
        given = [script.wait(SubmitResult, number) for number in (1, 2)]
        assert [script.payload(each)["parts"] for each in given] == [{"model": "a model"}] * 2
        script.tell(settle(first, clients=(0,)), second)
        later = [script.wait(SubmitResult, number) for number in (3, 4)]
        assert [script.payload(each)["kept"] for each in later] == [[1], []]
        assert [path.read_bytes() for path in world.job_folder.glob("parts/*")] == [bundle]
        script.tell(StopJob(job="job-1", reason="finished"))
        wait_for(lambda: not world.job_folder.exists(), "end of the job's files")
    hello = script.all_of(Hello)[0]
    assert hello.data == ["turbines"]
    assert hello.certificate == world.kit().certificate_pem
    store = FileAuditStore(world.kit_folder / "audit.jsonl")
    assert audit_problems(store, world.kit().authority) == []
    assert [b"job accepted" in line or b"job stopped" in line for line in store.lines()].count(True) == 2


def test_nothing_of_where_the_data_are_leaves_the_site(world: World, script: Script, server: Any) -> None:
    with agent_at(world, server.url):
        script.tell(deploy(script, world.bundle()), task("talk"), task())
        failed, given = script.wait(SubmitResult, 1).result, script.wait(SubmitResult, 2)
        assert failed.failure.startswith("no such column in")
        assert given.result.failure is None
        script.tell(deploy(script, world.bundle('[data]\nname = "turbines"\n[cannot]\n'), job="job-2"))
        assert "flow" in script.wait(DeployResult, 2).reason
    sent = b"".join(script.raw)
    assert b"no such column" in sent
    assert b"reading" not in sent, "a worker's log lines stay at the site"
    for secret in ("secret-place", "rows.csv", str(world.kit_folder), str(world.folder)):
        assert secret.encode() not in sent


def test_a_task_delivered_twice_has_the_answer_already_made(world: World, script: Script, near: Any) -> None:
    assigned = task()
    script.tell(deploy(script, world.bundle()), assigned, assigned)
    with agent_at(world, near.url):
        first, second = script.wait(SubmitResult, 1).result, script.wait(SubmitResult, 2).result
        assert first == second
    with agent_at(world, near.url):
        assert script.wait(SubmitResult, 4).result == first
    other = task(settings="volatile")
    script.outstanding.append(other)
    with agent_at(world, near.url):
        script.wait(SubmitResult, 7)
        script.tell(other)
        volatile = [script.wait(SubmitResult, number).result for number in (7, 8)]
        assert volatile[0].task == other.task.id
        assert volatile[0] == volatile[1]
    before = len(script.all_of(SubmitResult))
    with agent_at(world, near.url):
        again = script.wait(SubmitResult, before + 3).result
        assert again.task == other.task.id
        assert again.blob != volatile[0].blob


def test_an_agent_knows_what_was_settled_before_it_was_killed(world: World, script: Script, near: Any) -> None:
    first = task()
    script.tell(deploy(script, world.bundle()), first)
    with agent_at(world, near.url):
        script.wait(SubmitResult)
        script.orders.append(settle(first))
        state = SiteStateStore(world.kit_folder / "state" / "site.sqlite")
        wait_for(lambda: 0 in state.client_state_files("job-1"), "settled state")
        state.close()
    script.outstanding.remove(first)
    script.outstanding.append(task(round=2))
    with agent_at(world, near.url):
        assert script.payload(script.wait(SubmitResult, 2))["kept"] == [1]
    assert script.all_of(Hello)[1].jobs == ["job-1"]


def test_what_was_proposed_for_a_reply_that_was_not_folded_is_forgotten(
    world: World, script: Script, near: Any
) -> None:
    folded, straggler, after = task(clients=(0,)), task(clients=(1,)), task(clients=(0, 1), round=2)
    with agent_at(world, near.url):
        script.tell(deploy(script, world.bundle()), folded, straggler)
        script.wait(SubmitResult, 2)
        script.tell(settle(folded), settle(straggler, clients=()), after)
        kept = [script.payload(script.wait(SubmitResult, number))["kept"] for number in (3, 4)]
        assert kept == [[1], []]
        wait_for(lambda: len(list((world.job_folder / "kept").iterdir())) == 3, "files swept")


def test_a_task_that_goes_on_over_the_end_of_a_round_is_settled_later(world: World, script: Script, near: Any) -> None:
    folded, slow, after = task(clients=(0,)), task(clients=(1,)), task(clients=(1,), round=3)
    with agent_at(world, near.url):
        script.tell(deploy(script, world.bundle()), folded, slow)
        script.wait(SubmitResult, 2)
        script.tell(settle(folded), settle(slow), after)
        assert script.payload(script.wait(SubmitResult, 3))["kept"] == [1]


def test_clients_of_a_task_that_goes_on_are_settled_one_by_one(world: World, script: Script, near: Any) -> None:
    both, after = task(clients=(0, 1)), task(clients=(0, 1), round=2)
    with agent_at(world, near.url):
        script.tell(deploy(script, world.bundle()), both)
        script.wait(SubmitResult, 2)
        script.tell(settle(both, clients=(0,), over=False), settle(both, clients=(1,), round=2), after)
        kept = [script.payload(script.wait(SubmitResult, number))["kept"] for number in (3, 4)]
        assert kept == [[1], [1]]


def test_what_a_later_round_had_a_client_keep_stays(world: World, script: Script, near: Any) -> None:
    """Rounds are settled again when a server takes over; a slow answer may have been made between."""
    first, second, after = task(round=1), task(round=2), task(round=3)
    with agent_at(world, near.url):
        script.tell(deploy(script, world.bundle()), first, second)
        script.wait(SubmitResult, 2)
        script.tell(settle(second), settle(first), after)
        assert script.payload(script.wait(SubmitResult, 3))["kept"] == [2]
        wait_for(lambda: len(list((world.job_folder / "kept").iterdir())) == 2, "files swept")


def test_a_task_that_is_asked_for_again_after_it_was_cancelled_is_done(world: World, script: Script, near: Any) -> None:
    running, waiting = task("slow", settings=1.0), task(round=2)
    with agent_at(world, near.url):
        script.tell(deploy(script, world.bundle()))
        script.wait(DeployResult)
        script.tell(running, waiting, CancelTasks(job="job-1", tasks=[running.task.id, waiting.task.id]), waiting)
        assert script.wait(SubmitResult).result.task == waiting.task.id
        script.tell(running)
        assert script.wait(SubmitResult, 3).result.task == running.task.id


def test_an_answer_that_comes_after_its_task_was_over_is_not_kept(world: World, script: Script, near: Any) -> None:
    late, cancelled, last = task("slow", settings=2.0), task("slow", settings=1.5), task(round=3)
    state = SiteStateStore(world.kit_folder / "state" / "site.sqlite")
    with agent_at(world, near.url):
        script.tell(deploy(script, world.bundle()))
        script.wait(DeployResult)
        for each in (late, cancelled):
            script.tell(each)
            time.sleep(0.2)
            over = settle(each, clients=())
            script.tell(over if each is late else CancelTasks(job="job-1", tasks=[each.task.id]))
        script.tell(last)
        assert script.wait(SubmitResult).result.task == last.task.id
        assert state.results("job-1", late.task.id) == {}
        assert state.results("job-1", cancelled.task.id) == {}
    state.close()


def test_a_job_waits_for_the_last_of_its_name(
    world: World, script: Script, near: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaving, told, left = hosted_job.HostedJob._clean_up, threading.Event(), list[str]()

    def slow(self: Any) -> None:
        told.wait(PATIENCE)
        leaving(self)
        left.append(self.job)

    monkeypatch.setattr(hosted_job.HostedJob, "_clean_up", slow)
    with agent_at(world, near.url):
        script.tell(deploy(script, world.bundle()))
        script.wait(DeployResult)
        for _ in range(2):
            script.tell(StopJob(job="job-1"), deploy(script, world.bundle()))
        script.tell(task())
        told.set()
        assert script.wait(SubmitResult).result.failure is None
        assert left == ["job-1"] * 2, "both earlier jobs deleted what was theirs"
        assert (world.job_folder / "work" / "count").exists()


def test_a_site_that_could_not_take_part_may_do_so_later(
    world: World, script: Script, near: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    saving, failing = SiteStateStore.save_job, iter([False, True])

    def save_job(self: SiteStateStore, order: Any) -> None:
        if next(failing, False):
            raise StateStoreError("disk I/O error")
        saving(self, order)

    monkeypatch.setattr(SiteStateStore, "save_job", save_job)
    bundle = world.bundle()
    with agent_at(world, near.url):
        for number, accepted in enumerate([True, False, True], 1):
            script.tell(deploy(script, bundle))
            assert script.wait(DeployResult, number).accepted is accepted
        script.tell(task())
        assert script.wait(SubmitResult).result.failure is None


def test_a_bug_in_the_agent_is_reported_as_a_deploy_result(
    world: World, script: Script, near: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    preparing, failing = JobSetup.prepare, iter([True])

    def prepare(self: JobSetup, order: Any) -> Any:
        prepared = preparing(self, order)
        if next(failing, False):
            raise ZeroDivisionError("a bug")
        return prepared

    monkeypatch.setattr(JobSetup, "prepare", prepare)
    with agent_at(world, near.url):
        script.tell(deploy(script, world.bundle()))
        refused = script.wait(DeployResult)
        assert (refused.accepted, refused.reason) == (False, "the site's agent failed; see the site's log")
        script.tell(deploy(script, world.bundle(), job="job-2", resources=Resources(cpus=2, memory_mb=500)))
        assert script.wait(DeployResult, 2).accepted, "nothing is left of the first job's resources"


def test_a_job_that_stops_after_a_restart_leaves_its_results(tmp_path: Path, script: Script) -> None:
    """The new agent has not been asked to deploy it again, so it has not verified its author."""
    world = World(tmp_path / "project", site='results = "found"\n' + SITE)
    leave = "import os; os.mkdir(folder + '/results'); open(folder + '/results/a', 'w').close()"
    with serving(world, script, "memory://results") as server:
        with agent_at(world, server.url):
            script.tell(deploy(script, world.bundle()), task("attempt", settings={"leave": leave}))
            assert script.wait(SubmitResult).result.metrics == {"leave": 1.0}
        script.outstanding.clear()
        with agent_at(world, server.url):
            script.wait(Hello, 2)
            script.tell(StopJob(job="job-1"))
            wait_for(lambda: not world.job_folder.exists(), "end of the job's files")
    assert [path.name for path in (world.kit_folder / "found" / "job-1").iterdir()] == ["a"]


def test_a_task_is_what_its_name_says(world: World, script: Script, near: Any) -> None:
    honest = task()
    altered = msgspec.structs.replace(honest.task, settings=b'"other"')
    with agent_at(world, near.url):
        script.tell(deploy(script, world.bundle()), msgspec.structs.replace(honest, task=altered), honest)
        assert "does not match its content" in script.wait(SubmitResult, 1).result.failure
        assert script.wait(SubmitResult, 2).result.failure is None


def test_a_process_that_dies_is_started_again_once(world: World, script: Script, near: Any) -> None:
    with agent_at(world, near.url):
        script.tell(
            deploy(script, world.bundle(), first_client=7), task("die", settings=1), task("die", settings=9, round=2)
        )
        assert script.payload(script.wait(SubmitResult, 1))["first"] == 7
        failed = script.wait(SubmitResult, 2).result
        assert failed.failure == "the job's process was ended by SIGKILL"
        script.tell(task("nonsense"), task(round=3))
        assert "an invalid message" in script.wait(SubmitResult, 3).result.failure
        assert script.wait(SubmitResult, 4).result.failure is None


def test_a_cancelled_task_is_not_begun_or_not_told(world: World, script: Script, near: Any) -> None:
    running, waiting, last = task("slow", settings=1.0), task(), task(round=2)
    with agent_at(world, near.url):
        script.tell(deploy(script, world.bundle()))
        script.wait(DeployResult)
        script.tell(running, waiting, CancelTasks(job="job-1", tasks=[running.task.id, waiting.task.id]), last)
        assert script.wait(SubmitResult).result.task == last.task.id


def test_a_job_that_is_stopped_while_it_works_goes_at_once(world: World, script: Script, near: Any) -> None:
    with agent_at(world, near.url):
        script.tell(deploy(script, world.bundle()), task("slow", settings=60.0))
        script.wait(DeployResult)
        script.tell(StopJob(job="job-1"), deploy(script, world.bundle()), task())
        assert script.wait(SubmitResult).result.failure is None
        assert script.payload(script.wait(SubmitResult))["count"] == 1


def test_a_site_comes_back_after_the_server_has_gone(world: World, script: Script, near: Any) -> None:
    script.tell(deploy(script, world.bundle()), task())
    with agent_at(world, near.url):
        given = script.wait(SubmitResult)
        near.faults.disconnected = True
        script.sessions += 1  # as a server that was started anew: it knows no session
        near.faults.disconnected = False
        assert script.wait(SubmitResult, 2).result == given.result
        assert len(script.all_of(Hello)) == 2


def test_an_answer_that_was_not_delivered_is_given_in_a_new_session(world: World, script: Script, near: Any) -> None:
    fail = iter([True, True])

    def refuse(request: Any) -> None:
        if isinstance(request, SubmitResult) and next(fail, False):
            raise RequestRefusedError("not now", retry=True)

    script.refuse = refuse
    script.tell(deploy(script, world.bundle()), task())
    near.faults.drop_after = None
    with agent_at(world, near.url):
        wait_for(lambda: len(script.all_of(SubmitResult)) >= 3, "answers")
        assert script.payload(script.all_of(SubmitResult)[-1])["count"] == 1


def test_a_version_that_is_not_spoken_is_said_in_a_line(
    world: World, script: Script, near: Any, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(request: Any) -> None:
        if isinstance(request, Hello):
            raise RequestRefusedError("site plant-a speaks protocol 2; this server speaks 3: update Winnow at the site")

    script.refuse = refuse
    with caplog.at_level("WARNING"), agent_at(world, near.url):
        script.wait(Hello, 2)
    told = "site plant-a speaks protocol 2; this server speaks 3: update Winnow at the site; reconnecting"
    assert told in caplog.messages


@pytest.mark.parametrize("allowed", [False, True])
def test_it_is_controlled_from_afar_only_where_the_policy_lets_it(
    world: World, script: Script, near: Any, allowed: bool
) -> None:
    world.allow("remote_control = true\n" if allowed else "")
    with agent_at(world, near.url) as agent:
        script.tell(ControlAgent(restart=True))
        if allowed:
            wait_for(lambda: agent.restart, "restart")
        else:
            script.wait(Hello)
            audit = world.kit_folder / "audit.jsonl"
            wait_for(lambda: audit.read_text().count("remote request to restart") == 1, "rejection")
            assert not agent.restart


def test_a_task_of_an_unknown_job_is_answered_with_a_failure(world: World, script: Script, near: Any) -> None:
    with agent_at(world, near.url):
        script.tell(task(clients=(3,)), CancelTasks(job="job-9", tasks=[]), settle(task()), StopJob(job="job-9"))
        assert script.wait(SubmitResult).result.failure == "this site does not know job job-1"
        assert script.wait(SubmitResult).result.client == 3


def test_messages_are_sealed_for_the_addressee(world: World, script: Script, near: Any) -> None:
    from winnow.deploy.site.peer_encryption import PeerMessageCipher

    neighbours = world.neighbours()
    there = PeerMessageCipher(world.kit("plant-b"), "job-1", neighbours)
    sent = task("messages", clients=(0,), settings={"1": "to my neighbour", "3": "far away"})
    with agent_at(world, near.url):
        script.tell(deploy(script, world.bundle(), first_client=0, peer_sites=neighbours), sent)
        messages = script.wait(SubmitResult).result.peer_messages
        assert b"far away" not in b"".join(messages.values())
        arrived = msgspec.structs.replace(sent.task, clients=[3], peer_messages={3: {0: messages[3]}})
        assert there.decrypt(arrived) == {3: {0: b"far away"}}
        reply = there.encrypt(sent.task, 3, {0: b"and back"})
        wrong = there.encrypt(sent.task, 2, {0: b"from another"})
        script.tell(
            task("messages", peer_messages={0: {3: reply[0]}}), task("messages", peer_messages={0: {3: wrong[0]}})
        )
        assert script.payload(script.wait(SubmitResult, 2)) == {"3": "and back"}
        assert "sealed message" in script.wait(SubmitResult, 3).result.failure
    assert b"far away" not in b"".join(script.raw)


def test_no_message_goes_to_a_site_that_the_author_did_not_name(world: World, script: Script, near: Any) -> None:
    bundle = world.bundle(CONFIG + '[job]\nsites = ["plant-a"]\n')
    with agent_at(world, near.url):
        script.tell(deploy(script, bundle, first_client=0, peer_sites=world.neighbours()))
        script.tell(task("messages", settings={"3": "far away"}))
        assert "client 3 belongs to no known site of job job-1" in script.wait(SubmitResult).result.failure


def test_polls_say_what_is_free(world: World, script: Script, near: Any) -> None:
    polls = []
    script.refuse = lambda request: polls.append(request.free) if isinstance(request, Poll) else None
    with agent_at(world, near.url):
        script.tell(deploy(script, world.bundle()))
        script.wait(DeployResult)
        wait_for(lambda: polls[-1].cpus == 1 and polls[-1].memory_mb == 1500, "room taken")
        script.tell(deploy(script, world.bundle(), job="job-2", resources=polls[0]))
        refused = script.wait(DeployResult, 2)
        assert refused.reason == "the job asks for 2 CPUs; this site has 1 free now"
        script.tell(StopJob(job="job-1"))
        wait_for(lambda: polls[-1] == polls[0], "room given back")
