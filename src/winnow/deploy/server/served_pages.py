"""What a server that serves pages gives those who draw them: whom to let in, and a way to ask as that person."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractContextManager, ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import TypeAlias
from urllib.parse import urlsplit
from uuid import uuid4

from winnow.core import WinnowError
from winnow.deploy.server.application_store import ApplicationStore
from winnow.deploy.server.config import PagesConfig
from winnow.deploy.server.job_log_writer import AuditWriter
from winnow.deploy.server.login_links import LoginLinks
from winnow.deploy.trust.certificate_hosts import certificate_hosts
from winnow.deploy.trust.kit import Kit
from winnow.deploy.trust.peer_identity import Peer
from winnow.deploy.wire.messages import GetPagesAddress, PagesAddress
from winnow.deploy.wire.transport_interface import Admit, Identify, ServerLink, Tls, WireService
from winnow.deploy.wire.transport_registry import open_link, serve

log = logging.getLogger(__name__)

HTTPS = 443
ASK_LEADER_SECONDS = 5.0
CALLS = 32
"""Requests of one person's pages that are answered at the same time."""


@dataclass(frozen=True, kw_only=True)
class PagesContext:
    """Its methods block, and may be called from any thread but the server's own."""

    kit: Kit
    config: PagesConfig
    links: LoginLinks
    audit: AuditWriter
    identify: Identify
    admit: Admit
    store: Callable[[], ApplicationStore | None]
    """Of applications; None while this server is not the leader."""
    internal: str = field(default_factory=lambda: f"memory://pages-{uuid4().hex}")
    """Where requests of this process are answered: by the same rules as those from outside."""

    @property
    def hosts(self) -> frozenset[str]:
        """Names and ports under which browsers come: every name of the certificate, and the address."""
        port = listen_address(self.config)[1]
        names = {f"[{name}]" if ":" in name else name for name in certificate_hosts(self.kit.certificate)}
        found = {f"{name}:{port}" for name in names} | {urlsplit(self.links.address).netloc}
        return frozenset(found | (names if port == HTTPS else set()))

    def person(self, certificate: bytes) -> Peer | None:
        """Who holds this certificate, if it is a person who is admitted now."""
        try:
            peer = self.identify(certificate)
        except WinnowError:
            return None
        return peer if peer.kind == "person" and self.admit(peer) is None else None

    def link(self, certificate: bytes) -> ServerLink:
        """Asks as the holder of this certificate, which the pages have checked."""
        return open_link(self.internal, Tls(certificate=certificate, key=b"", authority=b""))

    def leader_address(self, endpoint: str) -> str:
        """Where the leader at this endpoint serves its pages; empty where it does not, or does not answer."""
        try:
            link = open_link(endpoint, Tls.of(self.kit))
            try:
                answer = link.call(GetPagesAddress(), timeout=ASK_LEADER_SECONDS)
            finally:
                link.close()
        except WinnowError:
            return ""
        return answer.url if isinstance(answer, PagesAddress) else ""


ServePages: TypeAlias = Callable[[PagesContext], AbstractContextManager[None]]


@asynccontextmanager
async def pages_served(
    serve_pages: ServePages | None, context: PagesContext | None, service: WireService
) -> AsyncIterator[None]:
    """Pages ask as the person who looks at them. What they ask of this process ends before they do."""
    if serve_pages is None or context is None:
        yield
        return
    inside = serve(
        context.internal, Tls.of(context.kit), service, identify=context.identify, admit=context.admit, calls=CALLS
    )
    await inside.start()
    with ExitStack() as closing:
        try:
            closing.enter_context(serve_pages(context))
            log.info("pages are served at %s", context.links.address)
            yield
        finally:
            await inside.stop(0.0)
            await asyncio.to_thread(closing.close)


def listen_address(config: PagesConfig) -> tuple[str, int]:
    """Host and port to bind to."""
    host, _, port = config.listen.rpartition(":")
    return host.strip("[]"), int(port)


def pages_address(config: PagesConfig, kit: Kit, endpoint: str) -> str:
    """How browsers reach the pages: as the operator says, or at the host of the server's own endpoint."""
    if config.address is not None:
        return config.address
    names = certificate_hosts(kit.certificate)
    host = urlsplit(endpoint).hostname
    name = host if host in names else sorted(names)[0]
    shown = f"[{name}]" if ":" in name else name
    return f"https://{shown}:{listen_address(config)[1]}"
