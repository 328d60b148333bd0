"""Which sites participate in a running job: silent, refusing and revoked ones are excluded, reported and readmitted."""

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from threading import Event
from unittest.mock import Mock

import pytest
from papers import a_project
from serving import (
    SITES,
    Person,
    ScriptedSite,
    World,
    a_world,
    answer_of,
    eventually,
    federation,
    job_config,
    of,
    undisturbed,
)

from winnow.config.job_settings import JobSettings
from winnow.deploy.server.database_writes import LeaderWrites
from winnow.deploy.server.job_membership import JobMembership
from winnow.deploy.server.site_hub import SiteHub
from winnow.deploy.server.site_instruction_delivery import SiteSession
from winnow.deploy.server.site_job_state import Participation
from winnow.deploy.trust.peer_identity import utc_now
from winnow.deploy.trust.provisioning import open_provisioner
from winnow.deploy.wire.errors import RequestRefusedError
from winnow.deploy.wire.messages import (
    AbsentSite,
    AssignTask,
    Blob,
    DataDescription,
    DeployJob,
    DeployResult,
    FetchBlob,
    FollowLog,
    GetJobResult,
    GetStatus,
    ListSites,
    PutBlob,
    Resources,
    SiteList,
    SubmitResult,
)

QUICK = "site_timeout = 5.0"
MANY = 100_000
"""Rounds: such a job runs until the test ends."""
BOTH = "sites = ['plant-a', 'plant-b']"
LONG = 60.0


@pytest.fixture(autouse=True)
def _asked_again_soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("winnow.deploy.server.job_membership.FIRST_RETRY", 0.2)


@pytest.fixture
def fall_silent(monkeypatch: pytest.MonkeyPatch) -> Callable[[ScriptedSite], None]:
    """Stop a site. When the server next looks, the last contact is 10 s longer ago."""
    silent, real = set[str](), SiteHub.sweep

    def sweep(self: SiteHub) -> None:
        for name in silent & self.sites.keys():
            self.sites[name].last_seen -= 10.0
            silent.discard(name)
        real(self)

    def stop(site: ScriptedSite) -> None:
        site.stop()
        silent.add(site.kit.name)

    monkeypatch.setattr(SiteHub, "sweep", sweep)
    return stop


@pytest.fixture
def world(kits: Path, tmp_path: Path) -> Iterator[World]:
    with a_world(kits, tmp_path, join=LONG) as world:
        yield world


def checkpoint(person: Person) -> str:
    result = person.link.call(GetJobResult(job="job"))
    return b"".join(person.link.fetch(FetchBlob(job="job", blob=result.checkpoint))).decode()


def last_round(person: Person) -> str:
    return checkpoint(person).splitlines()[-1]


def said(person: Person) -> list[str]:
    return [line.text for line in person.link.follow(FollowLog(job="job", wait=False)) if line.kind != "event"]


def out(person: Person) -> dict[str, AbsentSite]:
    return {each.site: each for each in person.state("job").absent_sites}


def submitted(world: World, config: str) -> Person:
    """Once all sites are connected: the job then begins with all of them."""
    eventually(lambda: all(site.session for site in world.made))
    return world.submit(config)


def asked(*sites: ScriptedSite) -> None:
    eventually(lambda: all(of(AssignTask, site) for site in sites))


def test_a_site_that_dies_is_left_out_and_taken_back_when_it_returns(
    world: World, fall_silent: Callable[[ScriptedSite], None]
) -> None:
    world.site("plant-a")
    site = world.site("plant-b", answers=False)
    person = submitted(world, job_config(MANY, f"{BOTH}\nmin_sites = 1\n{QUICK}", "pause = 0.1"))
    asked(site)
    begun = time.time()
    fall_silent(site)
    eventually(lambda: person.state("job").round >= 2)
    absence = out(person)["plant-b"]
    assert absence.reason == "no contact for 5 s; it rejoins when it reconnects"
    assert begun <= absence.since <= time.time()
    assert "plant-b has been excluded since 20" in person.state("job").reason
    [notice] = person.link.call(GetStatus()).notices
    assert notice.startswith("job job: plant-b has been excluded since 20")
    world.site("plant-b")
    eventually(lambda: "plant-b/2@" in last_round(person))
    assert (person.state("job").absent_sites, person.state("job").sites) == ([], ["plant-a", "plant-b"])
    assert checkpoint(person).splitlines()[0].count("failed: site plant-b has been excluded since 20") == 2
    lines = said(person)
    assert [line for line in lines if "plant-b" in line][-2:] == [
        "site plant-b is excluded: no contact for 5 s; it rejoins when it reconnects",
        "site plant-b rejoined the job",
    ]
    assert person.link.call(GetStatus()).notices == []


