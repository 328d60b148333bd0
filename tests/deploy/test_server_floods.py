"""Whoever asks for too much, or says nothing at all: the server stays small, and others go on working."""

import asyncio
import re
import select
import socket
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from pathlib import Path

import pytest
from chaos_proxy import unsteady
from papers import kit_of
from serving import Person, ScriptedSite, ServerProcess, eventually, federation, job_config, project_of
from test_server_bounds import peak_mb
from wiring import SpoolService, papers, serving

from waiting import PATIENCE
from winnow.deploy.client.free_port import free_port
from winnow.deploy.trust.peer_identity import Peer, utc_now
from winnow.deploy.trust.provisioning import open_provisioner
from winnow.deploy.wire import grpc_server
from winnow.deploy.wire.atomic_files import CHUNK
from winnow.deploy.wire.concurrency_limits import MAX_REQUESTS_PER_PARTY, MAX_UNREAD_PER_PARTY, RequestLimiter
from winnow.deploy.wire.errors import RequestRefusedError, TooManyRequestsError
from winnow.deploy.wire.message_codec import MAX_MESSAGE
from winnow.deploy.wire.messages import AbortJob, Acknowledgement, FollowLog, GetStatus
from winnow.deploy.wire.request_frontend import RequestFrontend
from winnow.deploy.wire.transport_registry import open_link

FLOOD = """
import sys, threading, time
from pathlib import Path
import grpc
from winnow.deploy.trust.kit import Kit
from winnow.deploy.wire.message_codec import encode
from winnow.deploy.wire.grpc_common import REFUSAL_KEY, decode_refusal
from winnow.deploy.wire.messages import FollowLog

kit, address = Kit.load(sys.argv[1]), sys.argv[2]
credentials = grpc.ssl_channel_credentials(kit.authority_pem, kit.key_pem, kit.certificate_pem)
large, told = b"x" * (4 << 20), threading.Event()

def refused(call):
    try:
        call.result()
    except grpc.RpcError as error:
        if error.code() is grpc.StatusCode.RESOURCE_EXHAUSTED and not told.is_set():
            told.set()
            reasons = [decode_refusal(value).reason for key, value in error.trailing_metadata() if key == REFUSAL_KEY]
            print(*reasons, flush=True)

while True:
    options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
    channels = [grpc.secure_channel(address, credentials, options) for _ in range(8)]
    calls = []
    for channel in channels:
        follow, call = channel.unary_stream("/winnow.Wire/Follow"), channel.unary_unary("/winnow.Wire/Call")
        for _ in range(60):
            calls.append(follow(encode(FollowLog(job="waiting"))))
        for _ in range(30):
            calls.append(call.future(large, timeout=20))
    for each in calls:
        threading.Thread(target=refused, args=(each,), daemon=True).start()
    time.sleep(5)
    for channel in channels:
        channel.close()
"""
ROOM = 200
"""Megabytes. What the flood has under way at a time is 960."""


@contextmanager
def a_server(folder: Path) -> Iterator[tuple[Path, int, ServerProcess]]:
    port = free_port()
    kits = federation(folder / "kits", (port,))
    config = folder / "server.toml"
    config.write_text("join_wait = 0.2\n")
    with ServerProcess(kits / "kits" / "server-1", config, folder / "log") as server:
        yield kits, port, server


@pytest.mark.slow(part="attacks")
def test_a_member_that_floods_the_server_hurts_nobody(tmp_path: Path) -> None:
    with a_server(tmp_path) as (kits, port, server):
        endpoint = f"grpc://127.0.0.1:{port}"
        with (
            ScriptedSite(kit_of(kits, "plant-a"), (endpoint,)),
            Person(kit_of(kits, "the-lead"), (endpoint,)) as person,
        ):
            person.submit("waiting", tmp_path, job_config(1, "sites = ['plant-c']"))
            before = peak_mb(server)
            command = [sys.executable, "-c", FLOOD, str(kits / "kits" / "the-member"), f"127.0.0.1:{port}"]
            with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as flood:
                try:
                    assert flood.stdout is not None
                    assert select.select([flood.stdout], [], [], PATIENCE)[0], "the flood was never refused"
                    reason = flood.stdout.readline()
                    person.submit("job", tmp_path, job_config(3, "sites = ['plant-a']"))
                    person.wait("job", "finished", seconds=60)
                finally:
                    flood.kill()
            assert re.match(r"member the-member of Institute already has \d+ .*; wait for one to", reason)
            assert peak_mb(server) - before < ROOM


def test_messages_under_way_are_counted_by_party(tmp_path: Path) -> None:
    counted = RequestLimiter(calls=2)
    alpha, beta = Peer.of_pem(papers("alpha").certificate), Peer.of_pem(papers("beta").certificate)
    with counted.request(alpha), counted.request(alpha), counted.message(alpha, MAX_MESSAGE):
        with (
            pytest.raises(TooManyRequestsError, match="site alpha of ward already has 2 open requests"),
            counted.request(alpha),
        ):
            pass
        with (
            pytest.raises(TooManyRequestsError, match="already has 4194304 bytes of messages in progress"),
            counted.message(alpha, 2 << 20),
        ):
            pass
        with counted.request(beta), counted.message(beta, MAX_MESSAGE):
            pass
    with counted.request(alpha), counted.message(alpha, MAX_MESSAGE):
        pass


