"""One suite for all transports: calls, refusals, identities, streams, transfers that break and continue."""

import itertools
import random
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from hashlib import sha256
from pathlib import Path

import pytest
from pausing import Nobody
from wiring import SpoolService, papers, serving

from waiting import PATIENCE
from winnow.core import ConfigError
from winnow.deploy.wire import reconnecting_link
from winnow.deploy.wire.atomic_files import CHUNK, read_chunks
from winnow.deploy.wire.blob_transfer import download_blob, upload_blob
from winnow.deploy.wire.errors import RequestRefusedError, UnreachableError, WireError
from winnow.deploy.wire.messages import (
    AbortJob,
    Acknowledgement,
    Blob,
    FetchBlob,
    FollowLog,
    GetJobResult,
    GetStatus,
    GetUploadedSize,
    ListJobs,
    ListSites,
    PutBlob,
    UploadedSize,
)
from winnow.deploy.wire.reconnecting_link import Backoff, ReconnectingLink
from winnow.deploy.wire.resumable_blob_files import BlobFolder
from winnow.deploy.wire.transport_interface import ServerLink, Tls, TransportServer
from winnow.deploy.wire.transport_registry import TRANSPORTS, open_link

SCHEMES = list(TRANSPORTS)
QUICK = Backoff(first=0.01, longest=0.1)
_numbers = itertools.count()


def address(scheme: str) -> str:
    return "grpc://127.0.0.1:0" if scheme == "grpc" else f"{scheme}://trial-{next(_numbers)}"


