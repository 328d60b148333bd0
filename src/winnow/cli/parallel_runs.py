"""Many runs at once, for the commands that make them."""

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from winnow.experiment.run_pool import RunFailed, RunSpec


def run_many(
    specs: "Sequence[RunSpec]",
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
    with MultiRunDisplay([spec.experiment for spec in specs], None if quiet else stderr_console()) as display:
        for index, message in run_all(specs, min(workers, len(specs))):
            if isinstance(message, RunFailed):
                failures[index] = message
                if skip_incompatible and message.incompatible:
                    line = skipped_message(specs[index].experiment.algorithm, message.reason)
                else:
                    line = f"winnow: error: {failure_message(specs[index], message.reason)}"
                if line not in said:
                    say(line)
                said.add(line)
            elif isinstance(message, RunCompleted):
                on_finished(index)
            display.on_message(index, message)
    return failures


def skipped_message(algorithm: str, reason: str) -> str:
    return f"winnow: skipping {algorithm}: {reason}"


def failure_message(spec: "RunSpec", reason: str) -> str:
    return f"{spec.experiment.algorithm}, seed {spec.experiment.seed}: {reason}"


def available_cores() -> int:
    """The cores that this process may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
