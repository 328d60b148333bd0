"""A transport's server for a test, in a thread of its own."""

import asyncio
import threading
from collections.abc import Iterator
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
    """It serves until the context ends, and its thread ends with it."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()

    def wait(coroutine: Any) -> Any:
        return asyncio.run_coroutine_threadsafe(coroutine, loop).result(SECONDS)

    async def start() -> TransportServer:
        server = serve(url, tls, service, identify=Peer.of_pem, admit=admit, **options)
        await server.start()
        return server

    try:
        server = wait(start())
        yield server
        wait(server.stop(0.2))
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
        loop.close()
