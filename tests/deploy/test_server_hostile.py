"""What peers must not do, did by mistake, or do out of malice: each is refused in one line, and the job goes on."""

import logging
import re
import time
import urllib.request
from collections.abc import Iterator
from hashlib import sha256
from pathlib import Path
from typing import Any

import msgspec
import pytest
from papers import a_project, kit_of
from serving import ScriptedSite, World, a_world, eventually, federation, job_config, of, signed

from winnow.deploy.client.free_port import free_port
from winnow.deploy.jobs.bundle_format import Bundle, write_bundle
from winnow.deploy.server.blob_store import FileBlobStore
from winnow.deploy.trust.audit_chain import AuditEntry
from winnow.deploy.trust.audit_log_file import AUDIT_FILE, FileAuditStore
from winnow.deploy.trust.peer_identity import utc_now
from winnow.deploy.trust.provisioning import open_provisioner
from winnow.deploy.trust.signing import DAY
from winnow.deploy.wire.atomic_files import blob_of
from winnow.deploy.wire.blob_transfer import upload_blob
from winnow.deploy.wire.errors import RequestRefusedError, StorageFullError
from winnow.deploy.wire.messages import (
    AbortJob,
    AssignTask,
    Blob,
    ClientResult,
    ControlSite,
    DeployResult,
    FetchBlob,
    FollowLog,
    GetJobResult,
    GetStatus,
    GetUploadedSize,
    ListJobs,
    ListSites,
    Poll,
    PutBlob,
    ReadAudit,
    Resources,
    SubmitJob,
    SubmitResult,
)

LIMITS = "[limits]\nbundle_mb = 1\nblob_mb = 1\ninbox_mb = 2\nlog_lines = 3\n"


@pytest.fixture
def world(kits: Path, tmp_path: Path) -> Iterator[World]:
    with a_world(kits, tmp_path, LIMITS) as world:
        yield world


@pytest.fixture
def asked(world: World) -> tuple[ScriptedSite, AssignTask]:
    """A site that was sent a task and has not answered yet."""
    site = world.site("plant-a", answers=False)
    world.submit(job_config(1, "sites = ['plant-a']"))
    return site, eventually(lambda: of(AssignTask, site))[0]


def audited(world: World) -> list[AuditEntry]:
    return [AuditEntry.parse(line) for line in FileAuditStore(world.kits / "kits" / "server-1" / AUDIT_FILE).lines()]


def finish(site: ScriptedSite, order: AssignTask) -> None:
    for client in order.task.clients:
        site.give("job", order.task.id, client, b"sound")


# Answers --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"task": "f" * 64}, "replied to a task that it was not sent"),
        ({"client": 77}, "replied for a client that the task does not include"),
        ({"job": "other"}, "does not participate in job other"),
        ({"blob": Blob(digest="e" * 64, size=3)}, "has not been uploaded"),
    ],
)
def test_an_answer_that_nobody_asked_for_is_refused(
    world: World, asked: tuple[ScriptedSite, AssignTask], changes: dict[str, Any], reason: str
) -> None:
    site, order = asked
    usual: dict[str, Any] = {"job": "job", "task": order.task.id, "client": order.task.clients[0]}
    with pytest.raises(RequestRefusedError, match=reason):
        site.link.call(SubmitResult(session=site.session, result=ClientResult(**{**usual, **changes})))
    if "task" in changes or "client" in changes:
        assert any(reason in entry.outcome and entry.who == "plant-a" for entry in audited(world))
    finish(site, order)
    assert world.person().wait("job", "finished").round == 1


def test_an_answer_given_twice_counts_once(world: World, asked: tuple[ScriptedSite, AssignTask]) -> None:
    site, order = asked
    first, second = order.task.clients
    site.give("job", order.task.id, first, b"one")
    assert site.give("job", order.task.id, first, b"one").note == "already received"
    with pytest.raises(RequestRefusedError, match="sent two different replies"):
        site.give("job", order.task.id, first, b"two")
    site.give("job", order.task.id, second, b"one")
    person = world.person()
    person.wait("job", "finished")
    checkpoint = person.link.call(GetJobResult(job="job")).checkpoint
    assert b"".join(person.link.fetch(FetchBlob(job="job", blob=checkpoint))) == b"1: one one\n"


