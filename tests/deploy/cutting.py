"""A TCP proxy that cuts connections, to see what survives it."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress


class CuttingProxy:
    """Passes bytes on to a port of this machine; cuts the connection that carries it past each of `cuts` bytes."""

    def __init__(self, port: int, cuts: list[int]) -> None:
        self.passed = 0
        self.connections = 0
        self._port = port
        self._cuts = sorted(cuts)
        self._lock = threading.Lock()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._passing: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, name="cutting proxy")
        self._accepting.start()

    def _accept(self) -> None:
        with suppress(OSError):  # the listener is closed
            while True:
                near, _ = self._listener.accept()
                try:
                    far = socket.create_connection(("127.0.0.1", self._port))
                except OSError:  # the next attempt may find the server
                    near.close()
                    continue
                self.connections += 1
                self._open += [near, far]
                for pair in ((near, far), (far, near)):
                    thread = threading.Thread(target=self._pass, args=pair)
                    thread.start()
                    self._passing.append(thread)

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                with self._lock:
                    room = self._cuts[0] - self.passed if self._cuts else len(data)
                    cut = room < len(data)
                    self.passed += min(room, len(data))
                    if cut:
                        self._cuts.pop(0)
                target.sendall(data[:room])
                if cut:
                    break
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()  # from here on there are no new connections
        self._listener.close()
        for end in self._open:
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
        for thread in self._passing:
            thread.join()
        for end in self._open:
            end.close()


@contextmanager
def cutting(url: str, *cuts: int) -> Iterator[tuple[str, CuttingProxy]]:
    """The URL of a proxy before this gRPC server."""
    proxy = CuttingProxy(int(url.rpartition(":")[2]), list(cuts))
    try:
        yield f"grpc://127.0.0.1:{proxy.port}", proxy
    finally:
        proxy.close()
