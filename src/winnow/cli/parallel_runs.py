"""Many runs at once, for the commands that make them."""

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from winnow.experiment.run_pool import RunFailed, RunSpec


def run_many(
    work: "Sequence[RunSpec]",
    workers: int,
    *,
    quiet: bool,
    skip_incompatible: bool = False,
    on_finished: Callable[[int], object] = lambda _: None,
) -> "dict[int, RunFailed]":
    """Make all runs. A failure is reported at once and does not stop the others; it is returned by its place.

    `on_finished` is called with the place of each run as soon as it is done. With `skip_incompatible`, an algorithm
    that cannot run this experiment is skipped and is no error.
    """
    from winnow.cli.console import say, stderr_console
    from winnow.cli.multi_run_display import MultiRunDisplay
    from winnow.experiment.run_pool import RunCompleted, RunFailed, run_all

    failures, said = dict[int, RunFailed](), set[str]()
    with MultiRunDisplay([job.experiment for job in work], None if quiet else stderr_console()) as display:
        for index, message in run_all(work, min(workers, len(work))):
            if isinstance(message, RunFailed):
                failures[index] = message
                line = (skipped_message if skip_incompatible and message.incompatible else _error)(
                    work[index], message.reason
                )
                if line not in said:
                    say(line)
                said.add(line)
            elif isinstance(message, RunCompleted):
                on_finished(index)
            display.on_message(index, message)
    return failures


def skipped_message(job: "RunSpec | str", reason: str) -> str:
    name = job if isinstance(job, str) else job.experiment.algorithm
    return f"winnow: skipping {name}: {reason}"


def failure_message(job: "RunSpec", reason: str) -> str:
    return f"{job.experiment.algorithm}, seed {job.experiment.seed}: {reason}"


def _error(job: "RunSpec", reason: str) -> str:
    return f"winnow: error: {failure_message(job, reason)}"


def available_cores() -> int:
    """The cores that this process may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