def test_a_site_that_works_for_long_and_polls_is_waited_for(world: World) -> None:
    world.site("plant-a")
    site = world.site("plant-b", answers=False)
    person = submitted(world, job_config(1, f"{BOTH}\nmin_sites = 1\n{QUICK}"))
    asked(site)
    heard = last_contact(person, "plant-b")
    eventually(lambda: last_contact(person, "plant-b") > heard)
    reason = person.state("job").reason
    assert reason.startswith("waiting for replies from plant-b since 20")
    assert reason.endswith("UTC (for as long as they keep contact)")
    [order] = of(AssignTask, site)
    for client in order.task.clients:
        site.give("job", order.task.id, client, answer_of("plant-b", client, 1))
    person.wait("job", "finished")
    assert checkpoint(person) == undisturbed(1, {"plant-a": 2, "plant-b": 2})


def last_contact(person: Person, site: str) -> float:
    listed = person.link.call(ListSites())
    assert isinstance(listed, SiteList)
    [seen] = [each.last_seen for each in listed.sites if each.site == site]
    assert seen is not None
    return seen


def test_only_a_site_that_keeps_no_contact_is_excluded() -> None:
    deploy = DeployJob(job="job", bundle=Blob(digest="0" * 64, size=1), submitter="the-lead", resources=Resources())
    session = SiteSession(site="plant-a", last_seen=0.0, participations={"job": Participation(deploy=deploy)})
    settings = JobSettings(site_timeout=5.0)
    membership = JobMembership("job", {"plant-a": session}, ["plant-a"], Mock(), Mock(), settings)
    for now in (4.0, 8.0, 12.0):
        membership.sweep(now)
        assert membership.exclusions() == []
        session.mark_seen(now)
    membership.sweep(17.0)
    assert membership.exclusions() == []
    membership.sweep(17.1)
    assert [each.site for each in membership.exclusions()] == ["plant-a"]


def test_with_fewer_than_min_sites_the_job_waits_and_says_so(
    world: World, fall_silent: Callable[[ScriptedSite], None]
) -> None:
    world.site("plant-a")
    site = world.site("plant-b", answers=False)
    person = submitted(world, job_config(3, f"{BOTH}\nmin_sites = 2\n{QUICK}"))
    asked(site)
    fall_silent(site)
    waits = "the job is waiting for sites: 1 participates, 2 needed (min_sites)"
    eventually(lambda: waits in said(person))
    assert person.state("job").reason.startswith(f"{waits}; plant-b has been excluded since 20")
    world.site("plant-b")
    person.wait("job", "finished")
    assert checkpoint(person) == undisturbed(3, {"plant-a": 2, "plant-b": 2})
    assert said(person).count(waits) == 1
    assert "the job continues" in said(person)


def test_a_site_that_cannot_rejoin_at_first_is_asked_again(world: World) -> None:
    world.site("plant-a")
    site = world.site("plant-b", answers=False)
    person = submitted(world, job_config(MANY, f"{BOTH}\nmin_sites = 1", "pause = 0.1"))
    asked(site)
    site.stop()
    again = world.site("plant-b", refuses="No space left on device")
    eventually(lambda: len(of(DeployJob, again)) >= 3)
    assert out(person)["plant-b"].reason == "No space left on device; it will be asked again"
    assert len([line for line in said(person) if "No space left" in line]) == 1
    again.refuses = ""
    eventually(lambda: "plant-b/2@" in last_round(person))
    assert not out(person)


@pytest.mark.parametrize(
    ("reason", "told"), [("No space left on device", "No space left on device"), (" ", "it rejected the job")]
)
def test_a_site_that_refuses_while_the_job_begins_is_left_out(
    world: World, monkeypatch: pytest.MonkeyPatch, reason: str, told: str
) -> None:
    """Its refusal is still being written down when the job begins with it: it keeps its part in a job that runs."""
    accepted_before, refusing, running = Event(), Event(), Event()
    real = LeaderWrites.record_join

    def slow(
        self: LeaderWrites, job: str, site: str, *, accepted: bool, reason: str, data: DataDescription | None
    ) -> None:
        if site == "plant-a":
            refusing.wait(LONG)
        elif not accepted:
            refusing.set()
            running.wait(LONG)
        real(self, job, site, accepted=accepted, reason=reason, data=data)
        if site == "plant-b":
            accepted_before.set()

    monkeypatch.setattr(LeaderWrites, "record_join", slow)
    world.site("plant-a")
    site = world.site("plant-b")
    person = submitted(world, job_config(MANY, f"{BOTH}\nmin_sites = 1", "pause = 0.1"))
    assert accepted_before.wait(LONG)
    site.obey = lambda order: None  # type: ignore[method-assign]
    refusal = DeployResult(session=site.session, job="job", accepted=False, reason=reason)
    with ThreadPoolExecutor() as pool:
        said = pool.submit(site.link.call, refusal, timeout=LONG)
        eventually(lambda: person.state("job").round >= 1)
        running.set()
        said.result(LONG)
    begun = person.state("job").round
    eventually(lambda: person.state("job").round >= begun + 2)
    assert out(person)["plant-b"].reason == told


