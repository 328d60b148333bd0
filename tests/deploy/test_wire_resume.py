"""Transfers that are cut, wherever that may be, arrive whole, and what had arrived is not sent again."""

import random
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from cutting import cutting
from wiring import SpoolService, papers, serving

from winnow.deploy.trust.peer_identity import Peer
from winnow.deploy.wire.atomic_files import CHUNK, blob_of
from winnow.deploy.wire.blob_transfer import download_blob, upload_blob
from winnow.deploy.wire.errors import RequestRefusedError, WireError
from winnow.deploy.wire.in_memory_transport import MemoryServer
from winnow.deploy.wire.messages import FetchBlob, FollowLog, PutBlob, UploadedSize
from winnow.deploy.wire.reconnecting_link import Backoff, ReconnectingLink
from winnow.deploy.wire.resumable_blob_files import BlobFolder
from winnow.deploy.wire.transport_interface import ServerLink
from winnow.deploy.wire.transport_registry import open_link

SIZE = 12 * CHUNK + 321
DATA = random.Random(7).randbytes(SIZE)
IN_FLIGHT = 6 * CHUNK
"""What a cut may cost: gRPC throws away what it has received but not handed out."""
QUICK = Backoff(first=0.01, longest=0.1)

HANDSHAKE = 1_000
CUTS = {
    "nothing": [],
    "handshake": [HANDSHAKE],
    "head": [4_500],
    "first chunk": [CHUNK // 2],
    "boundary": [CHUNK, 9 * CHUNK],
    "many": [CHUNK + 4_000 * n for n in range(4)] + [3 * CHUNK],
    "end": [SIZE - 1],
    "after the end": [SIZE + 2_000],
}


class Watching(SpoolService):
    """Notes from where on it was asked to send or receive."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.offsets: list[int] = []

    def fetch(self, peer: Peer, request: FetchBlob) -> AsyncIterator[bytes]:
        self.offsets.append(request.offset)
        return super().fetch(peer, request)

    async def put(self, peer: Peer, head: PutBlob, chunks: AsyncIterator[bytes]) -> UploadedSize:
        self.offsets.append(head.offset)
        return await super().put(peer, head, chunks)


@contextmanager
def grpc_cut(service: SpoolService, cuts: list[int]) -> Iterator[tuple[ServerLink, Callable[[], int]]]:
    with serving("grpc://127.0.0.1:0", service) as server, cutting(server.url, *cuts) as (url, proxy):
        link = ReconnectingLink([url], lambda url: open_link(url, papers("alpha")), backoff=QUICK, retry_seconds=20)
        yield link, lambda: proxy.passed
        link.close()


@pytest.mark.parametrize("cuts", CUTS.values(), ids=list(CUTS))
def test_a_download_survives_cuts(tmp_path: Path, cuts: list[int]) -> None:
    service = Watching(tmp_path / "server")
    blob = service.hold(DATA)
    with grpc_cut(service, cuts) as (link, passed):
        assert download_blob(link, "j", blob, BlobFolder(tmp_path / "site")).read_bytes() == DATA
        assert passed() < SIZE * 1.1 + len(cuts) * IN_FLIGHT
    assert service.offsets == sorted(service.offsets)
    if any(8 * CHUNK < cut < SIZE for cut in cuts):
        assert service.offsets[-1] > 0


@pytest.mark.parametrize("cuts", CUTS.values(), ids=list(CUTS))
def test_an_upload_survives_cuts(tmp_path: Path, cuts: list[int]) -> None:
    service = Watching(tmp_path / "server")
    blob = BlobFolder(tmp_path / "mine").adopt(_file(tmp_path))
    with grpc_cut(service, cuts) as (link, passed):
        upload_blob(link, "j", tmp_path / "mine" / blob.digest, blob)
        assert service.spool.path(blob).read_bytes() == DATA
        assert passed() < SIZE * 1.1 + len(cuts) * IN_FLIGHT
    assert service.offsets == sorted(service.offsets)


@pytest.mark.parametrize("after", [0, 10, CHUNK - 1, CHUNK, CHUNK + 1, 3 * CHUNK, SIZE, SIZE + 5])
def test_the_twin_breaks_off_and_continues(tmp_path: Path, after: int) -> None:
    service = Watching(tmp_path / "server")
    with serving(f"memory://resume-{after}", service) as server:
        assert isinstance(server, MemoryServer)
        link = open_link(server.url, papers("alpha"))
        blob = BlobFolder(tmp_path / "mine").adopt(_file(tmp_path))
        server.faults.drop_after = after
        upload_blob(link, "j", tmp_path / "mine" / blob.digest, blob)
        assert service.spool.path(blob).read_bytes() == DATA
        server.faults.drop_after = after
        assert download_blob(link, "j", blob, BlobFolder(tmp_path / "site")).read_bytes() == DATA
    if after >= 3 * CHUNK:
        assert max(service.offsets) >= 2 * CHUNK


def test_a_followed_log_continues_at_its_line(tmp_path: Path) -> None:
    with serving("memory://followed", SpoolService(tmp_path)) as server:
        assert isinstance(server, MemoryServer)
        link = ReconnectingLink([server.url], lambda url: open_link(url, papers("alpha")), backoff=QUICK)
        server.faults.drop_after = 150
        lines = list(link.follow(FollowLog(job="j", wait=False)))
        assert server.faults.drop_after is None, "it broke"
        assert [line.number for line in lines] == [0, 1, 2, 3, 4]


def test_a_restarted_site_continues_its_download(tmp_path: Path) -> None:
    service = Watching(tmp_path / "server")
    blob = service.hold(DATA)
    (tmp_path / "site").mkdir()
    with BlobFolder(tmp_path / "site").open_writer(blob, 0) as writer:
        writer.write(DATA[:12345])
    with serving("memory://restarted", service) as server:
        link = open_link(server.url, papers("alpha"))
        assert download_blob(link, "j", blob, BlobFolder(tmp_path / "site")).read_bytes() == DATA
    assert service.offsets == [12345]


def test_a_spoiled_part_is_thrown_away_and_the_whole_sent_again(tmp_path: Path) -> None:
    service = Watching(tmp_path / "server")
    blob = service.hold(DATA)
    with BlobFolder(tmp_path / "site").open_writer(blob, 0) as writer:
        writer.write(b"spoiled")
    with serving("memory://spoiled", service) as server:
        link = open_link(server.url, papers("alpha"))
        assert download_blob(link, "j", blob, BlobFolder(tmp_path / "site")).read_bytes() == DATA
    assert service.offsets == [7, 0]


@pytest.mark.parametrize("arrived", [DATA, b"X" * SIZE], ids=["right", "spoiled"])
def test_an_upload_that_was_never_finished_is_finished(tmp_path: Path, arrived: bytes) -> None:
    """The server was killed between its last byte and the check."""
    service = Watching(tmp_path / "server")
    blob = BlobFolder(tmp_path / "mine").adopt(_file(tmp_path))
    with service.spool.open_writer(blob, 0, "alpha") as writer:
        writer.write(arrived)
    with serving(f"memory://unfinished-{arrived[:1].hex()}", service) as server:
        link = open_link(server.url, papers("alpha"))
        upload_blob(link, "j", tmp_path / "mine" / blob.digest, blob)
    assert service.spool.path(blob).read_bytes() == DATA
    assert service.offsets == ([SIZE - 1] if arrived == DATA else [SIZE - 1, 0])


def test_a_download_that_was_never_finished_is_finished(tmp_path: Path) -> None:
    service = Watching(tmp_path / "server")
    blob = service.hold(DATA)
    with BlobFolder(tmp_path / "site").open_writer(blob, 0) as writer:
        writer.write(DATA)
    with serving("memory://unfinished-down", service) as server:
        link = open_link(server.url, papers("alpha"))
        assert download_blob(link, "j", blob, BlobFolder(tmp_path / "site")).read_bytes() == DATA
    assert service.offsets == [SIZE - 1]


def test_an_empty_blob_is_uploaded(tmp_path: Path) -> None:
    service = Watching(tmp_path / "server")
    (tmp_path / "empty").write_bytes(b"")
    blob = blob_of(tmp_path / "empty")
    with serving("memory://empty", service) as server:
        upload_blob(open_link(server.url, papers("alpha")), "j", tmp_path / "empty", blob)
    assert service.spool.has(blob)


def test_a_blob_that_nobody_has_is_not_asked_for_again(tmp_path: Path) -> None:
    service = Watching(tmp_path / "server")
    blob = service.hold(b"soon gone")
    service.spool.remove(blob)
    with serving("memory://gone", service) as server:
        link = open_link(server.url, papers("alpha"))
        with pytest.raises(RequestRefusedError, match="not stored here"):
            download_blob(link, "j", blob, BlobFolder(tmp_path / "site"))
    assert service.offsets == [0]


def test_a_full_disk_at_the_site_ends_the_download(tmp_path: Path) -> None:
    service = Watching(tmp_path / "server")
    blob = service.hold(DATA)
    with serving("memory://full", service) as server:
        link = open_link(server.url, papers("alpha"))
        small = BlobFolder(tmp_path / "site", quota=1000)
        with pytest.raises(WireError, match="cannot store"):
            download_blob(link, "j", blob, small)
    assert list(small.folder.iterdir()) == []


def _file(folder: Path) -> Path:
    path = folder / "made"
    path.write_bytes(DATA)
    return path
