"""The first thing that runs in a job's process: it puts up the walls, then becomes the worker.

The walls stand before any of the job's code is read. They are told over standard input, not by arguments, which all
users of a machine can see. Run as `python -m winnow.deploy.fence.launch`.
"""

import runpy
import sys

import msgspec

from winnow.deploy.fence import confine, seccomp

WORKER, GATE, RUNNER = (f"winnow.deploy.work.{name}" for name in ("worker", "gate", "runner"))


class Launch(msgspec.Struct, frozen=True, kw_only=True):
    """What the agent or the server wants the process to be."""

    channel: int
    """The file descriptor of the line to it."""
    limits: confine.Limits
    sandbox: confine.Sandbox | None = None
    worker: str = WORKER
    """The module that does the work, or the path of its file."""


def main() -> None:
    wanted = msgspec.json.decode(sys.stdin.buffer.read(), type=Launch)
    seccomp.die_with_parent()
    confine.limit(wanted.limits)
    if wanted.sandbox is not None:
        confine.enter(wanted.sandbox, gpus=bool(wanted.limits.gpus))
    sys.argv = [wanted.worker, str(wanted.channel)]
    if wanted.worker.endswith(".py"):
        runpy.run_path(wanted.worker, run_name="__main__")
    else:
        runpy.run_module(wanted.worker, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
