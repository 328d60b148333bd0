"""A federation with real certificates for the tests of the server: sites are threads that do as they are told."""

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from hashlib import sha256
from itertools import pairwise
from pathlib import Path
from typing import Any, Self
from uuid import uuid4

import msgspec
from papers import a_project, kit_of, provision
from process_trees import tree, wait_until_ended
from server_process import RUNNER
from sqlalchemy import create_engine, text

from waiting import PATIENCE, eventually
from winnow.deploy.jobs.bundle_format import Bundle, write_bundle
from winnow.deploy.server.app import WinnowServer
from winnow.deploy.server.served_pages import ServePages
from winnow.deploy.trust.kit import Kit
from winnow.deploy.trust.project_file import Project
from winnow.deploy.trust.signing import sign
from winnow.deploy.wire.atomic_files import blob_of
from winnow.deploy.wire.blob_transfer import upload_blob
from winnow.deploy.wire.errors import RequestRefusedError, UnreachableError
from winnow.deploy.wire.messages import (
    PROTOCOLS,
    AssignTask,
    Blob,
    ClientResult,
    DataDescription,
    DeployJob,
    DeployResult,
    FetchBlob,
    GetJobResult,
    Hello,
    JobInfo,
    ListJobs,
    Poll,
    PutBlob,
    Resources,
    SiteInstruction,
    StopJob,
    SubmitJob,
    SubmitResult,
)
from winnow.deploy.wire.reconnecting_link import Backoff, ReconnectingLink
from winnow.deploy.wire.transport_interface import ServerLink, Tls
from winnow.deploy.wire.transport_registry import open_link

SITES = ("plant-a", "plant-b", "plant-c")
MEMBERS = {"plant-a": 2, "plant-b": 2}
WANTED = "sites = ['plant-a', 'plant-b']"
PLENTY = Resources(cpus=4.0, memory_mb=4096, gpus=0)
STALL = 4.0
"""Seconds after which a server that is there but says nothing is given up. The long poll takes a heartbeat longer."""
QUICK = Backoff(first=0.05, longest=0.3)


def project_of(ports: tuple[int, ...]) -> Project:
    """Servers at these ports, three sites, and a person of each role."""
    servers = [
        {"name": f"server-{index}", "organisation": "Institute", "hosts": ["127.0.0.1"], "port": port}
        for index, port in enumerate(ports, start=1)
    ]
    sites = [{"name": name, "organisation": name.title()} for name in SITES]
    return a_project(servers=servers, sites=sites)


def federation(folder: Path, ports: tuple[int, ...] = (8443,)) -> Path:
    """The kits of such a project."""
    provision(folder, project_of(ports))
    return folder


def tls(kit: Kit) -> Tls:
    return Tls(certificate=kit.certificate_pem, key=kit.key_pem, authority=kit.authority_pem)


def link_to(kit: Kit, *endpoints: str, retry_seconds: float | None = PATIENCE) -> ReconnectingLink:
    return ReconnectingLink(
        endpoints, lambda url: open_link(url, tls(kit), stall=STALL), backoff=QUICK, retry_seconds=retry_seconds
    )


def answer_of(site: str, client: int, number: int) -> bytes:
    return f"{site}/{client}@{number}".encode()


def undisturbed(rounds: int, clients: dict[str, int]) -> str:
    """The last checkpoint of a job of the fake runner, worked out without it."""
    owners = [site for site, count in clients.items() for _ in range(count)]
    lines = []
    for number in range(1, rounds + 1):
        values = " ".join(answer_of(site, client, number).decode() for client, site in enumerate(owners))
        lines.append(f"{number}: {values}\n")
    return "".join(lines)


