"""Forks the processes of jobs from one that has loaded torch: they start at once and share its memory.

It serves the sites that one user runs on one machine with `winnow local`. It never runs any code of a job itself: each
process enters its own sandbox first. Run as `python -m winnow.deploy.sandbox.fork_server NAME` in the folder where the
socket NAME is to be.
"""

import gc
import importlib
import os
import selectors
import signal
import socket
import sys
import traceback
from contextlib import suppress
from pathlib import Path

import msgspec

from winnow.deploy.sandbox.child_entry_point import LaunchSpec, run_isolated
from winnow.deploy.sandbox.seccomp import die_with_parent

PRELOADED_MODULES = (
    "winnow.deploy.jobs.site_training",
    "winnow.deploy.jobs.run_bundle",
    "winnow.experiment.run_workflow",
    "winnow.config.resolve",
    "winnow.experiment.run",
)
"""What a worker without code of the job's own imports."""
MAX_REQUEST_BYTES = 1 << 17
"""Bytes of a request."""


class ForkServer:
    """One connection for each process: it gets the process's id, then its exit status. Closing it kills the process."""

    def __init__(self, listener: socket.socket) -> None:
        self._listener = listener
        self._selector = selectors.DefaultSelector()
        self._selector.register(listener, selectors.EVENT_READ)
        self._connections: dict[int, socket.socket] = {}
        woken, wake = socket.socketpair()
        for each in (woken, wake):
            each.setblocking(False)
        self._woken, self._wake = woken, wake
        self._selector.register(woken, selectors.EVENT_READ)
        signal.set_wakeup_fd(wake.fileno())
        signal.signal(signal.SIGCHLD, lambda number, frame: None)

    def run(self) -> None:
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listener:
                    self._accept()
                elif key.fileobj is self._woken:
                    self._woken.recv(MAX_REQUEST_BYTES)
                    self._reap()
                else:
                    self._kill(key.data)

    def _accept(self) -> None:
        connection, _ = self._listener.accept()
        request, files, *_ = socket.recv_fds(connection, MAX_REQUEST_BYTES, 1)
        if len(files) != 1:
            connection.close()
            return
        try:
            process = os.fork()
        except OSError:  # no memory for one more: whoever asked is told, and all others live on
            traceback.print_exc()
            os.close(files[0])
            connection.close()
            return
        if process == 0:
            connection.close()
            self._run_child(msgspec.json.decode(request, type=LaunchSpec), files[0])
        os.close(files[0])
        _lead_group(process)
        self._connections[process] = connection
        self._selector.register(connection, selectors.EVENT_READ, process)
        with suppress(OSError):  # whoever asked has gone, which is noticed next
            connection.send(msgspec.json.encode(process))

    def _reap(self) -> None:
        for process in list(self._connections):
            ended, status = os.waitpid(process, os.WNOHANG)
            if ended:
                connection = self._connections.pop(process)
                with suppress(KeyError):  # whoever asked for it has closed the connection
                    self._selector.unregister(connection)
                with suppress(OSError), connection:
                    connection.send(msgspec.json.encode(os.waitstatus_to_exitcode(status)))

    def _kill(self, process: int) -> None:
        if process not in self._connections:
            return  # it ended by itself just now
        self._selector.unregister(self._connections[process])
        with suppress(ProcessLookupError):
            os.killpg(process, signal.SIGKILL)

    def _run_child(self, spec: LaunchSpec, channel: int) -> None:
        """In the new process, which never returns from here."""
        status = 1
        try:
            _lead_group(0)
            die_with_parent()
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            self._selector.close()
            for end in (self._listener, self._woken, self._wake, *self._connections.values()):
                end.close()
            run_isolated(spec, channel)
            status = 0
        except SystemExit as leaving:
            status = leaving.code if isinstance(leaving.code, int) else int(leaving.code is not None)
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(status)


def _lead_group(process: int) -> None:
    """Called by parent and child: whoever knows of the process can end its group. The second call may come too late."""
    with suppress(OSError):
        os.setpgid(process, process)


def main() -> None:
    die_with_parent()
    path = Path(sys.argv[1])
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        starting = path.with_name(f"{path.name}.starting")
        starting.unlink(missing_ok=True)
        listener.bind(str(starting))
        starting.chmod(0o600)
        listener.listen(1024)
        starting.rename(path)  # a socket of this name accepts connections
        for module in PRELOADED_MODULES:
            importlib.import_module(module)
        _compile()
        gc.collect()
        gc.freeze()  # what is never looked at by the collector is never written to, and stays shared
        ForkServer(listener).run()


def _compile() -> None:
    """Load the compiled kernels, which each process would otherwise load for itself."""
    from winnow.learn.stack.native.load_or_compile_kernels import NativeUnavailableError, load_kernels, native_disabled  # noqa: PLC0415 - it needs torch

    with suppress(NativeUnavailableError):
        if not native_disabled():
            load_kernels("float")


if __name__ == "__main__":
    main()
