"""The first thing that runs in a job's process: it puts up the walls, then becomes the worker.

The walls stand before any of the job's code is read. They are told over standard input, not by arguments, which all
users of a machine can see. Run as `python -m winnow.deploy.sandbox.launch`; modules that are named behind it are loaded
before it listens, and it says so by a line.
"""

import importlib
import os
import runpy
import sys
import threading
from contextlib import suppress
from pathlib import Path

import msgspec

from winnow.deploy.sandbox import isolation, seccomp

WORKER_MODULE, OUTPUT_FILTER_MODULE, RUNNER_MODULE = (
    f"winnow.deploy.jobs.{name}" for name in ("worker", "output_filter", "runner")
)


class LaunchEnvironment(msgspec.Struct, frozen=True, kw_only=True):
    """Where a process works that was started before its job was known."""

    folder: str
    log: str
    """The file to which it adds what it prints."""
    environment: dict[str, str]


class LaunchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent or the server wants the process to be."""

    channel: int
    """The file descriptor of the line to it."""
    limits: isolation.ProcessLimits
    sandbox: isolation.Sandbox | None = None
    worker: str = WORKER_MODULE
    """The module that does the work, or the path of its file."""
    place: LaunchEnvironment | None = None
    """None if it was started there."""


def main() -> None:
    seccomp.die_with_parent()
    if sys.argv[1:]:
        _preload(sys.argv[1:])
    wanted = msgspec.json.decode(sys.stdin.buffer.read(), type=LaunchSpec)
    if len([*Path("/proc/self/task").iterdir()]) > 1:
        _leave_threads_behind(wanted.channel)
    run_isolated(wanted)


def run_isolated(wanted: LaunchSpec) -> None:
    """Put up the walls around this process, which has one thread, and do the work."""
    if wanted.place is not None:
        _move_to(wanted.place)
    isolation.limit(wanted.limits)
    if wanted.sandbox is not None:
        isolation.enter(wanted.sandbox, gpus=bool(wanted.limits.gpus))
    sys.argv = [wanted.worker, str(wanted.channel)]
    if wanted.worker.endswith(".py"):
        runpy.run_path(wanted.worker, run_name="__main__")
    else:
        runpy.run_module(wanted.worker, run_name="__main__", alter_sys=True)


def _preload(modules: list[str]) -> None:
    """In a thread: it may take low priority, and the process that goes on has lost none."""

    def load() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        for module in modules:
            with suppress(ImportError):  # whoever needs it says so
                importlib.import_module(module)

    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
    print("ready", flush=True)


def _leave_threads_behind(channel: int) -> None:
    """Go on as a child, which has one thread: walls hold for the thread that puts them up and those that it starts, and
    NumPy has started some when it was loaded. This process waits for it.
    """
    child = os.fork()
    if child == 0:
        seccomp.die_with_parent()
        return
    os.close(channel)
    _, status = os.waitpid(child, 0)
    os._exit(min(abs(os.waitstatus_to_exitcode(status)), 255))


def _move_to(place: LaunchEnvironment) -> None:
    os.chdir(place.folder)
    os.environ.clear()
    os.environ.update(place.environment)
    with Path(place.log).open("ab") as log:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(log.fileno(), stream.fileno())


if __name__ == "__main__":
    main()
