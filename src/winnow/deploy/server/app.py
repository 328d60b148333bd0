"""A server put together from its kit and its configuration, and run until it is told to stop."""

import asyncio
import gc
import logging
import resource
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from importlib.metadata import version
from pathlib import Path
from urllib.parse import urlsplit

from cryptography import x509

from winnow.core import ConfigError
from winnow.deploy.fence.launch import RUNNER
from winnow.deploy.server.audit import shared_log
from winnow.deploy.server.commands import Trust
from winnow.deploy.server.config import CONFIG, ServerConfig, read_config
from winnow.deploy.server.database import Database
from winnow.deploy.server.journal import Auditor
from winnow.deploy.server.lease import Lease
from winnow.deploy.server.metrics import ServerCollector, Traffic, expose
from winnow.deploy.server.records import Records
from winnow.deploy.server.reign import Estate
from winnow.deploy.server.service import ServerService
from winnow.deploy.server.spare import Spare
from winnow.deploy.server.throne import Throne
from winnow.deploy.trust.audit import AuditLog
from winnow.deploy.trust.audit_file import AUDIT_FILE, open_audit
from winnow.deploy.trust.errors import IdentityError
from winnow.deploy.trust.files import own_files_only, private_folder
from winnow.deploy.trust.identity import Peer, recogniser
from winnow.deploy.trust.kit import Kit
from winnow.deploy.trust.revocation import Revocations
from winnow.deploy.trust.server_policy import watch_server_policy
from winnow.deploy.trust.watched import Watched
from winnow.deploy.wire.drivers import serve
from winnow.deploy.wire.heap import keep_freed_chunks
from winnow.deploy.wire.transport import Admit, Tls

log = logging.getLogger(__name__)

THREADS = 32
"""For files and the database: so many may wait for a disk at the same time."""
GRACE = 1.0
"""Seconds that requests under way have when the server stops."""


class WinnowServer:
    """`config_path` is the operator's file; the one beside the kit, if there is any, unless told otherwise."""

    def __init__(self, kit: Kit, config_path: Path | None = None, *, runner: str = RUNNER) -> None:
        path = config_path or kit.path / CONFIG
        self._kit = kit
        self.config = read_config(path, required=config_path is not None)
        self.state = self.config.state_folder(path.parent)
        private_folder(self.state)
        url = self.config.database_url(path.parent)
        self.database = Database(url, patience=self.config.lease * 2 / 3)  # no standby can take over earlier
        self.address = own_address(kit, self.config)
        self._runner = runner

    def migrate(self) -> None:
        self.database.migrate()

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set."""
        kit, config = self._kit, self.config
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(max_workers=THREADS))
        await asyncio.to_thread(self.migrate)
        records, traffic = Records(database=self.database), Traffic()
        lease = Lease(self.database, server=kit.name, address=self.address, seconds=config.lease)
        service = ServerService(name=kit.name, version=version("winnow"), lease=lease, records=records)
        revocations = kit.watch_revocations()
        identify, admit = recogniser(kit.authority), _admit(revocations)
        server = serve(
            self._listening(), Tls.of(kit), service, identify=identify, admit=admit, calls=config.limits.calls
        )
        with ExitStack() as closing:
            closing.callback(self.database.close)
            audit = _open_audit(self.database, kit)
            closing.callback(audit.close)
            spare = self._spare()
            closing.callback(spare.close)
            throne = Throne(self._estate(revocations, audit, traffic, spare), lease, service)
            if config.metrics is not None:
                closing.enter_context(expose(config.metrics, ServerCollector(service, records, traffic)))
            await server.start()
            log.info("server %s of %s listens at %s, database %s", kit.name, kit.project, server.url, self.database)
            occupying = asyncio.create_task(throne.occupy())
            try:
                await _first(stop, occupying)
            finally:
                occupying.cancel()
                with suppress(asyncio.CancelledError):
                    await occupying
                await server.stop(GRACE)
        log.info("server %s has stopped", kit.name)

    def _spare(self) -> Spare:
        """Where servers share a database, each may have to take up jobs at any time."""
        spare = Spare()
        if self.database.shared and self._runner == RUNNER:
            spare.keep()
        return spare

    def _estate(self, revocations: Watched[Revocations], audit: AuditLog, traffic: Traffic, spare: Spare) -> Estate:
        policy = watch_server_policy(self._kit.path)
        return Estate(
            config=self.config,
            state=self.state,
            database=self.database,
            trust=Trust(
                authority=self._kit.authority,
                revocations=revocations.current,
                policy=policy.current,
                job_days=self.config.job_days,
            ),
            auditor=_auditor(audit, self._kit),
            runner=self._runner,
            spare=spare,
            moved=traffic,
        )

    def _listening(self) -> str:
        where = urlsplit(self.address)
        if where.port is None:
            return self.address
        return f"{where.scheme}://{self.config.listen or f'0.0.0.0:{where.port}'}"


def _admit(revocations: Watched[Revocations]) -> Admit:
    def admit(peer: Peer) -> str | None:
        try:
            revocations.current().check(peer)
        except IdentityError as error:
            return str(error)
        return None

    return admit


async def _first(stop: asyncio.Event, task: "asyncio.Task[None]") -> None:
    waiting = asyncio.create_task(stop.wait())
    await asyncio.wait([waiting, task], return_when=asyncio.FIRST_COMPLETED)
    waiting.cancel()


def own_address(kit: Kit, config: ServerConfig) -> str:
    """Which of the project's endpoints is this server's: the one whose host its certificate names."""
    if config.address is not None:
        return config.address
    hosts = _hosts(kit.certificate)
    own = [endpoint for endpoint in kit.endpoints if urlsplit(endpoint).hostname in hosts]
    if len({urlsplit(endpoint).port for endpoint in own}) != 1:
        raise ConfigError(
            f"which of {', '.join(kit.endpoints)} is server {kit.name}? say address = 'grpc://HOST:PORT' in {CONFIG}"
        )
    return own[0]


def _hosts(certificate: x509.Certificate) -> set[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        return set()
    return {str(name) for kind in (x509.DNSName, x509.IPAddress) for name in names.get_values_for_type(kind)}


def _open_audit(database: Database, kit: Kit) -> AuditLog:
    """The chain lies in the database if servers share it, else in the kit."""
    return shared_log(database, kit) if database.shared else open_audit(kit.path / AUDIT_FILE, kit)


def _auditor(audit: AuditLog, kit: Kit) -> Auditor:
    def note(peer: Peer | None, what: str, target: str, outcome: str) -> None:
        audit.append_for(peer or kit.peer, what, target, outcome)

    return note


def run_server(kit: Path, config: Path | None, *, migrate_only: bool = False) -> None:
    """What the command does. SIGTERM and SIGINT stop the server in an orderly way."""
    own_files_only()
    server = WinnowServer(Kit.load(kit, "server"), config)
    if migrate_only:
        server.migrate()
        log.info("the database %s is up to date", server.database)
        return
    keep_freed_chunks()
    gc.freeze()  # what was loaded is never garbage; the collector then comes to what may be before it has piled up
    asyncio.run(until_signalled(server))


def _allow_all_open_files() -> None:
    """Each connection is one, and shells begin with 1024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def until_signalled(server: WinnowServer) -> None:
    _allow_all_open_files()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await server.run(stop)