def test_a_site_cannot_speak_for_another(world: World, asked: tuple[ScriptedSite, AssignTask]) -> None:
    site, order = asked
    other = world.site("plant-b")
    eventually(lambda: other.session)
    task, client = order.task.id, order.task.clients[0]
    with pytest.raises(RequestRefusedError, match="session has ended"):
        other.link.call(SubmitResult(session=site.session, result=ClientResult(job="job", task=task, client=client)))
    with pytest.raises(RequestRefusedError, match="does not participate in job"):
        other.link.call(SubmitResult(session=other.session, result=ClientResult(job="job", task=task, client=client)))
    with pytest.raises(RequestRefusedError, match="does not participate in job"):
        other.link.call(DeployResult(session=other.session, job="job", accepted=True))
    with pytest.raises(RequestRefusedError, match="does not participate in job"):
        b"".join(other.link.fetch(FetchBlob(job="job", blob=order.task.parts["model"])))
    finish(site, order)
    world.person().wait("job", "finished")


# Greetings ------------------------------------------------------------------------------------------------------------


def test_a_greeting_that_only_checks_opens_no_session(world: World, asked: tuple[ScriptedSite, AssignTask]) -> None:
    site, order = asked
    welcome = site.link.call(site.hello(check=True))
    with pytest.raises(RequestRefusedError, match="session has ended"):
        site.link.call(Poll(session=welcome.session, received=0, free=Resources()))
    finish(site, order)  # its own session goes on


def test_a_site_of_another_age_is_refused_clearly(world: World) -> None:
    site = world.site("plant-a")
    for theirs, said in (([1], "1"), ([7, 8], "7, 8")):
        older = "site" if theirs == [1] else "server"
        told = f"site plant-a speaks protocol {said}; this server speaks 2: update Winnow at the {older}"
        with pytest.raises(RequestRefusedError, match=told):
            site.link.call(site.hello(protocols=theirs))


def test_a_greeting_with_anothers_certificate_is_refused(world: World) -> None:
    site = world.site("plant-a")
    with pytest.raises(RequestRefusedError, match="not its own"):
        site.link.call(site.hello(certificate=kit_of(world.kits, "plant-b").certificate_pem))


def test_a_clock_that_is_wrong_is_noted_and_does_not_matter(world: World, caplog: pytest.LogCaptureFixture) -> None:
    site = world.site("plant-a")
    with caplog.at_level(logging.WARNING):
        site.link.call(site.hello(clock=time.time() + 3600))
    assert re.search(r"the clock of site plant-a differs by \+3(600|5[5-9]\d) s", caplog.text)


@pytest.mark.parametrize(
    "request_",
    [
        ListJobs(),
        GetStatus(),
        ListSites(),
        AbortJob(job="job"),
        ReadAudit(),
        SubmitJob(job="x", bundle=Blob(digest="0" * 64, size=1)),
    ],
)
def test_a_site_gives_no_commands(world: World, request_: Any) -> None:
    site = world.site("plant-a")
    world.submit(job_config(1, "sites = ['plant-c']"))
    with pytest.raises(RequestRefusedError, match="only persons may give commands"):
        site.link.call(request_)


def test_a_person_is_no_site(world: World) -> None:
    with pytest.raises(RequestRefusedError, match="is not a site"):
        world.person().link.call(Poll(session="x", received=0, free=Resources()))


# Blobs ----------------------------------------------------------------------------------------------------------------