def content(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def blob_of(data: bytes) -> Blob:
    return Blob(digest=sha256(data).hexdigest(), size=len(data))


@pytest.fixture(params=SCHEMES)
def scheme(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def service(tmp_path: Path) -> SpoolService:
    return SpoolService(tmp_path / "server")


@pytest.fixture
def server(scheme: str, service: SpoolService) -> Iterator[TransportServer]:
    with serving(address(scheme), service) as running:
        yield running


@pytest.fixture
def link(server: TransportServer) -> Iterator[ServerLink]:
    opened = open_link(server.url, papers("alpha"))
    yield opened
    opened.close()


def ping(text: str = "") -> AbortJob:
    return AbortJob(job="j", reason=text)


def test_a_call_is_answered_and_its_caller_known_by_the_certificate(link: ServerLink, service: SpoolService) -> None:
    assert link.call(ping("hello")) == Acknowledgement(note="hello")
    [peer] = service.callers
    assert (peer.name, peer.kind, peer.organisation) == ("alpha", "site", "ward")


def test_refusals_are_raised_in_one_line(link: ServerLink) -> None:
    with pytest.raises(RequestRefusedError, match=r"^no sites for you$") as refused:
        link.call(ListSites())
    assert not refused.value.retry
    with pytest.raises(RequestRefusedError, match=r"^not yet$") as refused:
        link.call(GetJobResult(job="j"))
    assert refused.value.retry


def test_a_fault_of_the_server_is_told_without_its_secrets(link: ServerLink) -> None:
    with pytest.raises(RequestRefusedError, match="internal server error") as refused:
        link.call(ListJobs())
    assert "secret" not in str(refused.value)
    assert link.call(ping()) == Acknowledgement()


def test_the_leader_is_named(link: ServerLink, service: SpoolService) -> None:
    service.leader = "grpc://elsewhere:1"
    with pytest.raises(RequestRefusedError) as refused:
        link.call(ping())
    assert refused.value.leader == "grpc://elsewhere:1"


def test_a_call_has_a_deadline_and_the_server_notices(link: ServerLink, service: SpoolService) -> None:
    with pytest.raises(UnreachableError):
        link.call(GetStatus(), timeout=0.3)
    assert service.gone.wait(60)


def test_many_threads_share_a_link(link: ServerLink) -> None:
    answers: list[object] = []
    threads = [
        threading.Thread(target=lambda n=n: answers.extend(link.call(ping(f"{n}.{i}")) for i in range(20)))
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert {answer.note for answer in answers} == {f"{n}.{i}" for n in range(4) for i in range(20)}  # type: ignore[attr-defined]


def test_a_revoked_peer_is_refused_and_others_are_not(scheme: str, service: SpoolService) -> None:
    with serving(address(scheme), service, revoked=frozenset({"beta"})) as server:
        refused, welcome = (open_link(server.url, papers(name)) for name in ("beta", "alpha"))
        with pytest.raises(RequestRefusedError, match="beta was revoked"):
            refused.call(ping())
        with pytest.raises(RequestRefusedError, match="beta was revoked"):
            next(refused.fetch(FetchBlob(job="j", blob=blob_of(b"x"))))
        with pytest.raises(RequestRefusedError, match="beta was revoked"):
            next(refused.follow(FollowLog(job="j")))
        with pytest.raises(RequestRefusedError, match="beta was revoked"):
            refused.put(PutBlob(job="j", blob=blob_of(b"x")), [b"x"])
        assert welcome.call(ping()) == Acknowledgement()
        refused.close()
        welcome.close()


@pytest.mark.parametrize(
    "stranger",
    [papers("alpha", "another"), papers("old", age=40, days=30)],
    ids=["foreign", "expired"],
)
def test_a_wrong_certificate_does_not_pass_the_handshake(service: SpoolService, stranger: Tls) -> None:
    with serving("grpc://127.0.0.1:0", service) as server:
        own = Tls(certificate=stranger.certificate, key=stranger.key, authority=papers("server").authority)
        link = open_link(server.url, own)
        with pytest.raises(UnreachableError, match="rejects our certificate"):
            link.call(ping())
        link.close()
        good = open_link(server.url, papers("alpha"))
        assert good.call(ping()) == Acknowledgement()
        good.close()
    assert [peer.name for peer in service.callers] == ["alpha"]


def test_a_link_does_not_believe_a_foreign_server(service: SpoolService) -> None:
    with serving("grpc://127.0.0.1:0", service) as server:
        link = open_link(server.url, papers("alpha", "another"))
        with pytest.raises(UnreachableError, match="certificate is expired, for another host, or from another project"):
            link.call(ping())
        link.close()


def test_a_site_cannot_pose_as_a_server(service: SpoolService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("wiring.papers", lambda name: papers("alpha"))
    with serving("grpc://127.0.0.1:0", service) as server:
        link = open_link(server.url, papers("beta"))
        with pytest.raises(UnreachableError):
            link.call(ping())
        link.close()


def test_lines_are_followed_from_a_number_on(link: ServerLink) -> None:
    lines = list(link.follow(FollowLog(job="j", first=2, wait=False)))
    assert [line.text for line in lines] == ["line 2", "line 3", "line 4"]


def test_closing_a_link_ends_what_waits(link: ServerLink, service: SpoolService) -> None:
    def close_soon() -> None:
        service.waiting.wait(60)
        link.close()

    with ThreadPoolExecutor(1) as threads:
        threads.submit(close_soon)
        with pytest.raises(UnreachableError):
            list(link.follow(FollowLog(job="j")))
    with pytest.raises(UnreachableError):
        link.call(ping())
    assert service.gone.wait(60)


def test_a_reader_who_goes_away_ends_the_stream(link: ServerLink, service: SpoolService) -> None:
    lines = link.follow(FollowLog(job="j"))
    assert next(lines).number == 0
    for _ in range(4):
        next(lines)
    lines.close()  # type: ignore[attr-defined]
    assert service.gone.wait(60)


@pytest.mark.parametrize("size", [0, 1, CHUNK, 3 * CHUNK + 17])
def test_blobs_go_up_and_down(link: ServerLink, service: SpoolService, tmp_path: Path, size: int) -> None:
    data = content(size)
    path = tmp_path / "mine"
    path.write_bytes(data)
    blob = blob_of(data)
    link.put(PutBlob(job="j", blob=blob), read_chunks(path))
    upload_blob(link, "j", path, blob)
    assert service.spool.path(blob).read_bytes() == data
    assert download_blob(link, "j", blob, BlobFolder(tmp_path / "site")).read_bytes() == data


def test_a_transfer_continues_at_its_offset(link: ServerLink, service: SpoolService, tmp_path: Path) -> None:
    data = content(2 * CHUNK + 5)
    blob = blob_of(data)
    with pytest.raises(RequestRefusedError, match="is incomplete"):
        link.put(PutBlob(job="j", blob=blob), [data[:CHUNK]])
    assert link.call(GetUploadedSize(job="j", blob=blob)) == UploadedSize(size=CHUNK)
    other = open_link(link.url, papers("beta"))  # type: ignore[attr-defined]
    assert other.call(GetUploadedSize(job="j", blob=blob)) == UploadedSize(size=0), (
        "what another sent is not ours to continue"
    )
    other.close()
    assert link.put(PutBlob(job="j", blob=blob, offset=CHUNK), [data[CHUNK:]]) == UploadedSize(size=len(data))
    assert b"".join(link.fetch(FetchBlob(job="j", blob=blob, offset=CHUNK + 3))) == data[CHUNK + 3 :]


def test_what_is_not_there_or_not_possible_is_refused(link: ServerLink, service: SpoolService) -> None:
    blob = blob_of(b"absent")
    with pytest.raises(RequestRefusedError, match="is not stored here"):
        list(link.fetch(FetchBlob(job="j", blob=blob)))
    with pytest.raises(RequestRefusedError, match="cannot resume at byte 3"):
        link.put(PutBlob(job="j", blob=blob, offset=3), [b"ent"])
    with pytest.raises(RequestRefusedError, match="damaged"):
        link.put(PutBlob(job="j", blob=blob), [b"ABSENT"])
    with pytest.raises(RequestRefusedError, match="longer than"):
        link.put(PutBlob(job="j", blob=blob), [b"absent", b"more"])
    assert service.spool.blobs() == []
    assert list(service.spool.folder.iterdir()) == []


def test_a_chunk_that_is_too_large_is_refused(link: ServerLink, service: SpoolService) -> None:
    data = bytes(5 * 2**20)
    with pytest.raises(RequestRefusedError):
        link.put(PutBlob(job="j", blob=blob_of(data)), [data])
    assert service.spool.blobs() == []
    assert link.call(ping()) == Acknowledgement()


def test_an_unreadable_file_is_told_to_its_owner(link: ServerLink, tmp_path: Path) -> None:
    with pytest.raises(WireError, match="No such file"):
        link.put(PutBlob(job="j", blob=blob_of(b"x")), read_chunks(tmp_path / "missing"))


def test_a_sender_who_stalls_is_given_up(scheme: str, service: SpoolService) -> None:
    data = content(2 * CHUNK)
    go_on = threading.Event()

    def stalling() -> Iterator[bytes]:
        yield data[:CHUNK]
        go_on.wait(PATIENCE)
        yield data[CHUNK:]

    with serving(address(scheme), service, stall=0.3) as server:
        link = open_link(server.url, papers("alpha"))
        begun = time.monotonic()
        with pytest.raises(RequestRefusedError, match=r"no data transferred for 0\.3 seconds") as refused:
            link.put(PutBlob(job="j", blob=blob_of(data)), stalling())
        assert refused.value.retry
        assert time.monotonic() - begun < PATIENCE
        go_on.set()
        assert link.call(GetUploadedSize(job="j", blob=blob_of(data))) == UploadedSize(size=CHUNK)
        link.close()


def test_a_server_that_stalls_is_given_up(
    server: TransportServer, service: SpoolService, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(service, "fetch", lambda peer, request: service.follow(peer, FollowLog(job="j", first=9)))
    link = open_link(server.url, papers("alpha"), stall=0.3)
    with pytest.raises(UnreachableError, match=r"0\.3 seconds"):
        list(link.fetch(FetchBlob(job="j", blob=blob_of(b"x"))))
    link.close()


def test_a_reconnecting_link_goes_to_the_next_endpoint_and_follows_the_leader(scheme: str, tmp_path: Path) -> None:
    first, second = SpoolService(tmp_path / "1"), SpoolService(tmp_path / "2")
    with serving(address(scheme), first) as one, serving(address(scheme), second) as two:
        nobody = "grpc://127.0.0.1:1" if scheme == "grpc" else f"{scheme}://nobody"
        link = ReconnectingLink([nobody, one.url, two.url], lambda url: open_link(url, papers("alpha")), backoff=QUICK)
        assert link.call(ping("a")) == Acknowledgement(note="a")
        assert first.callers
        first.leader = two.url
        assert link.call(ping("b")) == Acknowledgement(note="b")
        assert second.callers
        second.leader, first.leader = one.url, ""
        assert link.call(ping("c")) == Acknowledgement(note="c")
        link.close()
        with pytest.raises(UnreachableError):
            link.call(ping())


def test_a_reconnecting_link_says_that_it_is_still_trying(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reconnecting_link, "NOTICE_SECONDS", 0.2)
    said: list[str] = []
    link = ReconnectingLink(
        ["memory://nobody"],
        lambda url: open_link(url, papers("alpha")),
        backoff=QUICK,
        retry_seconds=1.2,
        notify=said.append,
    )
    with pytest.raises(UnreachableError):
        link.call(GetStatus())
    with pytest.raises(UnreachableError):
        next(link.follow(FollowLog(job="job-1")))
    assert said == ["no answer from memory://nobody yet; trying for 1 s more"] * 2


def test_a_reconnecting_link_gives_up_or_is_closed(scheme: str) -> None:
    nobody = "grpc://127.0.0.1:1" if scheme == "grpc" else f"{scheme}://nobody"
    link = ReconnectingLink([nobody], lambda url: open_link(url, papers("alpha")), backoff=QUICK, retry_seconds=0.3)
    with closing(link), pytest.raises(UnreachableError):
        link.call(ping())
    patient = ReconnectingLink([nobody], lambda url: open_link(url, papers("alpha")), backoff=QUICK)
    timer = threading.Timer(0.3, patient.close)
    timer.start()
    with pytest.raises(UnreachableError, match="closed"):
        patient.call(ping())
    timer.join()


@pytest.mark.parametrize("retry_seconds", [0.0, 1.0, 20.0, 60.0])
def test_a_reconnecting_link_tries_until_its_time_is_up(retry_seconds: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """However long its pauses are by then: a server may start in the last second."""
    nobody = Nobody(monkeypatch)
    link = ReconnectingLink(["memory://nobody"], lambda url: nobody, retry_seconds=retry_seconds)
    with pytest.raises(UnreachableError):
        link.call(GetStatus())
    assert nobody.attempts[0] == 0.0
    assert nobody.attempts[-1] == pytest.approx(retry_seconds)


def test_a_final_refusal_is_final(link: ServerLink, server: TransportServer) -> None:
    reconnecting = ReconnectingLink([server.url], lambda url: open_link(url, papers("alpha")), backoff=QUICK)
    with pytest.raises(RequestRefusedError, match="no sites"):
        reconnecting.call(ListSites())
    reconnecting.close()


def test_an_address_without_driver_is_refused() -> None:
    for wrong in ("http://host:1", "host:1", "grpc://"):
        with pytest.raises(ConfigError, match="is not a valid endpoint"):
            open_link(wrong, papers("alpha"))


def test_a_taken_address_is_refused_in_one_line(server: TransportServer, tmp_path: Path) -> None:
    with pytest.raises(WireError, match="cannot listen"), serving(server.url, SpoolService(tmp_path / "other")):
        pass
