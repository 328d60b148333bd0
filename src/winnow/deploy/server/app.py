"""A server built from its kit and its configuration, and run until it is stopped."""

import asyncio
import gc
import logging
import resource
import signal
from concurrent.futures import ThreadPoolExecutor
from contextlib import AsyncExitStack, closing, suppress
from functools import partial
from pathlib import Path
from urllib.parse import urlsplit

from winnow.core import ConfigError
from winnow.core.installed_package import installed_version
from winnow.deploy.sandbox.child_entry_point import RUNNER_MODULE
from winnow.deploy.server.audit_reading import audit_page
from winnow.deploy.server.audit_store import shared_audit_log
from winnow.deploy.server.config import CONFIG_FILE, ServerConfig, read_config
from winnow.deploy.server.database import Database
from winnow.deploy.server.database_reads import Queries
from winnow.deploy.server.job_log_writer import AuditWriter
from winnow.deploy.server.job_submission import ServerTrust
from winnow.deploy.server.leader_election import LeaderElection
from winnow.deploy.server.leader_services import ServerResources
from winnow.deploy.server.lease import Lease
from winnow.deploy.server.login_links import LoginLinks
from winnow.deploy.server.prometheus_metrics import PrometheusCollector, TrafficCounter, serve_metrics
from winnow.deploy.server.request_router import RequestRouter
from winnow.deploy.server.served_pages import PagesContext, ServePages, pages_address, pages_served
from winnow.deploy.server.warm_runner import WarmRunner
from winnow.deploy.trust.audit_log import AuditLog
from winnow.deploy.trust.audit_log_file import AUDIT_FILE, open_audit_log
from winnow.deploy.trust.certificate_hosts import certificate_hosts
from winnow.deploy.trust.errors import IdentityError
from winnow.deploy.trust.kit import Kit
from winnow.deploy.trust.peer_identity import Peer, peer_identifier
from winnow.deploy.trust.private_file_writing import make_private_folder, restrict_umask
from winnow.deploy.trust.revocation_list import RevocationList
from winnow.deploy.trust.server_policy import watch_server_policy
from winnow.deploy.trust.watched_file import WatchedFile
from winnow.deploy.wire.malloc_tuning import tune_malloc
from winnow.deploy.wire.transport_interface import Admit, Identify, Tls
from winnow.deploy.wire.transport_registry import serve

log = logging.getLogger(__name__)

IO_THREADS = 32
"""For files and the database: so many may wait for a disk at the same time."""
SHUTDOWN_SECONDS = 1.0
"""Seconds that requests under way have when the server stops."""


