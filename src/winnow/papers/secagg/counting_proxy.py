"""A relay in front of a server that counts what crosses it: every byte of TCP's payload, so TLS and HTTP/2 as well."""

import socket
import socketserver
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

CHUNK = 1 << 16


@dataclass
class ByteCounts:
    """Bytes towards the server and from it."""

    up: int = 0
    down: int = 0


class _Relayed(socketserver.BaseRequestHandler):
    server: "CountingProxy"

    def handle(self) -> None:
        traffic = self.server.by_port.setdefault(self.client_address[1], ByteCounts())
        try:
            onward = socket.create_connection(("127.0.0.1", self.server.server_port))
        except OSError:
            return  # the server is not there yet: who connects will try again
        with onward, self.server.relaying(self.request, onward):
            back = threading.Thread(target=self._pass, args=(onward, self.request, traffic, "down"))
            back.start()
            self._pass(self.request, onward, traffic, "up")
            back.join()

    @staticmethod
    def _pass(source: socket.socket, sink: socket.socket, traffic: ByteCounts, way: str) -> None:
        with suppress(OSError):
            while chunk := source.recv(CHUNK):
                sink.sendall(chunk)
                setattr(traffic, way, getattr(traffic, way) + len(chunk))
        with suppress(OSError):
            sink.shutdown(socket.SHUT_WR)


class CountingProxy(socketserver.ThreadingTCPServer):
    """Listens at a port of its own and passes everything on to `server_port`."""

    def __init__(self, server_port: int) -> None:
        super().__init__(("127.0.0.1", 0), _Relayed)
        self.server_port = server_port
        self.by_port: dict[int, ByteCounts] = {}
        self._relayed: set[tuple[socket.socket, ...]] = set()
        self._closing = False

    @contextmanager
    def relaying(self, *ends: socket.socket) -> Iterator[None]:
        """Let `server_close` end the connection between these sockets."""
        self._relayed.add(ends)
        try:
            if self._closing:
                _shut_down(ends)
            yield
        finally:
            self._relayed.discard(ends)

    def server_close(self) -> None:
        """End all connections, and wait for the threads that relay them."""
        self._closing = True
        for ends in self._relayed.copy():
            _shut_down(ends)
        super().server_close()

    @property
    def port(self) -> int:
        port: int = self.server_address[1]
        return port

    def of_process(self, pid: int) -> ByteCounts:
        """What has crossed the connections that a process holds now (Linux)."""
        held, total = _sockets(pid), ByteCounts()
        for port, inode in _inodes().items():
            if inode in held and port in self.by_port:
                total = ByteCounts(total.up + self.by_port[port].up, total.down + self.by_port[port].down)
        return total


@contextmanager
def serve_counting_proxy(server_port: int) -> Iterator[CountingProxy]:
    with CountingProxy(server_port) as relay:
        thread = threading.Thread(target=relay.serve_forever, daemon=True)
        thread.start()
        try:
            yield relay
        finally:
            relay.shutdown()
            thread.join()


def _shut_down(ends: tuple[socket.socket, ...]) -> None:
    for end in ends:
        with suppress(OSError):
            end.shutdown(socket.SHUT_RDWR)


def _inodes() -> dict[int, str]:
    """The sockets of this machine by their local port; those of IPv6 may lead to an address of IPv4."""
    tables = [Path(f"/proc/net/{table}").read_text().splitlines()[1:] for table in ("tcp", "tcp6")]
    rows = [line.split() for table in tables for line in table]
    return {int(row[1].rpartition(":")[2], 16): row[9] for row in rows}


def _sockets(pid: int) -> set[str]:
    names = (str(link.readlink()) for link in Path(f"/proc/{pid}/fd").iterdir() if link.is_symlink())
    return {name.removeprefix("socket:[").removesuffix("]") for name in names if name.startswith("socket:[")}
