"""A process forked by the fork server, with those methods of subprocess.Popen that its supervisor needs."""

import os
import select
import signal
import socket
import subprocess
from contextlib import suppress
from pathlib import Path
from threading import Lock

import msgspec

from winnow.deploy.sandbox.child_entry_point import LaunchSpec

FORK_SERVER_VARIABLE = "WINNOW_FORK_SERVER"
"""The environment variable with the path of the fork server's socket; without it processes are started anew."""


class ForkedProcess:
    """A running process and the connection to the fork server, which reports its exit status.

    The connection is closed when the status arrives, or by `close`, which also ends the process.
    """

    def __init__(self, path: Path, spec: LaunchSpec, channel: int) -> None:
        """`path` is the fork server's socket, `channel` the process's end of the connection to its supervisor."""
        self._control = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            self.pid = self._request_fork(path, spec, channel)
        except BaseException:
            self._control.close()
            raise
        self.returncode: int | None = None
        self._lock = Lock()

    def _request_fork(self, path: Path, spec: LaunchSpec, channel: int) -> int:
        """The id of the new process."""
        folder = os.open(path.parent, os.O_PATH)
        try:
            self._control.connect(f"/proc/self/fd/{folder}/{path.name}")  # however long the path is
        finally:
            os.close(folder)
        socket.send_fds(self._control, [msgspec.json.encode(spec)], [channel])
        answer = self._control.recv(64)
        if not answer:
            raise ConnectionError("it could not start a process")
        return msgspec.json.decode(answer, type=int)

    def poll(self) -> int | None:
        return self._exit_status(0.0)

    def wait(self, timeout: float | None = None) -> int:
        code = self._exit_status(timeout)
        if code is None:
            assert timeout is not None
            raise subprocess.TimeoutExpired(f"process {self.pid}", timeout)
        return code

    def kill(self) -> None:
        """End the process and its group. May be called while another thread waits for the process."""
        if self._lock.acquire(blocking=False):
            self._lock.release()
            self.poll()  # the number of a process that has exited may be another's by now
        if self.returncode is None:
            with suppress(ProcessLookupError):
                os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the process if it still runs, and close the connection. May be called by any thread, and twice."""
        self.kill()
        with suppress(OSError):  # closed already
            self._control.shutdown(socket.SHUT_RDWR)  # a thread that waits for the status waits no longer
        with self._lock:
            if self.returncode is None:
                self.returncode = -signal.SIGKILL
                self._control.close()

    def _exit_status(self, timeout: float | None) -> int | None:
        with self._lock:
            if self.returncode is None and select.select([self._control], [], [], timeout)[0]:
                status = self._control.recv(64)
                self.returncode = msgspec.json.decode(status, type=int) if status else -signal.SIGKILL
                self._control.close()
            return self.returncode