class WinnowServer:
    """`config_path` is the operator's file; by default the one in the kit, if there is one."""

    def __init__(
        self,
        kit: Kit,
        config_path: Path | None = None,
        *,
        runner: str = RUNNER_MODULE,
        serve_pages: ServePages | None = None,
    ) -> None:
        path = config_path or kit.path / CONFIG_FILE
        self._kit = kit
        self.config = read_config(path, required=config_path is not None)
        self.state = self.config.state_folder(path.parent)
        make_private_folder(self.state)
        url = self.config.database_url(path.parent)
        self.database = Database(url, idle_timeout=self.config.lease * 2 / 3)  # no standby can take over earlier
        self.address = own_address(kit, self.config)
        self._runner = runner
        self._serve_pages = serve_pages
        if self.config.ui is not None and serve_pages is None:
            raise ConfigError(f"{path}: [ui] is set, but this server was started without pages")

    def migrate(self) -> None:
        self.database.migrate()

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop` is set. The database is closed afterwards."""
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(max_workers=IO_THREADS))
        with closing(self.database):
            await asyncio.to_thread(self.migrate)
            await self._serve(stop)

    async def _serve(self, stop: asyncio.Event) -> None:
        kit, config = self._kit, self.config
        queries, traffic = Queries(database=self.database), TrafficCounter()
        lease = Lease(self.database, server=kit.name, address=self.address, seconds=config.lease)
        links = None if config.ui is None else LoginLinks(pages_address(config.ui, kit, self.address))
        router = RequestRouter(name=kit.name, version=installed_version(), lease=lease, queries=queries, links=links)
        revocations = kit.watch_revocations()
        identify, admit = peer_identifier(kit.authority), _admit(revocations)
        server = serve(
            self._bind_address(),
            Tls.of(kit),
            router,
            identify=identify,
            admit=admit,
            calls=config.limits.concurrent_calls,
        )
        async with AsyncExitStack() as stack:
            audit = stack.enter_context(closing(_open_audit(self.database, kit)))
            warm_runner = stack.enter_context(closing(self._warm_runner()))
            resources = self._resources(revocations, audit, traffic, warm_runner)
            election = LeaderElection(resources, lease, router)
            if config.metrics_address is not None:
                stack.enter_context(
                    serve_metrics(config.metrics_address, PrometheusCollector(router, queries, traffic))
                )
            stack.push_async_callback(server.stop, SHUTDOWN_SECONDS)
            await server.start()
            log.info(
                "server %s of project %s is listening at %s (database %s)",
                kit.name,
                kit.project,
                server.url,
                self.database,
            )
            leading = asyncio.create_task(election.run())
            try:
                async with pages_served(
                    self._serve_pages, self._pages(links, resources, identify, admit, router), router
                ):
                    await _first(stop, leading)
            finally:
                leading.cancel()
                with suppress(asyncio.CancelledError):
                    await leading
        log.info("server %s stopped", kit.name)

    def _pages(
        self,
        links: LoginLinks | None,
        resources: ServerResources,
        identify: Identify,
        admit: Admit,
        router: RequestRouter,
    ) -> PagesContext | None:
        if self.config.ui is None or links is None:
            return None
        return PagesContext(
            kit=self._kit,
            config=self.config.ui,
            links=links,
            audit=resources.audit,
            identify=identify,
            admit=admit,
            store=lambda: None if router.leader is None else router.leader.applications,
        )

    def _warm_runner(self) -> WarmRunner:
        """Where servers share a database, each may have to continue jobs at any time."""
        warm_runner = WarmRunner()
        if self.database.shared and self._runner == RUNNER_MODULE:
            warm_runner.preload()
        return warm_runner

    def _resources(
        self,
        revocations: WatchedFile[RevocationList],
        audit: AuditLog,
        traffic: TrafficCounter,
        warm_runner: WarmRunner,
    ) -> ServerResources:
        policy = watch_server_policy(self._kit.path)
        return ServerResources(
            name=self._kit.name,
            config=self.config,
            state_folder=self.state,
            database=self.database,
            trust=ServerTrust(
                authority=self._kit.authority,
                revocations=revocations.current,
                policy=policy.current,
                job_days=self.config.job_days,
            ),
            audit=_audit_writer(audit, self._kit),
            read_audit=partial(audit_page, audit),
            runner=self._runner,
            warm_runner=warm_runner,
            count_traffic=traffic,
        )

    def _bind_address(self) -> str:
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
    """This server's endpoint among the project's: the one whose host its certificate names."""
    if config.address is not None:
        return config.address
    hosts = certificate_hosts(kit.certificate)
    own = [endpoint for endpoint in kit.endpoints if urlsplit(endpoint).hostname in hosts]
    if len({urlsplit(endpoint).port for endpoint in own}) != 1:
        raise ConfigError(
            f"cannot tell which endpoint belongs to server {kit.name}: {', '.join(kit.endpoints)}; "
            f"set address = 'grpc://HOST:PORT' in {CONFIG_FILE}"
        )
    return own[0]


def _open_audit(database: Database, kit: Kit) -> AuditLog:
    """The audit log is in the database if servers share it, else in the kit."""
    return shared_audit_log(database, kit) if database.shared else open_audit_log(kit.path / AUDIT_FILE, kit)


def _audit_writer(audit: AuditLog, kit: Kit) -> AuditWriter:
    def append(peer: Peer | None, what: str, target: str, outcome: str) -> None:
        audit.append_for(peer or kit.peer, what, target, outcome)

    return append


def run_server(
    kit: Path, config: Path | None, *, migrate_only: bool = False, serve_pages: ServePages | None = None
) -> None:
    """What the command does. SIGTERM and SIGINT stop the server gracefully."""
    restrict_umask()
    server = WinnowServer(Kit.load(kit, "server"), config, serve_pages=serve_pages)
    if migrate_only:
        with closing(server.database):
            server.migrate()
        log.info("the database %s is up to date", server.database)
        return
    tune_malloc()
    gc.freeze()  # what is loaded is never garbage, so the collector need not look at it
    asyncio.run(run_until_signalled(server))


def _allow_all_open_files() -> None:
    """Each connection is one, and shells start with a limit of 1024."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))


async def run_until_signalled(server: WinnowServer) -> None:
    _allow_all_open_files()
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await server.run(stop)
