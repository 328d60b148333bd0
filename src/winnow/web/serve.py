"""Serves the pages on this machine until the user interrupts it."""

import gc
import socket
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import uvicorn

from winnow.core import ConfigError
from winnow.web.app import create_app
from winnow.web.comparison_page import comparison_pages
from winnow.web.login_key import LoginKey, login_key_path
from winnow.web.page_layout import PageSet
from winnow.web.question_list_page import question_list_pages
from winnow.web.request_guard import Access
from winnow.web.run_index import RunIndex
from winnow.web.run_list_page import run_list_pages
from winnow.web.run_page import run_pages
from winnow.web.run_reader import RunReader

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.types import ASGIApp
    from uvicorn.protocols.http.h11_impl import H11Protocol

    from winnow.deploy.client.connection import Connection
    from winnow.deploy.trust.project_owner import ProjectOwner

LOOPBACK = {"127.0.0.1": socket.AF_INET, "localhost": socket.AF_INET, "::1": socket.AF_INET6}
MAX_CONNECTIONS = 200


def run_page_sets(folders: Sequence[Path]) -> list[PageSet]:
    """The pages about run folders."""
    for folder in folders:
        if not folder.is_dir():
            raise ConfigError(f"{folder}: no such folder; name one with runs")
    index, reader = RunIndex(folders), RunReader()
    return [
        run_list_pages(index),
        question_list_pages(index),
        run_pages(index, reader),
        comparison_pages(index, reader),
    ]


def federation_page_sets(
    connection: "Connection", *, control: bool, owner: "ProjectOwner | None" = None
) -> list[PageSet]:
    """The pages about a federation, as the connection's owner may see it; `owner` has the project's CA."""
    from winnow.web.application_pages import application_pages  # noqa: PLC0415
    from winnow.web.federation_actions import federation_actions  # noqa: PLC0415 - runs alone need no deployment
    from winnow.web.federation_pages import federation_pages  # noqa: PLC0415
    from winnow.web.federation_view import FederationView, Viewer  # noqa: PLC0415

    view = FederationView(connection, Viewer.of(connection.kit), signing=connection, control=control)

    def view_of(request: "Request") -> FederationView:
        return view

    return [federation_pages(view_of), federation_actions(view_of), application_pages(view_of, owner)]


def serve_pages(page_sets: Sequence[PageSet], *, host: str, port: int, on_ready: Callable[[str], object]) -> None:
    """Serve until interrupted; `on_ready` is told the address that logs a browser in. Port 0 is any that is free."""
    with _listening(host, port) as listener:
        key = LoginKey(login_key_path(port)) if port else None  # a port by chance is another one next time
        access = Access.loopback(listener.getsockname()[1], key)
        config = pages_config(create_app(access, page_sets), MAX_CONNECTIONS)
        gc.freeze()  # what was loaded stays; to go through it again and again is a fifth of a large comparison
        try:
            on_ready(f"http://{_shown_address(listener)}/?token={access.token}")
            with suppress(KeyboardInterrupt):  # which is how it ends
                uvicorn.Server(config).run(sockets=[listener])
        finally:
            gc.unfreeze()  # at exit the interpreter frees everything that was loaded


def pages_config(
    app: "ASGIApp", connections: int, http: "type[H11Protocol] | Literal['h11']" = "h11"
) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        log_level="critical",
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        http=http,
        limit_concurrency=connections,
        timeout_graceful_shutdown=1,
    )


def _shown_address(listener: socket.socket) -> str:
    """In numbers: `localhost` may lead a browser to ::1 first, where somebody else may listen for the token."""
    address, port = listener.getsockname()[:2]
    return f"[{address}]:{port}" if ":" in address else f"{address}:{port}"


def _listening(host: str, port: int) -> socket.socket:
    if host not in LOOPBACK:
        raise ConfigError(f"--host {host} would show the pages to others; they need TLS and a login: use 127.0.0.1")
    listener = socket.socket(LOOPBACK[host])
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((host, port))
        listener.listen(MAX_CONNECTIONS)  # a browser that comes before the first page is ready waits for it
    except OverflowError:
        listener.close()
        raise ConfigError(f"--port {port} is not a port; the largest port is 65535") from None
    except OSError as error:
        listener.close()
        raise ConfigError(f"port {port} cannot be used ({error.strerror}); try another --port") from None
    return listener
