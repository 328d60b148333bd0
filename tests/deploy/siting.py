"""A site's agent against a scripted server, with real certificates, over any transport."""

import asyncio
import json
import tempfile
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from papers import a_project, kit_of, provision
from transport_server import running_server

from waiting import PATIENCE, eventually
from winnow.deploy.jobs.bundle_format import Bundle, write_bundle
from winnow.deploy.site.agent import Agent
from winnow.deploy.site.config import load_config
from winnow.deploy.trust.kit import Kit
from winnow.deploy.trust.peer_identity import Peer
from winnow.deploy.trust.project_file import Project
from winnow.deploy.trust.signing import sign
from winnow.deploy.wire.blob_transfer_server import read_ahead, receive_blob, uploaded_size
from winnow.deploy.wire.errors import RequestRefusedError
from winnow.deploy.wire.message_codec import encode
from winnow.deploy.wire.messages import (
    PROTOCOLS,
    Acknowledgement,
    AssignTask,
    Blob,
    DeployJob,
    DeployResult,
    FetchBlob,
    FollowLog,
    GetUploadedSize,
    Hello,
    LogLine,
    PeerSite,
    Poll,
    PutBlob,
    Request,
    Resources,
    Response,
    Settle,
    SiteInstruction,
    SiteInstructions,
    StopJob,
    SubmitResult,
    UploadedSize,
    Welcome,
    WireTask,
)
from winnow.deploy.wire.reconnecting_link import Backoff, ReconnectingLink
from winnow.deploy.wire.resumable_blob_files import BlobFolder
from winnow.deploy.wire.task_digest import NO_TASK_ID, with_task_id
from winnow.deploy.wire.transport_interface import Tls
from winnow.deploy.wire.transport_registry import open_link

WORKER = str(Path(__file__).with_name("site_worker.py"))
POLICY = """
[[jobs]]
people = ["the-lead"]
data = ["turbines"]
own_code = true
"""
SITE = """
[resources]
cpus = 2
memory_mb = 2000

[data.turbines]
file = "secret-place/rows.csv"
targets = ["flow"]
"""
CONFIG = '[data]\nname = "turbines"\n'
QUICK = Backoff(first=0.05, longest=0.2)


@cache
def _ordinary() -> list[tuple[Path, int, bytes | None]]:
    """The folders and files of the ordinary project, made once: that takes most of a second."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        provision(folder, a_project())
        return [
            (path.relative_to(folder), path.stat().st_mode, None if path.is_dir() else path.read_bytes())
            for path in sorted(folder.rglob("*"))
        ]


def _copy_ordinary(folder: Path) -> None:
    folder.mkdir(parents=True)
    for path, mode, content in _ordinary():
        copy = folder / path
        copy.mkdir() if content is None else copy.write_bytes(content)
        copy.chmod(mode)


class World:
    """A project's kits, and a site with data and a policy."""

    def __init__(self, folder: Path, policy: str = POLICY, site: str = SITE, project: Project | None = None) -> None:
        _copy_ordinary(folder) if project is None else provision(folder, project)
        self.folder = folder
        self.kit_folder = folder / "kits" / "plant-a"
        (self.kit_folder / "secret-place").mkdir()
        (self.kit_folder / "secret-place" / "rows.csv").write_text("a,flow\n1,2\n3,4\n")
        (self.kit_folder / "site.toml").write_text(site)
        self.allow(policy)

    def allow(self, policy: str) -> None:
        (self.kit_folder / "policy.toml").write_text(policy)

    def kit(self, name: str = "plant-a") -> Kit:
        return kit_of(self.folder, name)

    def tls(self, name: str) -> Tls:
        return Tls.of(self.kit(name))

    def bundle(self, config: str = CONFIG, author: str = "the-lead", *, ago: float = 0.0, **files: str) -> bytes:
        """`ago` is how many seconds since it was signed."""
        code = {name: text.encode() for name, text in files.items()}
        plain = Bundle(config=config, files=code, issued=time.time() - ago)
        signature = sign(self.kit(author), plain.signed)
        return write_bundle(
            msgspec.structs.replace(plain, certificate=signature.certificate, signature=signature.value)
        )

    @property
    def job_folder(self) -> Path:
        return self.kit_folder / "state" / "jobs" / "job-1"

    def neighbours(self) -> list[PeerSite]:
        return [
            PeerSite(site=name, first_client=first, client_count=2, certificate=self.kit(name).certificate_pem)
            for name, first in (("plant-a", 0), ("plant-b", 2))
        ]


