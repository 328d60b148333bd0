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
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                threading.Thread(target=self._connect, args=(near,), daemon=True).start()

    def _connect(self, near: socket.socket) -> None:
        self._hold()
        try:
            far = socket.create_connection(("127.0.0.1", self._target))
        except OSError:
            near.close()
            return
        self._ends |= {near, far}
        back = threading.Thread(target=self._pass, args=(far, near), daemon=True)
        back.start()
        self._pass(near, far)
        back.join()
        self._ends -= {near, far}
        near.close()
        far.close()

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
        self._closed = True
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for end in list(self._ends):
            with suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)
