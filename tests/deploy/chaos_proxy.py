"""A network that is slow, or falls silent without closing anything, before a port of this machine.

with unsteady(server.url, rate=128_000) as (url, proxy):
    …                       # bytes a second, each way
    proxy.silent = True     # from now on nothing passes, and nobody is told
"""

import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

from cutting import CuttingProxy

PIECE = 16_384


class UnsteadyProxy(CuttingProxy):
    def __init__(self, port: int, rate: float) -> None:
        self.silent = False
        self._rate = rate
        self._over = False
        super().__init__(port, [])

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        source.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, PIECE)
        with suppress(OSError):
            while data := source.recv(PIECE):
                while self.silent and not self._over:
                    time.sleep(0.05)
                target.sendall(data)
                time.sleep(len(data) / self._rate)
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._over = True
        super().close()


@contextmanager
def unsteady(url: str, *, rate: float = float("inf")) -> Iterator[tuple[str, UnsteadyProxy]]:
    """The URL of the proxy before this gRPC server."""
    proxy = UnsteadyProxy(int(url.rpartition(":")[2]), rate)
    try:
        yield f"grpc://127.0.0.1:{proxy.port}", proxy
    finally:
        proxy.close()