class Script:
    """A server that says what the test tells it to, and remembers every byte it heard."""

    def __init__(self, folder: Path) -> None:
        self.spool = BlobFolder(folder)
        self.heard: list[Request] = []
        self.raw: list[bytes] = []
        self.sessions = 0
        self.heartbeat = 0.1
        self.outstanding: list[SiteInstruction] = []
        """What a new session hears again."""
        self.orders: list[SiteInstruction] = []
        self.refuse: Callable[[Request], None] = lambda request: None
        self.spoiled: set[str] = set()
        """Digests of blobs that arrive damaged."""

    async def call(self, peer: Peer, request: Request) -> Response:
        if not isinstance(request, Poll):
            self.heard.append(request)
            self.raw.append(encode(request))
        self.refuse(request)
        match request:
            case Hello():
                self.sessions += 1
                self.orders = list(self.outstanding)
                return Welcome(protocol=PROTOCOLS[0], session=f"s{self.sessions}", heartbeat=self.heartbeat)
            case Poll(session=session, received=received):
                if session != f"s{self.sessions}":
                    raise RequestRefusedError("this session is over")
                until = time.monotonic() + self.heartbeat
                while len(self.orders) <= received and time.monotonic() < until:
                    await asyncio.sleep(0.01)
                return SiteInstructions(first_number=received + 1, instructions=self.orders[received:])
            case GetUploadedSize(blob=blob):
                return uploaded_size(self.spool, blob, peer.name)
        return Acknowledgement()

    async def fetch(self, peer: Peer, request: FetchBlob) -> AsyncIterator[bytes]:
        async for chunk in read_ahead(self.spool.read(request.blob, request.offset)):
            yield b"X" * len(chunk) if request.blob.digest in self.spoiled else chunk

    async def put(self, peer: Peer, head: PutBlob, chunks: AsyncIterator[bytes]) -> UploadedSize:
        self.raw.append(encode(head))

        async def recorded() -> AsyncIterator[bytes]:
            async for chunk in chunks:
                self.raw.append(chunk)
                yield chunk

        return await receive_blob(self.spool, head, recorded(), peer.name)

    async def follow(self, peer: Peer, request: FollowLog) -> AsyncIterator[LogLine]:
        raise RequestRefusedError("nothing to follow")
        yield

    # What tests say and ask ---------------------------------------------------------------------------------------

    def tell(self, *orders: SiteInstruction) -> None:
        self.orders += orders
        self.outstanding += [each for each in orders if not isinstance(each, Settle | StopJob)]

    def hold(self, content: bytes) -> Blob:
        path = self.spool.folder / ".made"
        path.write_bytes(content)
        return self.spool.adopt(path)

    def all_of(self, kind: type) -> list[Any]:
        return [each for each in self.heard if isinstance(each, kind)]

    def wait(self, kind: type, count: int = 1, seconds: float = PATIENCE) -> Any:
        """The last of so many messages of a kind, once they are there."""
        wait_for(lambda: len(self.all_of(kind)) >= count, f"{count} {kind.__name__}", seconds, self)
        return self.all_of(kind)[count - 1]

    def payload(self, given: SubmitResult) -> Any:
        assert given.result.blob is not None, given.result
        return json.loads(self.spool.path(given.result.blob).read_text())


def wait_for(there: Callable[[], bool], what: str, seconds: float = PATIENCE, script: Script | None = None) -> None:
    eventually(there, lambda: f"no {what}; heard {script.heard[-5:] if script else ''}", seconds)


def serving(world: World, script: Script, url: str) -> AbstractContextManager[Any]:
    return running_server(url, world.tls("server-1"), script)


@contextmanager
def agent_at(
    world: World, url: str, worker: str = WORKER, output_filter: str = WORKER, **options: Any
) -> Iterator[Agent]:
    kit = world.kit()
    tls = world.tls("plant-a")
    link = ReconnectingLink([url], lambda each: open_link(each, tls), backoff=QUICK, retry_seconds=2.0)
    agent = Agent(
        kit, load_config(kit.path), link, worker=worker, output_filter=output_filter, backoff=QUICK, **options
    )
    thread = threading.Thread(target=agent.run, name="agent")
    thread.start()
    try:
        yield agent
    finally:
        agent.stop()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def deploy(script: Script, bundle: bytes, **changes: Any) -> DeployJob:
    told = {
        "job": "job-1",
        "submitter": "the-lead",
        "resources": Resources(cpus=1, memory_mb=500),
        **changes,
    }
    return DeployJob(bundle=script.hold(bundle), **told)


def task(
    name: str = "echo", clients: tuple[int, ...] = (0,), settings: Any = None, round: int = 1, **more: Any
) -> AssignTask:
    wire = WireTask(
        id=NO_TASK_ID,
        name=name,
        clients=list(clients),
        round=round,
        version=round,
        settings=json.dumps(settings).encode(),
        **more,
    )
    return AssignTask(job="job-1", task=with_task_id(wire))


def settle(
    *assigned: AssignTask, clients: tuple[int, ...] | None = None, round: int | None = None, over: bool = True
) -> Settle:
    """A round in which these tasks were folded, for some or all of their clients."""
    tasks = {each.task.id: list(each.task.clients if clients is None else clients) for each in assigned}
    number = max(each.task.round for each in assigned) if round is None else round
    return Settle(job="job-1", round=number, tasks=tasks, ended_tasks=list(tasks) if over else [])


__all__ = ["DeployResult", "StopJob", "SubmitResult"]
