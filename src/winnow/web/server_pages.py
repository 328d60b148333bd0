"""The pages of a federation, served by its server: `[ui] listen` in server.toml."""

import socket
import threading
import time
from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from html import escape

import anyio.to_thread
import uvicorn
from fastapi import Request
from starlette.responses import HTMLResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from winnow.core import ConfigError
from winnow.core.untrusted_text import one_line
from winnow.deploy.client.unsigned_requests import ServerRequests
from winnow.deploy.server.config import CONFIG_FILE
from winnow.deploy.server.served_pages import PagesContext, listen_address
from winnow.deploy.trust.kit import AUTHORITY_FILE, CERTIFICATE_FILE, KEY_FILE
from winnow.deploy.wire.errors import RequestRefusedError, UnreachableError
from winnow.deploy.wire.messages import GetPagesAddress
from winnow.web.app import create_app
from winnow.web.application_pages import application_pages
from winnow.web.apply_page import APPLY, COLLECT, apply_pages
from winnow.web.federation_actions import federation_actions
from winnow.web.federation_pages import federation_pages
from winnow.web.federation_view import FederationView, Viewer
from winnow.web.peer_certificate import PeerCertificateProtocol, server_tls
from winnow.web.request_guard import RESPONSE_HEADERS, Access
from winnow.web.serve import pages_config
from winnow.web.server_login import ServerLogin
from winnow.web.sessions import Session

MAX_VIEWS = 100
"""People whose last answers are kept."""
MAX_CONNECTIONS = 500
REFERRAL_SECONDS = 2.0


@contextmanager
def serve_server_pages(context: PagesContext) -> Iterator[None]:
    """Serve in a thread with a loop of its own, so that pages never hold up the federation's messages."""
    with _listening(context) as listener:
        config = pages_config(server_app(context), MAX_CONNECTIONS, http=PeerCertificateProtocol)
        config.load()
        folder = context.kit.path
        config.ssl = server_tls(*(str(folder / name) for name in (CERTIFICATE_FILE, KEY_FILE, AUTHORITY_FILE)))
        server = uvicorn.Server(config)
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]}, name="pages", daemon=True)
        thread.start()
        try:
            yield
        finally:
            server.should_exit = True
            thread.join()


def server_app(context: PagesContext) -> "LeaderOnly":
    views = PersonViews(context)
    applying = [apply_pages(context)] if context.config.applications else []
    access = Access(
        hosts=context.hosts,
        cookie="__Host-winnow",
        scheme="https",
        people=ServerLogin(context),
        public=_is_public_with_applications if applying else _is_public,
    )
    pages = [federation_pages(views), federation_actions(views), application_pages(views), *applying]
    return LeaderOnly(create_app(access, pages), context)


def _is_public(path: str) -> bool:
    """What anybody may have; not Plotly's megabytes, which these pages do not use."""
    return path in ("/static/style.css", "/static/script.js", "/static/icon.svg")


def _is_public_with_applications(path: str) -> bool:
    return path in (APPLY, COLLECT) or _is_public(path)


class PersonViews:
    """The federation as the person sees it who is logged in: requests go to the server as that person's."""

    def __init__(self, context: PagesContext) -> None:
        self._context = context
        self._views: OrderedDict[bytes, FederationView] = OrderedDict()
        self._lock = threading.Lock()

    def __call__(self, request: Request) -> FederationView:
        session: Session = request.scope["winnow.session"]
        with self._lock:
            view = self._views.pop(session.certificate, None) or self._view(session.certificate)
            self._views[session.certificate] = view
            while len(self._views) > MAX_VIEWS:
                self._views.popitem(last=False)
            return view

    def _view(self, certificate: bytes) -> FederationView:
        context = self._context
        kit, peer = context.kit, context.identify(certificate)
        viewer = Viewer(peer=peer, project=kit.project, authority=kit.authority)
        return FederationView(ServerRequests(context.link(certificate)), viewer, control=context.config.control)


class LeaderOnly:
    """A standby shows nothing and logs nobody in: it says where the leader's pages are."""

    def __init__(self, app: ASGIApp, context: PagesContext) -> None:
        self._app, self._context = app, context
        self._lock = threading.Lock()
        self._found: tuple[float, tuple[str, str] | None] = (0.0, None)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        elsewhere = await anyio.to_thread.run_sync(self._elsewhere) if scope["type"] == "http" else None
        if elsewhere is None:
            await self._app(scope, receive, send)
            return
        reason, address = elsewhere
        link = f'<p><a href="{escape(address)}">{escape(address)}</a></p>' if address.startswith("https://") else ""
        text = f'<!doctype html><html lang="en"><title>Winnow</title><p>{escape(reason)}</p>{link}\n'
        headers = {**RESPONSE_HEADERS, "cache-control": "no-store", "retry-after": "2"}
        await HTMLResponse(text, 503, headers)(scope, receive, send)

    def _elsewhere(self) -> tuple[str, str] | None:
        """Why not here, and where else; strangers' requests ask the other server no more than every other second."""
        with self._lock:
            at, found = self._found
            if time.monotonic() - at > REFERRAL_SECONDS or not at:
                found = self._ask()
                self._found = (time.monotonic(), found)
            return found

    def _ask(self) -> tuple[str, str] | None:
        try:
            self._context.link(self._context.kit.certificate_pem).call(GetPagesAddress())
        except RequestRefusedError as refused:
            return one_line(refused), self._context.leader_address(refused.leader) if refused.leader else ""
        except UnreachableError:
            return "this server is stopping", ""
        return None


def _listening(context: PagesContext) -> socket.socket:
    host, port = listen_address(context.config)
    listener = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(MAX_CONNECTIONS)
    except OSError as error:
        listener.close()
        raise ConfigError(f"{CONFIG_FILE}: ui.listen = {context.config.listen!r}: {error.strerror or error}") from None
    return listener