def test_a_site_that_describes_other_data_than_at_the_start_is_left_out(world: World) -> None:
    world.site("plant-b")
    site = world.site("plant-a", answers=False)
    person = submitted(world, job_config(1, f"{BOTH}\nmin_sites = 1"))
    asked(site)
    site.stop()
    world.site("plant-a", data=DataDescription(sizes=[1]))
    person.wait("job", "finished")
    assert checkpoint(person).count("its data have changed since the job started") == 2


def test_intervals_between_offers_grow(world: World) -> None:
    world.site("plant-a", answers=False)
    site = world.site("plant-b", answers=False)
    person = submitted(world, job_config(1, f"{BOTH}\nmin_sites = 1"))
    asked(site)
    site.stop()
    again = world.site("plant-b", refuses="not now")
    begun = time.monotonic()
    eventually(lambda: len(of(DeployJob, again)) >= 4)
    assert time.monotonic() - begun > 0.2 + 0.4 + 0.8
    assert out(person)


def test_a_round_that_began_without_a_site_starts_again_rather_than_with_too_few(
    world: World, fall_silent: Callable[[ScriptedSite], None]
) -> None:
    """b is excluded from the round, then c falls silent and b returns: two sites are there, but one has the round."""
    a, b, c = (world.site(name, answers=False) for name in SITES)
    sites = "sites = ['plant-a', 'plant-b', 'plant-c']"
    person = submitted(world, job_config(1, f"{sites}\nmin_sites = 2\n{QUICK}"))
    asked(a, b, c)
    fall_silent(b)
    eventually(lambda: "plant-b" in out(person))
    fall_silent(c)
    eventually(lambda: "plant-c" in out(person))
    a.answers = True
    world.site("plant-b")
    person.wait("job", "finished")
    assert "enough sites are back; the job restarts from the beginning" in said(person)
    [first] = checkpoint(person).splitlines()
    assert "plant-a/0@1 plant-a/1@1 plant-b/2@1 plant-b/3@1 failed: site plant-c has been excluded" in first


def test_who_is_left_out_and_since_when_outlives_the_server(
    kits: Path, tmp_path: Path, fall_silent: Callable[[ScriptedSite], None]
) -> None:
    config = job_config(MANY, f"{BOTH}\nmin_sites = 1\n{QUICK}", "pause = 0.1")
    with a_world(kits, tmp_path, join=LONG) as world:
        world.site("plant-a")
        site = world.site("plant-b", answers=False)
        person = submitted(world, config)
        asked(site)
        fall_silent(site)
        eventually(lambda: person.state("job").round >= 2)
        before = out(person)["plant-b"]
    with a_world(kits, tmp_path, join=LONG) as world:
        world.site("plant-a")
        person = world.person()
        reached = person.state("job").round
        eventually(lambda: person.state("job").round > reached)
        assert out(person)["plant-b"] == before
        assert any("server-1 is the leader now; the job continues after round " in line for line in said(person))
        world.site("plant-b")
        eventually(lambda: not out(person))


def test_after_a_restart_a_site_counts_once_it_has_reconnected(
    kits: Path, tmp_path: Path, fall_silent: Callable[[ScriptedSite], None]
) -> None:
    config = job_config(MANY, f"sites = ['plant-a', 'plant-b', 'plant-c']\nmin_sites = 2\n{QUICK}", "pause = 0.1")
    with a_world(kits, tmp_path, join=LONG) as world:
        world.site("plant-a")
        world.site("plant-b")
        site = world.site("plant-c", answers=False)
        person = submitted(world, config)
        asked(site)
        fall_silent(site)
        eventually(lambda: person.state("job").round >= 2)
    with a_world(kits, tmp_path, join=LONG) as world:
        world.site("plant-a")
        person = world.person()
        shortage = (
            r"the job is waiting for sites: \d participates?, 2 needed \(min_sites\); not reconnected yet: .*plant-b"
        )
        eventually(lambda: any(re.fullmatch(shortage, line) for line in said(person)))
        reached = person.state("job").round
        world.site("plant-b")
        eventually(lambda: person.state("job").round > reached)


