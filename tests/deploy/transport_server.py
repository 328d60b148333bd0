"""A transport's server for a test, in a thread of its own."""

import asyncio
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from typing import Any

from winnow.deploy.trust.peer_identity import Peer
from winnow.deploy.wire.transport_interface import Admit, Tls
from winnow.deploy.wire.transport_registry import TransportServer, serve

SECONDS = 120.0
"""Within which a server starts and stops, however busy the machine is."""


@contextmanager
def running_server(
    url: str, tls: Tls, service: Any, *, admit: Admit = lambda peer: None, **options: Any
) -> Iterator[TransportServer]:
    """Serve until the context ends; the server's thread, tasks and executor end with it."""
    started = Future[tuple[TransportServer, Callable[[], None]]]()

    async def run() -> None:
        loop, stopping = asyncio.get_running_loop(), asyncio.Event()
        try:
            server = serve(url, tls, service, identify=Peer.of_pem, admit=admit, **options)
            await server.start()
        except BaseException as error:
            started.set_exception(error)
            return
        started.set_result((server, lambda: loop.call_soon_threadsafe(stopping.set)))
        await stopping.wait()
        await server.stop(0.2)

    thread = threading.Thread(target=lambda: asyncio.run(run()), name="transport server")
    thread.start()
    try:
        server, stop = started.result(SECONDS)
    except BaseException:
        thread.join(SECONDS)
        del started  # it holds the exception, whose traceback holds this frame
        raise
    try:
        yield server
    finally:
        stop()
        thread.join(SECONDS)
        assert not thread.is_alive()
