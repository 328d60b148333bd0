"""The wire: round trip of a small call, and throughput of a large blob between two processes, with mutual TLS.

Baseline: plain gRPC with the same TLS in the same run that moves a file's bytes into a file and makes it durable, as
ours does, which also digests them and can go on after a break. Beside it, plain gRPC whose chunks come from memory and
are thrown away, with and without TLS. WIRE_MB sets the size.
"""

import asyncio
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import grpc.aio
import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption

from bench.table import Row
from winnow.deploy.trust.certificate_authority import CertificateAuthority, key_pem
from winnow.deploy.trust.peer_identity import Peer, utc_now
from winnow.deploy.trust.project_file import ProjectServer, ProjectSite
from winnow.deploy.wire.atomic_files import CHUNK, blob_of
from winnow.deploy.wire.blob_transfer import download_blob, upload_blob
from winnow.deploy.wire.blob_transfer_server import read_ahead, receive_blob, uploaded_size
from winnow.deploy.wire.malloc_tuning import tune_malloc
from winnow.deploy.wire.messages import (
    Acknowledgement,
    FetchBlob,
    FollowLog,
    GetStatus,
    GetUploadedSize,
    LogLine,
    PutBlob,
    Request,
    Response,
    UploadedSize,
)
from winnow.deploy.wire.resumable_blob_files import BlobFolder
from winnow.deploy.wire.transport_interface import ServerLink, Tls
from winnow.deploy.wire.transport_registry import open_link, serve

MEGABYTES = int(os.environ.get("WIRE_MB", "256"))
CALLS = 300
REPEAT = 7


class Papers(msgspec.Struct):
    server: Tls
    site: Tls


class Way(msgspec.Struct):
    """Where a server of the other process is reached."""

    ours: str
    secure: str
    insecure: str


@dataclass(frozen=True, kw_only=True)
class Contender:
    """What is timed: a small call, and the blob down and up; each is told which attempt it is."""

    call: Callable[[int], object]
    down: Callable[[int], object]
    up: Callable[[int], object]


def measure() -> list[Row]:
    tune_malloc()
    with tempfile.TemporaryDirectory() as name, _other_process(Path(name)) as (papers, way):
        site = papers.site
        credentials = grpc.ssl_channel_credentials(site.authority, site.key, site.certificate)
        link = open_link(way.ours, site)
        with grpc.secure_channel(way.secure, credentials) as secure, grpc.insecure_channel(way.insecure) as insecure:
            contenders = [_ours(link, Path(name)), _files(secure, Path(name)), _plain(secure), _plain(insecure)]
            call = _seconds([contender.call for contender in contenders], CALLS)
            down = _seconds([contender.down for contender in contenders], REPEAT)
            up = _seconds([contender.up for contender in contenders], REPEAT)
        link.close()
    return _rows(call, down, up)


def plainly() -> tuple[float, float, float]:
    """What plain gRPC with TLS takes for a call, in seconds, and moves down and up, in MB/s."""
    with tempfile.TemporaryDirectory() as name, _other_process(Path(name)) as (papers, way):
        site = papers.site
        credentials = grpc.ssl_channel_credentials(site.authority, site.key, site.certificate)
        with grpc.secure_channel(way.secure, credentials) as channel:
            plain = _plain(channel)
            [call], [down], [up] = _seconds([plain.call], CALLS), _seconds([plain.down], 3), _seconds([plain.up], 3)
    return call, MEGABYTES / down, MEGABYTES / up


def _rows(call: list[float], down: list[float], up: list[float]) -> list[Row]:
    rows = []
    names = ("ours", "plain gRPC, TLS, file to file", "plain gRPC, TLS, from memory to nowhere", "the same, no TLS")
    for at, name in enumerate(names):
        rows.append(Row(name=f"{name}: a call", value=1e3 * call[at], unit="ms", baseline=1e3 * call[1]))
        for way, seconds in (("down", down), ("up", up)):
            speed, baseline = MEGABYTES / seconds[at], MEGABYTES / seconds[1]
            rows.append(
                Row(name=f"  {way}", value=speed, unit="MB/s", baseline=baseline, goal="" if at else "≥ 0.5 × baseline")
            )
    return rows


def _ours(link: ServerLink, folder: Path) -> Contender:
    blob = blob_of(folder / "large")

    def down(attempt: int) -> None:
        spool = BlobFolder(folder / "down")
        download_blob(link, "bench", blob, spool)
        spool.remove(blob)

    def up(attempt: int) -> None:
        """For a job of its own: the server still holds what was sent before."""
        upload_blob(link, f"up-{attempt}", folder / "large", blob)

    return Contender(call=lambda _: link.call(GetStatus()), down=down, up=up)