def test_a_site_timeout_below_five_seconds_is_refused(world: World) -> None:
    with pytest.raises(RequestRefusedError, match=r"^\[job\] site_timeout: .* greater than or equal to 5$"):
        world.submit(job_config(1, f"{BOTH}\nsite_timeout = 4.9"))


def revoked_sites(person: Person) -> list[str]:
    listed = person.link.call(ListSites())
    assert isinstance(listed, SiteList)
    return [each.site for each in listed.sites if each.revoked]


def revoke(kits: Path, name: str, *, renew: bool = False) -> None:
    sites = [{"name": site, "organisation": site.title()} for site in SITES]
    servers = [{"name": "server-1", "organisation": "Institute", "hosts": ["127.0.0.1"], "port": 8443}]
    with open_provisioner(kits, a_project(servers=servers, sites=sites), None, utc_now()) as workshop:
        list(workshop.renew(name) if renew else workshop.revoke(name))


def test_a_revoked_site_is_expelled_at_once_and_taken_back_with_a_renewed_kit(tmp_path: Path) -> None:
    kits = federation(tmp_path / "kits")
    (tmp_path / "server").mkdir()
    with a_world(kits, tmp_path / "server", join=LONG) as world:
        other = world.site("plant-a")
        site = world.site("plant-b", answers=False)
        person = submitted(world, job_config(MANY, f"{BOTH}\nmin_sites = 1\nsite_timeout = 1000.0", "pause = 0.1"))
        asked(site)
        [order] = of(AssignTask, site)
        revoke(kits, "plant-b")
        eventually(lambda: person.state("job").round >= 2)
        assert out(person)["plant-b"].reason.startswith("its certificate was revoked; ")
        assert revoked_sites(person) == ["plant-b"]
        for request in (
            SubmitResult(session=site.session, result=site.answer("job", order.task.id, 2, b"late")),
            site.hello(),
        ):
            with pytest.raises(RequestRefusedError, match="revoked"):
                site.link.call(request)
        site.stop()
        assert of(AssignTask, site) == [order]
        revoke(kits, "plant-b", renew=True)
        back = world.site("plant-b")
        eventually(lambda: "plant-b/2@" in last_round(person))
        assert revoked_sites(person) == []
        known = {each.site: each.certificate for each in of(DeployJob, other)[-1].peer_sites}
        assert known["plant-b"] == back.hello().certificate, "what it signs from now on counts"


def test_an_open_stream_of_a_site_ends_when_it_is_revoked(tmp_path: Path) -> None:
    kits = federation(tmp_path / "kits")
    (tmp_path / "server").mkdir()
    with a_world(kits, tmp_path / "server", join=LONG) as world:
        world.site("plant-a", answers=False)
        site = world.site("plant-b", answers=False)
        submitted(world, job_config(1, f"{BOTH}\nmin_sites = 1"))
        asked(site)
        [order] = of(AssignTask, site)
        content = bytes(1 << 10)
        blob = site.answer("job", order.task.id, 2, content * 64).blob
        assert blob is not None

        def slowly() -> Iterator[bytes]:
            for number in range(64):
                if number == 2:
                    revoke(kits, "plant-b")
                yield content

        with pytest.raises(RequestRefusedError, match="revoked"):
            site.link.put(PutBlob(job="job", blob=blob), slowly())


def test_a_site_that_was_revoked_while_it_was_away_is_told_apart_from_a_silent_one(tmp_path: Path) -> None:
    kits = federation(tmp_path / "kits")
    (tmp_path / "server").mkdir()
    with a_world(kits, tmp_path / "server", join=LONG) as world:
        world.site("plant-a")
        site = world.site("plant-b", answers=False)
        person = submitted(world, job_config(3, f"{BOTH}\nmin_sites = 1\nsite_timeout = 1000.0", "pause = 0.1"))
        asked(site)
        site.stop()
        revoke(kits, "plant-b")
    with a_world(kits, tmp_path / "server", join=LONG) as world:
        world.site("plant-a")
        person = world.person()
        person.wait("job", "finished")
        assert "certificate was revoked" in checkpoint(person)
