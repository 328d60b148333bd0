"""What a member can leave at a server does not grow: uploads that never end, and entries of the audit."""

import os
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
from papers import kit_of
from serving import Person, ServerProcess, World, a_world, eventually, federation, job_config

from waiting import PATIENCE
from winnow.deploy.client.free_port import free_port
from winnow.deploy.server import blob_transfers
from winnow.deploy.server.audit_throttle import MAX_ENTRIES, WINDOW_SECONDS, AuditThrottle
from winnow.deploy.server.blob_transfers import MAX_UPLOADS, UPLOAD_EXPIRY_SECONDS, BlobTransfers
from winnow.deploy.trust.audit_chain import AuditEntry
from winnow.deploy.trust.audit_log_file import AUDIT_FILE, FileAuditStore
from winnow.deploy.trust.peer_identity import Peer
from winnow.deploy.wire.errors import RequestRefusedError
from winnow.deploy.wire.messages import AbortJob, Blob, GetStatus, PutBlob, SubmitJob, UploadedSize


@pytest.fixture
def kits(tmp_path: Path) -> Path:
    return federation(tmp_path / "kits")


@pytest.fixture
def world(kits: Path, tmp_path: Path) -> Iterator[World]:
    with a_world(kits, tmp_path) as world:
        yield world


def audited(kits: Path) -> list[AuditEntry]:
    lines = FileAuditStore(kits / "kits" / "server-1" / AUDIT_FILE).lines()
    return [entry for line in lines if (entry := AuditEntry.parse(line)) is not None]


def begin_upload(person: Person, number: int, content: bytes) -> None:
    blob = Blob(digest=f"{number:064x}", size=1000)
    with pytest.raises(RequestRefusedError, match=r"is incomplete|cannot store"):
        person.link.put(PutBlob(job="x", blob=blob), iter([content] if content else []))


def test_uploads_that_are_begun_and_never_filled_leave_nothing(world: World) -> None:
    person = world.person()
    person.link.call(GetStatus())
    for number in range(MAX_UPLOADS + 20):
        begin_upload(person, number, b"")
    folder = world.folder / "state" / "uploads" / "the-lead"
    assert list(folder.iterdir()) == []
    for number in range(MAX_UPLOADS + 20):
        begin_upload(person, number, b"x")
    assert len(list(folder.iterdir())) == MAX_UPLOADS
    with pytest.raises(RequestRefusedError, match=f"the limit is {MAX_UPLOADS}"):
        person.link.put(PutBlob(job="x", blob=Blob(digest="f" * 64, size=1000)), iter([b"x"]))
    other = world.person("the-admin")
    other.submit("job", world.folder, job_config(1, "sites = ['plant-c']"))


def test_a_server_that_starts_deletes_what_was_left(tmp_path: Path) -> None:
    """As a killed server leaves it: an upload with nothing in it, one that is old, and one to go on with."""
    port = free_port()
    kits = federation(tmp_path / "kits", (port,))
    uploads = tmp_path / "state" / "uploads" / "the-lead"
    uploads.mkdir(parents=True)
    empty, old, young = (uploads / f".{number:064x}.0123456789abcdef.part" for number in range(3))
    empty.touch()
    for path in (old, young):
        path.write_bytes(b"x")
    os.utime(old, (time.time() - UPLOAD_EXPIRY_SECONDS - 60,) * 2)
    (tmp_path / "server.toml").write_text("join_wait = 0.2\n")
    with (
        ServerProcess(kits / "kits" / "server-1", tmp_path / "server.toml", tmp_path / "log"),
        Person(kit_of(kits, "the-lead"), (f"grpc://127.0.0.1:{port}",)) as person,
    ):
        person.link.call(GetStatus())
        eventually(lambda: list(uploads.iterdir()) == [young])
        assert (tmp_path / "state").stat().st_mode & 0o077 == 0, "no other user can read it"