def test_of_messages_that_are_sent_by_halves_few_are_read(tmp_path: Path) -> None:
    """What is read may be buffered until it is whole: megabytes for each."""
    alpha, being_read, at_once = papers("alpha").certificate, set[int](), list[int]()
    frontend = RequestFrontend(SpoolService(tmp_path), Peer.of_pem, lambda peer: None, stall=0.5)

    async def half(number: int) -> AsyncIterator[bytes]:
        being_read.add(number)
        at_once.append(len(being_read))
        try:
            await asyncio.Event().wait()
            yield b""
        finally:
            being_read.discard(number)

    async def flood() -> None:
        requests = [frontend.call(alpha, half(number)) for number in range(MAX_REQUESTS_PER_PARTY)]
        for refused in await asyncio.gather(*requests, return_exceptions=True):
            assert isinstance(refused, RequestRefusedError)
        assert max(at_once) == MAX_UNREAD_PER_PARTY

    asyncio.run(flood())


def test_many_requests_over_a_slow_network_are_all_answered(tmp_path: Path) -> None:
    """As the jobs of one site make them: all are on their way at the same time."""
    with (
        serving("grpc://127.0.0.1:0", SpoolService(tmp_path)) as server,
        unsteady(server.url, rate=CHUNK) as (url, _),
        ThreadPoolExecutor(12) as threads,
        closing(open_link(url, papers("alpha"))) as link,
    ):
        answers = [threads.submit(link.call, AbortJob(job="j", reason="x" * 60_000)) for _ in range(12)]
        assert {type(answer.result()) for answer in answers} == {Acknowledgement}


def test_a_connection_that_says_nothing_is_hung_up_on(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    quick = [(key, 1000 if key == "grpc.server_handshake_timeout_ms" else value) for key, value in grpc_server.OPTIONS]
    monkeypatch.setattr(grpc_server, "OPTIONS", quick)
    with serving("grpc://127.0.0.1:0", SpoolService(tmp_path)) as server:
        silent = socket.create_connection(("127.0.0.1", int(server.url.rpartition(":")[2])))
        silent.settimeout(20)
        with silent:
            while silent.recv(1024):
                pass


def test_strangers_leave_the_server_descriptors_for_its_files(tmp_path: Path) -> None:
    """They have no certificate; but each of their connections is a descriptor, until the server hangs up."""
    with a_server(tmp_path) as (kits, port, server):
        server.kill()
        server._command = ["sh", "-c", 'ulimit -n 300 && exec "$@"', "-", *server._command]
        server.start()
        endpoint, over = f"grpc://127.0.0.1:{port}", threading.Event()

        def flood() -> None:
            while not over.is_set():
                with ExitStack() as silent:
                    for _ in range(400):
                        silent.enter_context(socket.create_connection(("127.0.0.1", port)))
                    over.wait(5)

        with (
            Person(kit_of(kits, "the-lead"), (endpoint,)) as person,
            ScriptedSite(kit_of(kits, "plant-a"), (endpoint,)),
            ThreadPoolExecutor(1) as threads,
        ):
            try:
                person.submit("before", tmp_path, job_config(1, "sites = ['plant-a']"))
                person.wait("before", "finished")
                flooding = threads.submit(flood)
                eventually(lambda: len(list(Path(f"/proc/{server.process.pid}/fd").iterdir())) > 140)
                person.submit("job", tmp_path, job_config(3, "sites = ['plant-a']"))
                person.wait("job", "finished", seconds=60)
            finally:
                over.set()
            flooding.result()


@pytest.mark.slow(part="attacks")
def test_connections_that_say_nothing_are_hung_up_on(tmp_path: Path) -> None:
    with a_server(tmp_path) as (kits, port, _):
        endpoint = f"grpc://127.0.0.1:{port}"
        with (
            Person(kit_of(kits, "the-lead"), (endpoint,)) as person,
            Person(kit_of(kits, "the-admin"), (endpoint,)) as newcomer,
            ExitStack() as stack,
        ):
            person.link.call(GetStatus())
            begun = time.monotonic()
            silent = [stack.enter_context(socket.create_connection(("127.0.0.1", port))) for _ in range(200)]
            assert newcomer.link.call(GetStatus()).leader == "server-1"
            for each in silent:
                each.settimeout(max(0.1, begun + 60 - time.monotonic()))
                while each.recv(1024):
                    pass


def test_who_is_revoked_hears_no_more_and_is_asked_no_more(tmp_path: Path) -> None:
    """A log that is being followed ends, though nothing new is in it, and so does the waiting of a site."""
    with a_server(tmp_path) as (kits, port, _):
        endpoint = f"grpc://127.0.0.1:{port}"
        with (
            ThreadPoolExecutor(1) as threads,
            ScriptedSite(kit_of(kits, "plant-a"), (endpoint,)) as site,
            Person(kit_of(kits, "the-lead"), (endpoint,)) as person,
        ):
            person.submit("waiting", tmp_path, job_config(1, "sites = ['plant-c']"))
            eventually(lambda: site.session)
            begun = threading.Event()

            def follow() -> str:
                try:
                    for _ in person.link.follow(FollowLog(job="waiting")):
                        begun.set()
                except RequestRefusedError as refused:
                    return refused.reason
                return "the log ended"

            following = threads.submit(follow)
            assert begun.wait(PATIENCE)
            with open_provisioner(kits, project_of((port,)), None, utc_now()) as workshop:
                for name in ("the-lead", "plant-a"):
                    list(workshop.revoke(name))
            assert "was revoked" in following.result(60)
            assert eventually(lambda: [each for each in site.refusals if "was revoked" in each])
