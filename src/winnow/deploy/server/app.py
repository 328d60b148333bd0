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
from winnow.deploy.sandbox.launch import RUNNER_MODULE
from winnow.deploy.server.audit_store import shared_audit_log
from winnow.deploy.server.config import CONFIG_FILE, ServerConfig, read_config
from winnow.deploy.server.database import Database
from winnow.deploy.server.job_logs import AuditWriter
from winnow.deploy.server.leader import ServerResources
from winnow.deploy.server.leader_election import LeaderElection
from winnow.deploy.server.lease import Lease
from winnow.deploy.server.prometheus_metrics import PrometheusCollector, TrafficCounter, serve_metrics
from winnow.deploy.server.queries import Queries
from winnow.deploy.server.request_router import RequestRouter
from winnow.deploy.server.user_commands import ServerTrust
from winnow.deploy.server.warm_runner import WarmRunner
from winnow.deploy.trust.audit_log import AuditLog
from winnow.deploy.trust.audit_log_file import AUDIT_FILE, open_audit_log
from winnow.deploy.trust.errors import IdentityError
from winnow.deploy.trust.kit import Kit
from winnow.deploy.trust.peer_identity import Peer, peer_identifier
from winnow.deploy.trust.private_files import make_private_folder, restrict_umask
from winnow.deploy.trust.revocation_list import RevocationList
from winnow.deploy.trust.server_policy import watch_server_policy
from winnow.deploy.trust.watched_file import WatchedFile
from winnow.deploy.wire.malloc_tuning import tune_malloc
from winnow.deploy.wire.transport import Admit, Tls
from winnow.deploy.wire.transport_registry import serve

log = logging.getLogger(__name__)

IO_THREADS = 32
"""For files and the database: so many may wait for a disk at the same time."""
SHUTDOWN_SECONDS = 1.0
"""Seconds that requests under way have when the server stops."""


class WinnowServer:
    """`config_path` is the operator's file; the one beside the kit, if there is any, unless told otherwise."""

    def __init__(self, kit: Kit, config_path: Path | None = None, *, runner: str = RUNNER_MODULE) -> None:
        path = config_path or kit.path / CONFIG_FILE
        self._kit = kit
        self.config = read_config(path, required=config_path is not None)
        self.state = self.config.state_folder(path.parent)
        make_private_folder(self.state)
        url = self.config.database_url(path.parent)
        self.database = Database(url, patience=self.config.lease * 2 / 3)  # no standby can take over earlier
        self.address = own_address(kit, self.config)
        self._runner = runner

    def migrate(self) -> None:
        self.database.migrate()

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set."""
        kit, config = self._kit, self.config
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(max_workers=IO_THREADS))
        await asyncio.to_thread(self.migrate)
        records, traffic = Queries(database=self.database), TrafficCounter()
        lease = Lease(self.database, server=kit.name, address=self.address, seconds=config.lease)
        service = RequestRouter(name=kit.name, version=version("winnow"), lease=lease, records=records)
        revocations = kit.watch_revocations()
        identify, admit = peer_identifier(kit.authority), _admit(revocations)
        server = serve(
            self._listening(), Tls.of(kit), service, identify=identify, admit=admit, calls=config.limits.calls
        )
        with ExitStack() as closing:
            closing.callback(self.database.close)
            audit = _open_audit(self.database, kit)
            closing.callback(audit.close)
            spare = self._spare()
            closing.callback(spare.close)
            throne = LeaderElection(self._estate(revocations, audit, traffic, spare), lease, service)
            if config.metrics is not None:
                closing.enter_context(serve_metrics(config.metrics, PrometheusCollector(service, records, traffic)))
            await server.start()
            log.info("server %s of %s listens at %s, database %s", kit.name, kit.project, server.url, self.database)
            occupying = asyncio.create_task(throne.occupy())
            try:
                await _first(stop, occupying)
            finally:
                occupying.cancel()
                with suppress(asyncio.CancelledError):
                    await occupying
                await server.stop(SHUTDOWN_SECONDS)
        log.info("server %s has stopped", kit.name)

    def _spare(self) -> WarmRunner:
        """Where servers share a database, each may have to take up jobs at any time."""
        spare = WarmRunner()
        if self.database.shared and self._runner == RUNNER_MODULE:
            spare.preload()
        return spare

    def _estate(
        self, revocations: WatchedFile[RevocationList], audit: AuditLog, traffic: TrafficCounter, spare: WarmRunner
    ) -> ServerResources:
        policy = watch_server_policy(self._kit.path)
        return ServerResources(
            config=self.config,
            state=self.state,
            database=self.database,
            trust=ServerTrust(
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


def _admit(revocations: WatchedFile[RevocationList]) -> Admit:
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
            f"which of {', '.join(kit.endpoints)} is server {kit.name}? "
            f"write address = 'grpc://HOST:PORT' in {CONFIG_FILE}"
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
    return shared_audit_log(database, kit) if database.shared else open_audit_log(kit.path / AUDIT_FILE, kit)


def _auditor(audit: AuditLog, kit: Kit) -> AuditWriter:
    def note(peer: Peer | None, what: str, target: str, outcome: str) -> None:
        audit.append_for(peer or kit.peer, what, target, outcome)

    return note


def run_server(kit: Path, config: Path | None, *, migrate_only: bool = False) -> None:
    """What the command does. SIGTERM and SIGINT stop the server in an orderly way."""
    restrict_umask()
    server = WinnowServer(Kit.load(kit, "server"), config)
    if migrate_only:
        server.migrate()
        log.info("the database %s is up to date", server.database)
        return
    tune_malloc()
    gc.freeze()  # what was loaded is never garbage; the collector then comes to what may be before it has piled up
    asyncio.run(run_until_signalled(server))


def _allow_all_open_files() -> None:
    """Each connection is one, and shells begin with 1024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def run_until_signalled(server: WinnowServer) -> None:
    _allow_all_open_files()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await server.run(stop)