def test_what_is_refused_again_and_again_is_counted(kits: Path, tmp_path: Path) -> None:
    with a_world(kits, tmp_path) as world:
        world.submit(job_config(1, "sites = ['plant-c']"))

        def ask() -> None:
            member = world.person("the-member")
            for _ in range(MAX_ENTRIES):
                with pytest.raises(RequestRefusedError, match="may not abort"):
                    member.link.call(AbortJob(job="job"))
                member.link.call(GetStatus())

        threads = [threading.Thread(target=ask) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        written = [entry for entry in audited(kits) if entry.who == "the-member"]
        assert [entry.what for entry in written].count("abort") == MAX_ENTRIES
        assert [entry.what for entry in written].count("status") == MAX_ENTRIES
    last = [entry.outcome for entry in audited(kits) if entry.who == "the-member"][2 * MAX_ENTRIES :]
    assert [outcome.split(" since")[0] for outcome in sorted(last)] == [
        f"accepted: {2 * MAX_ENTRIES} more",
        f"rejected: {2 * MAX_ENTRIES} more",
    ]


def test_a_new_hour_is_written_down_anew() -> None:
    now = [0.0]
    repeats = AuditThrottle(clock=lambda: now[0])
    member = Peer(name="eve", kind="person", organisation="Institute", role="member", serial=1)
    refused = [repeats.suppresses(member, "abort", f"job-{n}", f"rejected: {n}") for n in range(MAX_ENTRIES + 3)]
    assert refused == [False] * MAX_ENTRIES + [True] * 3
    assert not repeats.suppresses(member, "jobs", "", "accepted")
    assert list(repeats.suppressed()) == []
    now[0] = WINDOW_SECONDS + 1
    [(peer, what, outcome)] = repeats.suppressed()
    assert (peer, what, outcome.split(" since")[0]) == (member, "abort", "rejected: 3 more")
    assert not repeats.suppresses(member, "abort", "job", "rejected: again")


def test_what_somebody_got_at_is_not_hidden_by_many_requests_for_something_else() -> None:
    repeats = AuditThrottle()
    member = Peer(name="eve", kind="person", organisation="Institute", role="member", serial=1)
    for _ in range(2 * MAX_ENTRIES):
        repeats.suppresses(member, "download", "her-own", "accepted")
    assert [repeats.suppresses(member, "download", "another", "accepted") for _ in range(3)] == [False, True, True]


def test_names_that_nobody_has_fill_no_audit(world: World, kits: Path) -> None:
    person = world.person()
    for number in range(MAX_ENTRIES + 10):
        with pytest.raises(RequestRefusedError, match="has not been uploaded"):
            person.link.call(SubmitJob(job=f"job-{number}", bundle=Blob(digest="0" * 64, size=1)))
    assert len([entry for entry in audited(kits) if entry.what == "submit"]) == MAX_ENTRIES


def test_who_has_enough_transfers_under_way_waits_and_is_not_refused(
    kits: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A site with many jobs sends many replies at a time; refused, it would soon give its session up."""
    asked, begun, go_on, course = threading.Semaphore(0), threading.Event(), threading.Event(), list[str]()
    blobs = [Blob(digest=sha256(content).hexdigest(), size=1) for content in (b"a", b"b")]
    put, receive = BlobTransfers.put, blob_transfers.receive_blob

    async def noted_put(self: BlobTransfers, *arguments: Any) -> UploadedSize:
        asked.release()
        return await put(self, *arguments)

    async def noted_receive(*arguments: Any) -> UploadedSize:
        course.append("begins")
        size = await receive(*arguments)
        course.append("ends")
        return size

    def slowly() -> Iterator[bytes]:
        begun.set()
        go_on.wait(PATIENCE)
        yield b"a"

    monkeypatch.setattr(BlobTransfers, "put", noted_put)
    monkeypatch.setattr(blob_transfers, "receive_blob", noted_receive)
    with a_world(kits, tmp_path, "[limits]\nconcurrent_transfers = 1\n") as world, ThreadPoolExecutor(2) as threads:
        link = world.person().link
        link.call(GetStatus())
        try:
            first = threads.submit(link.put, PutBlob(job="x", blob=blobs[0]), slowly())
            assert begun.wait(PATIENCE)
            second = threads.submit(link.put, PutBlob(job="x", blob=blobs[1]), iter([b"b"]))
            assert all(asked.acquire(timeout=PATIENCE) for _ in range(2))
            link.call(GetStatus())
            assert course == ["begins"]
        finally:
            go_on.set()
        assert (first.result().size, second.result().size) == (1, 1)
    assert course == ["begins", "ends"] * 2
