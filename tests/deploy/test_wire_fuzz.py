"""A live gRPC server is sent nonsense of every kind; it refuses or closes, never dies, and goes on serving others."""

import random
import socket
import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import grpc
import pytest
from wiring import SpoolService, papers, serving

from winnow.deploy.wire.grpc_common import REFUSAL_KEY, SERVICE, decode_refusal, host_and_port
from winnow.deploy.wire.message_codec import encode
from winnow.deploy.wire.messages import (
    AbortJob,
    Acknowledgement,
    Blob,
    FetchBlob,
    FollowLog,
    GetUploadedSize,
    Hello,
    PutBlob,
    Resources,
    WireMessage,
)
from winnow.deploy.wire.transport_interface import ServerLink, TransportServer
from winnow.deploy.wire.transport_registry import open_link

BLOB = Blob(digest="0" * 64, size=100)
VALID: dict[str, list[WireMessage]] = {
    "Call": [
        AbortJob(job="j", reason="line"),
        GetUploadedSize(job="j", blob=BLOB),
        Hello(protocols=[1], winnow_version="1", data=["d"], resources=Resources(), clock=0.0),
    ],
    "Fetch": [FetchBlob(job="j", blob=BLOB)],
    "Put": [PutBlob(job="j", blob=BLOB)],
    "Follow": [FollowLog(job="j", wait=False)],
}


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TransportServer]:
    with serving("grpc://127.0.0.1:0", SpoolService(tmp_path_factory.mktemp("server")), stall=2.0) as running:
        yield running


@pytest.fixture
def link(server: TransportServer) -> Iterator[ServerLink]:
    opened = open_link(server.url, papers("beta"))
    yield opened
    opened.close()


@pytest.fixture
def channel(server: TransportServer) -> Iterator[grpc.Channel]:
    """As a hostile site has it: a good certificate, and no manners."""
    tls = papers("alpha")
    credentials = grpc.ssl_channel_credentials(tls.authority, tls.key, tls.certificate)
    with grpc.secure_channel(host_and_port(server.url), credentials) as opened:
        yield opened


def attempt(channel: grpc.Channel, method: str, sent: list[bytes]) -> grpc.RpcError | None:
    """Send it; the error that came back, if any."""
    name = f"/{SERVICE}/{method}"
    try:
        if method == "Call":
            channel.unary_unary(name)(sent[0], timeout=60)
        elif method == "Put":
            channel.stream_unary(name)(iter(sent), timeout=60)
        else:
            list(channel.unary_stream(name)(sent[0], timeout=60))
    except grpc.RpcError as error:
        return error
    return None


def reason(error: grpc.RpcError | None) -> str:
    assert error is not None, "it was not refused"
    [packed] = [value for key, value in error.trailing_metadata() if key == REFUSAL_KEY]
    return decode_refusal(packed).reason


def nonsense(rng: random.Random, valid: bytes) -> bytes:
    kind = rng.randrange(4)
    if kind == 0:
        return rng.randbytes(rng.randrange(200))
    if kind == 1:
        return valid[: rng.randrange(len(valid))]
    if kind == 2:
        return valid + rng.randbytes(rng.randrange(1, 20))
    changed = bytearray(valid)
    for _ in range(rng.randrange(1, 5)):
        changed[rng.randrange(len(changed))] = rng.randrange(256)
    return bytes(changed)


def served(link: ServerLink) -> bool:
    return link.call(AbortJob(job="j", reason="still there")) == Acknowledgement(note="still there")


@pytest.mark.parametrize("method", list(VALID))
def test_nonsense_is_refused(channel: grpc.Channel, link: ServerLink, method: str) -> None:
    rng = random.Random(method)
    for number in range(150):
        data = nonsense(rng, encode(rng.choice(VALID[method])))
        error = attempt(channel, method, [data, rng.randbytes(50)])
        if error is not None:
            assert "\n" not in reason(error)
            assert "internal server error" not in reason(error), f"a fault of the server's own at {data!r}"
        if number % 50 == 0:
            assert served(link)
    assert served(link)


