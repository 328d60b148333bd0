"""A process that `preloaded` forked, seen from who asked for it; in the ways of subprocess.Popen that are needed."""

import os
import select
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from threading import Lock

import msgspec

from winnow.deploy.sandbox.launch import LaunchSpec

FORK_SERVER_VARIABLE = "WINNOW_PRELOADED"
"""The environment variable that says where processes are forked; without it they are started anew."""


class ForkedProcess:
    def __init__(self, path: Path, launch: LaunchSpec) -> None:
        self._line = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.pid = self._asked_for(path, launch)
        except BaseException:
            self._line.close()
            raise
        self.returncode: int | None = None
        self._lock = Lock()

    def _asked_for(self, path: Path, launch: LaunchSpec) -> int:
        """The number of the new process."""
        folder = os.open(path.parent, os.O_PATH)
        try:
            self._line.connect(f"/proc/self/fd/{folder}/{path.name}")  # however long the path is
        finally:
            os.close(folder)
        socket.send_fds(self._line, [msgspec.json.encode(launch)], [launch.channel])
        return msgspec.json.decode(self._line.recv(64), type=int)

    def poll(self) -> int | None:
        return self._ended(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._ended(timeout)
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return code

    def kill(self) -> None:
        if self.poll() is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def _ended(self, timeout: float | None) -> int | None:
        with self._lock:
            if self.returncode is None and select.select([self._line], [], [], timeout)[0]:
                said = self._line.recv(64)
                self.returncode = msgspec.json.decode(said, type=int) if said else -signal.SIGKILL
                self._line.close()
            return self.returncode