def test_what_is_too_large_is_refused_before_it_is_sent(world: World, asked: tuple[ScriptedSite, AssignTask]) -> None:
    site, order = asked
    large = Blob(digest="a" * 64, size=2 << 20)
    with pytest.raises(RequestRefusedError, match="too large; the limit is 1 MB"):
        site.link.put(PutBlob(job="job", blob=large), iter([b"x"]))
    with pytest.raises(RequestRefusedError, match="too large"):
        world.person().link.call(GetUploadedSize(job="job", blob=large))
    finish(site, order)


def test_a_site_that_fills_its_inbox_is_told_so(world: World, asked: tuple[ScriptedSite, AssignTask]) -> None:
    site, _ = asked
    for number in range(2):
        content = bytes([number]) * (1 << 20)
        site.link.put(PutBlob(job="job", blob=named(content)), iter([content]))
    with pytest.raises(RequestRefusedError, match="cannot store"):
        site.link.put(PutBlob(job="job", blob=named(b"more")), iter([b"more"]))
    assert world.person().state("job").status == "running"


def test_a_blob_whose_digest_is_another_is_refused(asked: tuple[ScriptedSite, AssignTask]) -> None:
    site, _ = asked
    blob = Blob(digest="b" * 64, size=4)
    with pytest.raises(RequestRefusedError, match="damaged"):
        site.link.put(PutBlob(job="job", blob=blob), iter([b"evil"]))
    assert site.link.call(GetUploadedSize(job="job", blob=blob)).size == 0


def named(content: bytes) -> Blob:
    return Blob(digest=sha256(content).hexdigest(), size=len(content))


def test_only_what_a_task_needs_can_be_fetched(world: World, asked: tuple[ScriptedSite, AssignTask]) -> None:
    site, order = asked
    assert b"".join(site.link.fetch(FetchBlob(job="job", blob=order.task.parts["model"]))) == b"nothing"
    with pytest.raises(RequestRefusedError, match="needs blob"):
        b"".join(site.link.fetch(FetchBlob(job="job", blob=Blob(digest="c" * 64, size=1))))
    with pytest.raises(RequestRefusedError, match="has no blob"):
        b"".join(world.person().link.fetch(FetchBlob(job="job", blob=Blob(digest="c" * 64, size=1))))


@pytest.mark.parametrize(("times", "status"), [(2, "finished"), (99, "failed")])
def test_a_full_disk_hurts_no_other_job(world: World, monkeypatch: pytest.MonkeyPatch, times: int, status: str) -> None:
    """The job tries again from its last round; if the disk stays full it fails with that reason, and alone."""
    monkeypatch.setattr("winnow.deploy.server.running_job.RESTART_DELAY", 0.05)
    real, failures = FileBlobStore.put, []

    def put(self: FileBlobStore, job: str, path: Path) -> Blob:
        if job == "job" and path.name == "checkpoint-new" and len(failures) < times:
            failures.append(path)
            raise StorageFullError("cannot use the disk: No space left on device")
        return real(self, job, path)

    monkeypatch.setattr(FileBlobStore, "put", put)
    world.site("plant-a")
    person = world.submit(job_config(2))
    person.submit("other", world.folder, job_config(2))
    assert person.wait("job", "finished", "failed").status == status
    assert person.wait("other", "finished", "failed").status == "finished"
    assert any("No space left" in line.text for line in person.link.follow(FollowLog(job="job")))
    token = world.person().link.call(GetStatus()).lease_token
    assert token == 1, "the server went on leading"


# Submissions ----------------------------------------------------------------------------------------------------------


def put(world: World, bundle: bytes, person: str = "the-lead") -> SubmitJob:
    path = world.folder / "sent"
    path.write_bytes(bundle)
    blob = blob_of(path)
    upload_blob(world.person(person).link, "evil", path, blob)
    return SubmitJob(job="evil", bundle=blob)