def test_a_stream_without_head_is_refused(channel: grpc.Channel, link: ServerLink) -> None:
    assert "malformed" in reason(attempt(channel, "Put", []))
    assert "received 0 of 100" in reason(attempt(channel, "Put", [encode(VALID["Put"][0])]))
    assert "longer than" in reason(attempt(channel, "Put", [encode(VALID["Put"][0]), bytes(101)]))
    assert served(link)


def test_a_message_that_is_too_large_is_refused(channel: grpc.Channel, link: ServerLink) -> None:
    for method in VALID:
        error = attempt(channel, method, [bytes(6 * 2**20)])
        assert error is not None
        assert error.code() in (grpc.StatusCode.RESOURCE_EXHAUSTED, grpc.StatusCode.CANCELLED, grpc.StatusCode.UNKNOWN)
    assert served(link)


def test_a_method_that_is_not_there(channel: grpc.Channel, link: ServerLink) -> None:
    with pytest.raises(grpc.RpcError) as error:
        channel.unary_unary(f"/{SERVICE}/Pickle")(b"", timeout=60)
    assert error.value.code() is grpc.StatusCode.UNIMPLEMENTED
    assert served(link)


def unfinished(messages: list[bytes], sent: threading.Event) -> Iterator[bytes]:
    """More seems to come after these, for a while."""
    yield from messages
    sent.set()
    time.sleep(0.2)


def test_those_who_leave_in_the_middle(channel: grpc.Channel, link: ServerLink) -> None:
    head = encode(PutBlob(job="j", blob=Blob(digest="0" * 64, size=10**9)))
    for taken in range(1, 8):
        sent = threading.Event()
        call = channel.stream_unary(f"/{SERVICE}/Put").future(unfinished([head, *[bytes(2**18)] * taken], sent))
        assert sent.wait(60)
        call.cancel()
        following = channel.unary_stream(f"/{SERVICE}/Follow")(encode(FollowLog(job="j")))
        next(following)
        following.cancel()
    assert served(link)


def dial(server: TransportServer) -> socket.socket:
    host, _, port = host_and_port(server.url).partition(":")
    return socket.create_connection((host, int(port)), timeout=60)


def test_noise_instead_of_tls(server: TransportServer, link: ServerLink) -> None:
    rng = random.Random(0)
    for _ in range(20):
        with dial(server) as plain, suppress(OSError):
            plain.sendall(rng.randbytes(rng.randrange(1, 2000)))
            plain.shutdown(socket.SHUT_WR)
            plain.recv(100)
    assert served(link)


def test_noise_instead_of_http(server: TransportServer, link: ServerLink, tmp_path: Path) -> None:
    tls = papers("alpha")
    for name, content in (("certificate", tls.certificate), ("key", tls.key), ("authority", tls.authority)):
        (tmp_path / name).write_bytes(content)
    context = ssl.create_default_context(cafile=str(tmp_path / "authority"))
    context.load_cert_chain(tmp_path / "certificate", tmp_path / "key")
    context.set_alpn_protocols(["h2"])
    rng = random.Random(1)
    for preface in (b"", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"):
        for _ in range(20):
            with context.wrap_socket(dial(server), server_hostname="127.0.0.1") as secure, suppress(OSError):
                secure.sendall(preface + rng.randbytes(rng.randrange(1, 2000)))
                secure.recv(1000)
    assert served(link)


def test_somebody_who_connects_and_says_nothing(server: TransportServer, link: ServerLink) -> None:
    silent = [dial(server) for _ in range(30)]
    assert served(link)
    for each in silent:
        each.close()


def test_without_certificate_there_is_no_answer(server: TransportServer, link: ServerLink) -> None:
    credentials = grpc.ssl_channel_credentials(papers("alpha").authority)
    with grpc.secure_channel(host_and_port(server.url), credentials) as channel:
        error = attempt(channel, "Call", [encode(VALID["Call"][0])])
        assert error is not None
        assert error.code() is grpc.StatusCode.UNAVAILABLE
    assert served(link)