def _plain(channel: grpc.Channel) -> Contender:
    call = channel.unary_unary("/plain/Call")
    fetch = channel.unary_stream("/plain/Fetch")
    put = channel.stream_unary("/plain/Put")
    chunk = bytes(CHUNK)
    return Contender(
        call=lambda _: call(b"status"),
        down=lambda _: sum(len(piece) for piece in fetch(b"")),
        up=lambda _: put(chunk for _ in range(MEGABYTES * 2**20 // CHUNK)),
    )


def _files(channel: grpc.Channel, folder: Path) -> Contender:
    """Plain gRPC from file to file, as one would write it without further thought."""
    call = channel.unary_unary("/plain/Call")
    fetch = channel.unary_stream("/plain/FetchFile")
    put = channel.stream_unary("/plain/PutFile")

    def down(_: int) -> None:
        with (folder / "plain-down").open("wb") as file:
            for piece in fetch(b""):
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())

    return Contender(call=lambda _: call(b"status"), down=down, up=lambda _: put(_pieces(folder / "large")))


def _pieces(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        while piece := file.read(CHUNK):
            yield piece


def _seconds(contenders: list[Callable[[int], object]], repeat: int) -> list[float]:
    """The best of several attempts, taken in turns: what else the machine does then disturbs all alike."""
    best = [math.inf] * len(contenders)
    for attempt in range(repeat):
        for at, once in enumerate(contenders):
            start = time.perf_counter()
            once(attempt)
            best[at] = min(best[at], time.perf_counter() - start)
    return best


# The other process ----------------------------------------------------------------------------------------------------


@contextmanager
def _other_process(folder: Path) -> Iterator[tuple[Papers, Way]]:
    with (folder / "large").open("wb") as file:
        for number in range(MEGABYTES):
            file.write(np.random.default_rng(number).bytes(2**20))
    papers = _papers()
    (folder / "papers").write_bytes(msgspec.msgpack.encode(papers))
    command = [sys.executable, "-m", "bench.wire", str(folder)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        assert other.stdout is not None
        yield papers, msgspec.json.decode(other.stdout.readline(), type=Way)
        other.communicate(b"end\n")


def _papers() -> Papers:
    authority = CertificateAuthority.create("bench", utc_now())

    def issue(party: ProjectServer | ProjectSite) -> Tls:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = authority.issue(party, key.public_key(), None, utc_now(), 1)
        pem = authority.certificate.public_bytes(Encoding.PEM)
        return Tls(certificate=certificate.public_bytes(Encoding.PEM), key=key_pem(key, NoEncryption()), authority=pem)

    server = ProjectServer(name="server", organisation="hub", hosts=("127.0.0.1",))
    return Papers(server=issue(server), site=issue(ProjectSite(name="site", organisation="ward")))


class _Spooling:
    """A server that holds blobs, each job's in a folder of its own."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._large = BlobFolder(folder / "bench")
        large = folder / "bench" / "copy"
        large.hardlink_to(folder / "large")
        self._large.adopt(large)

    def _spool(self, job: str) -> BlobFolder:
        return BlobFolder(self._folder / job)

    async def call(self, peer: Peer, request: Request) -> Response:
        if isinstance(request, GetUploadedSize):
            return uploaded_size(self._spool(request.job), request.blob, peer.name)
        return Acknowledgement()

    def fetch(self, peer: Peer, request: FetchBlob) -> AsyncIterator[bytes]:
        return read_ahead(self._large.read(request.blob, request.offset))

    async def put(self, peer: Peer, head: PutBlob, chunks: AsyncIterator[bytes]) -> UploadedSize:
        return await receive_blob(self._spool(head.job), head, chunks, peer.name)

    async def follow(self, peer: Peer, request: FollowLog) -> AsyncIterator[LogLine]:
        for number in range(0):
            yield LogLine(number=number, at=0.0, source="server", kind="log", text="")


def _plain_server(folder: Path) -> grpc.aio.Server:
    chunk = bytes(CHUNK)

    async def call(data: bytes, context: Any) -> bytes:
        return data

    async def fetch(data: bytes, context: Any) -> AsyncIterator[bytes]:
        for _ in range(MEGABYTES * 2**20 // CHUNK):
            yield chunk

    async def put(chunks: AsyncIterator[bytes], context: Any) -> bytes:
        async for _ in chunks:
            pass
        return b""

    async def fetch_file(data: bytes, context: Any) -> AsyncIterator[bytes]:
        for piece in _pieces(folder / "large"):
            yield piece

    async def put_file(chunks: AsyncIterator[bytes], context: Any) -> bytes:
        with (folder / "plain-up").open("wb") as file:
            async for piece in chunks:
                file.write(piece)
            file.flush()
            os.fsync(file.fileno())
        return b""

    server = grpc.aio.server()
    methods = {
        "FetchFile": grpc.unary_stream_rpc_method_handler(fetch_file),
        "PutFile": grpc.stream_unary_rpc_method_handler(put_file),
        "Call": grpc.unary_unary_rpc_method_handler(call),
        "Fetch": grpc.unary_stream_rpc_method_handler(fetch),
        "Put": grpc.stream_unary_rpc_method_handler(put),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("plain", methods),))
    return server


async def _serve(folder: Path) -> None:
    tune_malloc()
    tls = msgspec.msgpack.decode((folder / "papers").read_bytes(), type=Papers).server
    ours = serve("grpc://127.0.0.1:0", tls, _Spooling(folder), identify=Peer.of_pem, admit=lambda peer: None)
    plain = _plain_server(folder)
    credentials = grpc.ssl_server_credentials([(tls.key, tls.certificate)], tls.authority, require_client_auth=True)
    secure = plain.add_secure_port("127.0.0.1:0", credentials)
    insecure = plain.add_insecure_port("127.0.0.1:0")
    await ours.start()
    await plain.start()
    way = Way(ours=ours.url, secure=f"127.0.0.1:{secure}", insecure=f"127.0.0.1:{insecure}")
    print(msgspec.json.encode(way).decode(), flush=True)
    await asyncio.to_thread(sys.stdin.readline)
    await plain.stop(0)
    await ours.stop(0)


if __name__ == "__main__":
    asyncio.run(_serve(Path(sys.argv[1])))
