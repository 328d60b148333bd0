"""A network between sites and a server that can be slow, or silent, and stands when the server is gone."""

import socket
import threading
import time
from contextlib import suppress

PIECE = 16_384
TICK = 0.02


class Relay:
    """Passes bytes on between two ports of this machine. `silent`: nothing passes, and nobody is told.

    `rate` is in bytes a second, each way and connection.
    """

    def __init__(self, port: int, target: int) -> None:
        self.silent, self.rate = False, float("inf")
        self._target, self._closed = target, False
        self._listener = socket.create_server(("127.0.0.1", port))
        self._ends: set[socket.socket] = set()
        self._lock = threading.Lock()
        self._connections: list[threading.Thread] = []
        self._accepting = threading.Thread(target=self._accept, name=f"relay to {target}")
        self._accepting.start()

    def _accept(self) -> None:
        with suppress(OSError):  # the listener is closed
            while True:
                near, _ = self._listener.accept()
                thread = threading.Thread(target=self._connect, args=(near,), name="relayed")
                thread.start()
                self._connections.append(thread)

    def _connect(self, near: socket.socket) -> None:
        self._hold()
        with near, suppress(OSError), socket.create_connection(("127.0.0.1", self._target)) as far:
            with self._lock:
                if self._closed:
                    return
                self._ends |= {near, far}
            back = threading.Thread(target=self._pass, args=(far, near), name="relayed back")
            back.start()
            self._pass(near, far)
            back.join()
            with self._lock:
                self._ends -= {near, far}

    def _pass(self, source: socket.socket, target: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(PIECE):
                self._hold()
                target.sendall(data)
                time.sleep(len(data) / self.rate)
        self._hold()  # nor does anybody hear that a connection was closed
        for end in (source, target):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def _hold(self) -> None:
        while self.silent and not self._closed:
            time.sleep(TICK)

    def close(self) -> None:
        """Close all connections, and wait for the threads that served them."""
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._accepting.join()  # from here on there are no new connections
        self._listener.close()
        with self._lock:
            self._closed = True
            for end in self._ends:
                with suppress(OSError):
                    end.shutdown(socket.SHUT_RDWR)
        for thread in self._connections:
            thread.join()
