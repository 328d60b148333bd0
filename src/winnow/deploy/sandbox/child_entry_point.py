"""The first code that runs in a job's process: it enters the sandbox, then becomes the worker.

The sandbox is in force before any of the job's code is read. The `LaunchSpec` comes over standard input: all users of a
machine can see a process's arguments. Run as `python -m winnow.deploy.sandbox.child_entry_point CHANNEL [MODULE...]`;
the modules are loaded first, and a line on standard output reports that they are.
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


class LaunchSpec(msgspec.Struct, frozen=True, kw_only=True):
    """What the process is to be: what the agent or the server sends it."""

    limits: isolation.ProcessLimits
    sandbox: isolation.Sandbox | None = None
    program: str
    """The module that does the work, or the path of its file."""
    folder: str
    """Its working directory."""
    log: str
    """The file to which it appends what it prints."""
    environment: dict[str, str]


def main() -> None:
    seccomp.die_with_parent()
    channel, *modules = sys.argv[1:]
    if modules:
        _preload(modules)
    spec = msgspec.json.decode(sys.stdin.buffer.read(), type=LaunchSpec)
    if len([*Path("/proc/self/task").iterdir()]) > 1:
        _leave_threads_behind(int(channel))
    run_isolated(spec, int(channel))


def run_isolated(spec: LaunchSpec, channel: int) -> None:
    """Isolate this process, which has one thread, and do the work. `channel` is the socket to its supervisor."""
    _move_to(spec)
    isolation.limit(spec.limits)
    if spec.sandbox is not None:
        isolation.enter_sandbox(spec.sandbox, gpus=bool(spec.limits.gpus))
    sys.argv = [spec.program, str(channel)]
    if spec.program.endswith(".py"):
        runpy.run_path(spec.program, run_name="__main__")
    else:
        runpy.run_module(spec.program, run_name="__main__", alter_sys=True)


def _preload(modules: list[str]) -> None:
    """In a thread, which may lower its priority for good: the process itself keeps its own."""

    def load() -> None:
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), 19)
        for module in modules:
            with suppress(ImportError):  # reported by whoever needs it
                importlib.import_module(module)

    thread = threading.Thread(target=load)
    thread.start()
    thread.join()
    print("ready", flush=True)


def _leave_threads_behind(channel: int) -> None:
    """Continue in a child, which has one thread; this process waits for it. A sandbox holds for the thread that enters
    it and for those that it starts, and NumPy started some when it was loaded.
    """
    child = os.fork()
    if child == 0:
        seccomp.die_with_parent()
        return
    os.close(channel)
    _, status = os.waitpid(child, 0)
    os._exit(min(abs(os.waitstatus_to_exitcode(status)), 255))


def _move_to(spec: LaunchSpec) -> None:
    os.chdir(spec.folder)
    os.environ.clear()
    os.environ.update(spec.environment)
    with Path(spec.log).open("ab") as log:
        for stream in (sys.stdout, sys.stderr):
            os.dup2(log.fileno(), stream.fileno())


if __name__ == "__main__":
    main()
