"""Jobs from submission to result, through the public surface: one server, scripted sites, a runner without learning."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from papers import audit_problems, kit_of
from serving import Person, World, a_world, eventually, job_config, of, undisturbed

from winnow.deploy.trust.audit_log_file import AUDIT_FILE, FileAuditStore
from winnow.deploy.wire.errors import RequestRefusedError
from winnow.deploy.wire.messages import (
    AbortJob,
    AssignTask,
    DeployJob,
    FetchBlob,
    FollowLog,
    GetJobResult,
    ListSites,
    Resources,
    Settle,
    StopJob,
    SubmitJob,
)


@pytest.fixture
def world(kits: Path, tmp_path: Path) -> Iterator[World]:
    with a_world(kits, tmp_path) as world:
        yield world


def test_a_job_runs_over_its_sites_and_leaves_its_result(world: World) -> None:
    a, b = world.site("plant-a"), world.site("plant-b")
    person = world.submit(job_config(3, "sites = ['plant-a', 'plant-b']"))
    state = person.wait("job", "finished", "failed")
    assert (state.status, state.round, state.rounds, state.sites) == ("finished", 3, 3, ["plant-a", "plant-b"])
    assert state.metrics["server"] == {"round": 3.0}

    result = person.link.call(GetJobResult(job="job"))
    expected = undisturbed(3, {"plant-a": 2, "plant-b": 2})
    for blob in (result.checkpoint, result.output["model.txt"]):
        assert b"".join(person.link.fetch(FetchBlob(job="job", blob=blob))).decode() == expected
    assert (
        b"".join(person.link.fetch(FetchBlob(job="job", blob=result.events)))
        == b'{"round":1}\n{"round":2}\n{"round":3}\n'
    )
    lines = list(person.link.follow(FollowLog(job="job")))
    assert [line.number for line in lines] == list(range(len(lines)))
    assert [line.text for line in lines if line.kind == "event"] == ['{"round":1}', '{"round":2}', '{"round":3}']

    assert [deploy.first_client for deploy in of(DeployJob, b)] == [None, 2]
    assert [each.site for each in of(DeployJob, b)[-1].peer_sites] == ["plant-a", "plant-b"]
    assert [settle.round for settle in of(Settle, a)] == [1, 2, 3]
    tasks = [assign.task.id for assign in of(AssignTask, a)]
    assert [list(settle.tasks) for settle in of(Settle, a)] == [[task] for task in tasks]
    eventually(lambda: of(StopJob, a) and of(StopJob, b))


def test_a_job_waits_for_its_sites_and_says_for_which(world: World) -> None:
    world.site("plant-a")
    world.site("plant-b", names=("something-else",))
    person = world.submit(job_config(1, "sites = ['plant-a', 'plant-b', 'plant-c']\nmin_sites = 2"))
    wanted = ("1 of 2 can participate", "plant-b has no data called turbine", "plant-c is not connected")
    eventually(lambda: all(part in person.state("job").reason for part in wanted))
    assert person.state("job").status == "queued"
    world.site("plant-c")
    assert person.wait("job", "finished").sites == ["plant-a", "plant-c"]


def test_a_refusal_is_shown_with_its_reason(world: World) -> None:
    world.site("plant-a", refuses="our policy has no rule for the-lead")
    person = world.submit(job_config(1))
    eventually(lambda: "plant-a rejected the job: our policy has no rule for the-lead" in person.state("job").reason)
    assert person.state("job").status == "queued"


def test_resources_are_not_promised_twice_and_priority_counts(world: World) -> None:
    person = world.submit(job_config(2, "sites = ['plant-a']\ncpus = 1.0", "pause = 0.2"), "first")
    site = world.site("plant-a", resources=Resources(cpus=1.0, memory_mb=4096))
    person.wait("first", "running", "finished")
    person.submit("low", world.folder, job_config(1, "sites = ['plant-a']\ncpus = 1.0"))
    person.submit("high", world.folder, job_config(1, "sites = ['plant-a']\ncpus = 1.0\npriority = 5"))
    eventually(lambda: "has too few free resources" in person.state("low").reason)
    for job in ("first", "high", "low"):
        person.wait(job, "finished")
    begun = list(dict.fromkeys(order.job for order in of(AssignTask, site)))
    assert begun == ["first", "high", "low"]


def test_many_jobs_run_at_once(world: World) -> None:
    world.site("plant-a")
    world.site("plant-b")
    person = world.person()
    for number in range(3):
        person.submit(f"job-{number}", world.folder, job_config(3, "cpus = 1.0", "pause = 0.3"))
    eventually(lambda: all(person.state(f"job-{number}").status == "running" for number in range(3)))
    for number in range(3):
        person.wait(f"job-{number}", "finished")


def test_an_aborted_job_ends_at_once_and_stays_ended(world: World) -> None:
    site = world.site("plant-a", answers=False)
    person = world.submit(job_config(3, "sites = ['plant-a']"))
    eventually(lambda: of(AssignTask, site))
    assert person.link.call(AbortJob(job="job", reason="a mistake")).note == "aborted"
    assert (person.state("job").status, person.state("job").reason) == ("aborted", "the-lead: a mistake")
    eventually(lambda: of(StopJob, site))
    assert person.link.call(AbortJob(job="job")).note == "the job had already ended"


@pytest.mark.parametrize(
    ("fake", "reason"),
    [
        ("give_up_at = 2", "it makes no sense"),
        ("skip = 1", "tried to commit round 2 after round 0"),
    ],
)
def test_a_job_that_gives_up_fails_with_its_reason(world: World, fake: str, reason: str) -> None:
    world.site("plant-a")
    person = world.submit(job_config(3, fake=fake))
    state = person.wait("job", "failed")
    assert reason in state.reason


def test_a_runner_that_dies_starts_again_from_the_last_round(world: World, tmp_path: Path) -> None:
    world.site("plant-a")
    person = world.submit(job_config(3, fake=f"die_once_at = 3\nmark = '{tmp_path / 'mark'}'"))
    assert person.wait("job", "finished", "failed").status == "finished"
    said = [line.text for line in person.link.follow(FollowLog(job="job")) if line.text.startswith("begins")]
    assert said == ["begins after round 0", "begins after round 2"]
    result = person.link.call(GetJobResult(job="job"))
    assert b"".join(person.link.fetch(FetchBlob(job="job", blob=result.checkpoint))).decode() == undisturbed(
        3, {"plant-a": 2}
    )


def test_a_runner_that_always_dies_fails_its_job(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("winnow.deploy.server.running_job.RESTART_DELAY", 0.05)
    world.site("plant-a")
    person = world.submit(job_config(3, fake="die_at = 2"))
    reason = person.wait("job", "failed").reason
    assert reason.startswith("4 attempts in a row completed no round; the last one: the job's process ended; ")
    assert person.state("job").round == 1


def test_a_site_that_comes_back_gets_everything_outstanding_again(world: World) -> None:
    other = world.site("plant-b")
    site = world.site("plant-a", answers=False)
    person = world.submit(job_config(2, "sites = ['plant-a', 'plant-b']"))
    eventually(lambda: of(AssignTask, site) and of(AssignTask, other))
    site.stop()
    eventually(lambda: not _connected(person)["plant-a"])
    again = world.site("plant-a", jobs={"job", "long-forgotten"})
    assert person.wait("job", "finished").round == 2
    assert of(AssignTask, again)[0] == of(AssignTask, site)[0]
    assert of(DeployJob, again)[0].first_client == 0
    assert "long-forgotten" in {stop.job for stop in of(StopJob, again)}


def _connected(person: Person) -> dict[str, bool]:
    return {site.site: site.connected for site in person.link.call(ListSites()).sites}


def test_submitting_twice_changes_nothing_and_names_are_taken_once(world: World) -> None:
    world.site("plant-a")
    person = world.person()
    blob = person.submit("job", world.folder, job_config(1))
    person.wait("job", "finished")
    assert person.link.call(SubmitJob(job="job", bundle=blob)).note == "already submitted"
    assert person.state("job").status == "finished"
    with pytest.raises(RequestRefusedError, match="a different job is already called job"):
        world.person("the-admin").submit("job", world.folder, job_config(2))


def test_all_that_was_done_is_in_an_unbroken_audit(world: World) -> None:
    world.site("plant-a")
    world.submit(job_config(1)).wait("job", "finished")
    store = FileAuditStore(world.kits / "kits" / "server-1" / AUDIT_FILE)
    assert audit_problems(store, kit_of(world.kits, "server-1").authority) == []
    text = b"\n".join(store.lines())
    for what in (b'"submit"', b'"jobs"', b'"job ended"'):
        assert what in text


def test_old_checkpoints_are_cleared_away(world: World) -> None:
    world.site("plant-a")
    world.submit(job_config(5)).wait("job", "finished")
    blobs = world.folder / "state" / "blobs" / "job"
    kept: Callable[[], int] = lambda: len(list(blobs.iterdir()))  # noqa: E731
    eventually(lambda: kept() == 2)  # the bundle, and the last checkpoint, which is the output too
    eventually(lambda: not list((world.folder / "state" / "jobs" / "job").glob("*/")))