def test_a_bundle_that_is_not_in_order_is_refused(world: World) -> None:
    kit = kit_of(world.kits, "the-lead")
    good = signed(kit, job_config(1))
    changed = Bundle(config=job_config(2), certificate=good.certificate, signature=good.signature)
    renewed = msgspec.structs.replace(signed(kit, job_config(1), ago=8 * DAY), issued=time.time())
    cases = {
        b"rubbish": "not a valid job bundle",
        write_bundle(Bundle(config=job_config(1))): "certificate",
        write_bundle(changed): "changed after signing",
        write_bundle(renewed): "changed after signing",
        write_bundle(signed(kit, job_config(1), ago=8 * DAY)): "signed 8 days ago; the limit is 7 days",
        write_bundle(signed(kit, job_config(1), ago=-3600)): "is in the future",
        msgspec.msgpack.encode(signed(kit, "this is no TOML")): "not valid TOML",
        write_bundle(signed(kit, "rounds = 1")): "names no data",
        write_bundle(signed(kit, job_config(1, "min_sites = 0"))): "min_sites",
        write_bundle(signed(kit, job_config(1, "surprise = 1"))): "surprise",
        write_bundle(signed(kit, job_config(1, "sites = ['a']\nmin_sites = 2"))): "sites lists only 1",
        write_bundle(signed(kit_of(world.kits, "plant-a"), job_config(1))): "by plant-a but submitted by the-lead",
        write_bundle(signed(kit_of(world.kits, "the-admin"), job_config(1))): "by the-admin but submitted by the-lead",
    }
    for content, reason in cases.items():
        request = put(world, content)
        with pytest.raises(RequestRefusedError, match=reason):
            world.person().link.call(request)
        assert any(reason in entry.outcome for entry in audited(world))
    assert world.person().link.call(ListJobs()).jobs == []


def test_a_bundle_that_never_arrived_is_asked_for(world: World) -> None:
    with pytest.raises(RequestRefusedError, match="has not been uploaded"):
        world.person().link.call(SubmitJob(job="job", bundle=Blob(digest="d" * 64, size=5)))


def test_who_lacks_the_right_is_refused_and_it_is_in_the_audit(world: World) -> None:
    world.site("plant-a")
    world.submit(job_config(1, "sites = ['plant-c']"))
    member = world.person("the-member")
    requests = [AbortJob(job="job"), GetJobResult(job="job"), ControlSite(site="plant-a", restart=True)]
    eventually(lambda: member.link.call(ListSites()).sites)
    for request in requests:
        with pytest.raises(RequestRefusedError, match="may not"):
            member.link.call(request)
    with pytest.raises(RequestRefusedError, match="may not submit"):
        member.submit("own", world.folder, job_config(1))
    refused = {
        entry.what for entry in audited(world) if entry.who == "the-member" and entry.outcome.startswith("rejected: ")
    }
    assert refused >= {"abort", "download", "control", "submit"}
    assert world.person().state("job").status == "queued"


def test_a_revoked_person_is_shut_out_while_the_server_runs(tmp_path: Path) -> None:
    kits = federation(tmp_path / "kits")
    with a_world(kits, tmp_path) as world:
        person = world.person("the-admin")
        person.link.call(GetStatus())
        sites = [{"name": name, "organisation": name.title()} for name in ("plant-a", "plant-b", "plant-c")]
        servers = [{"name": "server-1", "organisation": "Institute", "hosts": ["127.0.0.1"], "port": 8443}]
        project = a_project(servers=servers, sites=sites)
        with open_provisioner(kits, project, None, utc_now()) as workshop:
            list(workshop.revoke("the-admin"))
        with pytest.raises(RequestRefusedError, match="revoked"):
            person.link.call(GetStatus())


def test_prometheus_sees_what_goes_on(kits: Path, tmp_path: Path) -> None:
    port = free_port()
    with a_world(kits, tmp_path, f"metrics_address = '127.0.0.1:{port}'\n") as world:
        world.site("plant-a")
        world.submit(job_config(2)).wait("job", "finished")
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics") as page:
            text = page.read().decode()
    for line in ("winnow_leader 1.0", 'winnow_jobs{status="finished"} 1.0', "winnow_rounds_committed_total 2.0"):
        assert line in text
    assert "winnow_sites_connected 1.0" in text