@dataclass
class ScriptedSite:
    """A site's side of the conversation, in a thread: it accepts jobs and answers tasks unless told otherwise."""

    kit: Kit
    endpoints: tuple[str, ...]
    data: DataDescription = field(default_factory=lambda: DataDescription(sizes=[5, 6]))
    resources: Resources = PLENTY
    refuses: str = ""
    answers: bool = True
    names: tuple[str, ...] = ("turbine",)
    delay: float = 0.0
    orders: list[SiteInstruction] = field(default_factory=list)
    refusals: list[str] = field(default_factory=list)
    jobs: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.session = ""
        self._stopping = threading.Event()
        self._link = link_to(self.kit, *self.endpoints, retry_seconds=None)
        self._thread = threading.Thread(target=self._run, name=self.kit.name, daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopping.set()
        self._link.close()
        self._thread.join(PATIENCE)
        assert not self._thread.is_alive()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def link(self) -> ServerLink:
        return self._link

    def _run(self) -> None:
        while not self._stopping.is_set():
            try:
                self._converse()
            except RequestRefusedError as refused:
                self.refusals.append(refused.reason)
                time.sleep(0.05)
            except UnreachableError:
                time.sleep(0.05)

    def hello(self, **changes: Any) -> Hello:
        usual: dict[str, Any] = {
            "protocols": list(PROTOCOLS),
            "winnow_version": "test",
            "data": list(self.names),
            "resources": self.resources,
            "clock": time.time(),
            "jobs": sorted(self.jobs),
            "certificate": self.kit.certificate_pem,
        }
        return Hello(**{**usual, **changes})

    def _converse(self) -> None:
        self.session = self._link.call(self.hello()).session
        received = 0
        while not self._stopping.is_set():
            orders = self._link.call(
                Poll(session=self.session, received=received, free=self.resources), timeout=STALL + 5.0
            )
            for number, order in enumerate(orders.instructions, orders.first_number):
                self.orders.append(order)
                self.obey(order)
                received = number

    def obey(self, order: SiteInstruction) -> None:
        if isinstance(order, DeployJob):
            self._join(order)
        elif isinstance(order, AssignTask) and self.answers:
            time.sleep(self.delay)
            for client in order.task.clients:
                with suppress(RequestRefusedError):
                    self.give(order.job, order.task.id, client, answer_of(self.kit.name, client, order.task.round))
        elif isinstance(order, StopJob):
            self.jobs.discard(order.job)

    def _join(self, order: DeployJob) -> None:
        fetched = b"".join(self._link.fetch(FetchBlob(job=order.job, blob=order.bundle)))
        if sha256(fetched).hexdigest() != order.bundle.digest:
            return  # as a real site, which takes no damaged bundle
        self.jobs.add(order.job)
        accepted = not self.refuses
        data = self.data if accepted else None
        with suppress(RequestRefusedError):
            self._link.call(
                DeployResult(session=self.session, job=order.job, accepted=accepted, reason=self.refuses, data=data)
            )

    def answer(self, job: str, task: str, client: int, content: bytes, **changes: Any) -> ClientResult:
        blob = Blob(digest=sha256(content).hexdigest(), size=len(content))
        return ClientResult(job=job, task=task, client=client, blob=blob, **changes)

    def give(self, job: str, task: str, client: int, content: bytes, **changes: Any) -> Any:
        answer = self.answer(job, task, client, content, **changes)
        assert answer.blob is not None
        self._link.put(PutBlob(job=job, blob=answer.blob), iter([content]))
        return self._link.call(SubmitResult(session=self.session, result=answer), timeout=STALL)


@dataclass
class Person:
    """A user at the command line. Leaving its context closes its link."""

    kit: Kit
    endpoints: tuple[str, ...]

    def __post_init__(self) -> None:
        self.link = link_to(self.kit, *self.endpoints)

    def close(self) -> None:
        self.link.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def submit(self, job: str, folder: Path, config: str, **files: bytes) -> Blob:
        bundle = signed(self.kit, config, **files)
        path = folder / f"{job}-{self.kit.name}.bundle"
        path.write_bytes(write_bundle(bundle))
        blob = blob_of(path)
        upload_blob(self.link, job, path, blob)
        self.link.call(SubmitJob(job=job, bundle=blob))
        return blob

    def state(self, job: str) -> JobInfo:
        return self.link.call(ListJobs(job=job), timeout=STALL).jobs[0]

    def wait(self, job: str, *statuses: str, seconds: float = PATIENCE) -> JobInfo:
        return eventually(
            lambda: state if (state := self.state(job)).status in statuses else None,
            lambda: f"{job} is {self.state(job)}",
            seconds,
        )


def signed(kit: Kit, config: str, *, ago: float = 0.0, **files: bytes) -> Bundle:
    """`ago` is how many seconds since."""
    bundle = Bundle(config=config, files=dict(files), issued=time.time() - ago)
    signature = sign(kit, bundle.signed)
    return msgspec.structs.replace(bundle, certificate=signature.certificate, signature=signature.value)


def job_config(rounds: int = 3, job: str = "", fake: str = "") -> str:
    data = "[data]\nname = 'turbine'"
    return f"name = 'trial'\nrounds = {rounds}\n{data}\n[job]\n{job}\n[fake]\nrounds = {rounds}\n{fake}\n"


@contextmanager
def server_here(kit: Kit, config: Path, serve_pages: ServePages | None = None) -> Iterator[WinnowServer]:
    """A server in a thread of this process, reached in memory."""
    server = WinnowServer(kit, config, runner=RUNNER, serve_pages=serve_pages)
    stopping = Future[Callable[[], object]]()

    async def run() -> None:
        stop = asyncio.Event()
        stopping.set_result(partial(asyncio.get_running_loop().call_soon_threadsafe, stop.set))
        await server.run(stop)

    thread = threading.Thread(target=lambda: asyncio.run(run()), name="server")
    thread.start()
    try:
        yield server
    finally:
        with suppress(RuntimeError):  # it has stopped by itself, and its loop is closed
            stopping.result(PATIENCE)()
        thread.join(PATIENCE)
        assert not thread.is_alive()


def of(kind: type, site: ScriptedSite) -> list[Any]:
    return [order for order in site.orders if isinstance(order, kind)]


@dataclass
class World:
    """A server in memory, and those who come to it."""

    folder: Path
    kits: Path
    url: str
    made: list[ScriptedSite] = field(default_factory=list)
    people: list[Person] = field(default_factory=list)

    def kit(self, name: str) -> Kit:
        return kit_of(self.kits, name)

    def site(self, name: str, **settings: Any) -> ScriptedSite:
        site = ScriptedSite(self.kit(name), (self.url,), **settings)
        self.made.append(site)
        return site

    def person(self, name: str = "the-lead") -> Person:
        person = Person(kit_of(self.kits, name), (self.url,))
        self.people.append(person)
        return person

    def close(self) -> None:
        for site in self.made:
            site.stop()
        for person in self.people:
            person.close()

    def submit(self, config: str, job: str = "job") -> Person:
        person = self.person()
        person.submit(job, self.folder, config)
        return person


@contextmanager
def a_world(
    kits: Path,
    folder: Path,
    settings: str = "",
    join: float = 0.5,
    serve_pages: ServePages | None = None,
    lease: float = 60.0,
) -> Iterator[World]:
    """Run a server. Its lease is long: on a busy machine a server may be late to renew it, and then does not lead."""
    url = f"memory://{uuid4().hex}"
    config = folder / "server.toml"
    config.write_text(f"address = '{url}'\nheartbeat = 0.5\njoin_wait = {join}\nlease = {lease}\n{settings}")
    world = World(folder, kits, url)
    with server_here(kit_of(kits, "server-1"), config, serve_pages), closing(world):
        yield world


class ServerProcess:
    """A server that can be killed. Leaving its context kills it."""

    def __init__(self, kit: Path, config: Path, log: Path) -> None:
        self._command = [sys.executable, str(Path(__file__).with_name("server_process.py")), str(kit), str(config)]
        self.log = log
        self.start()

    def start(self) -> None:
        with self.log.open("ab") as output:
            self.process = subprocess.Popen(self._command, stdout=output, stderr=output)

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def kill(self) -> None:
        """Kill it, and wait until its jobs' processes have noticed. May be called twice."""
        jobs = tree(self.process.pid) if self.process.poll() is None else set()
        self.process.kill()
        self.process.wait()
        wait_until_ended(jobs)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.kill()


@contextmanager
def sites(kits: Path, *endpoints: str) -> Iterator[list[ScriptedSite]]:
    made = [ScriptedSite(kit_of(kits, name), endpoints) for name in SITES[:2]]
    try:
        yield made
    finally:
        for site in made:
            site.stop()


def rounds_in(url: str) -> list[tuple[int, int]]:
    engine = create_engine(url)
    with engine.connect() as connection:
        rows = connection.execute(text("SELECT number, token FROM rounds ORDER BY number")).all()
    engine.dispose()
    return [(row[0], row[1]) for row in rows]


def check_result(person: Person, rounds: int) -> None:
    result = person.link.call(GetJobResult(job="job"))
    fetched = b"".join(person.link.fetch(FetchBlob(job="job", blob=result.checkpoint))).decode()
    assert fetched == undisturbed(rounds, MEMBERS)
    events = b"".join(person.link.fetch(FetchBlob(job="job", blob=result.events))).decode().splitlines()
    assert events == [f'{{"round":{number}}}' for number in range(1, rounds + 1)]


def check_rounds(url: str, rounds: int) -> None:
    found = rounds_in(url)
    assert [number for number, _ in found] == list(range(1, rounds + 1))
    assert all(before[1] <= after[1] for before, after in pairwise(found)), "tokens never go back"
