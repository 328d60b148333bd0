"""Many runs at once, for the commands that make them."""

import os
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from winnow.experiment.workers import Failed, Job


def make_runs(
    work: "Sequence[Job]",
    workers: int,
    *,
    quiet: bool,
    tolerant: bool = False,
    on_finished: Callable[[int], object] = lambda _: None,
) -> "dict[int, Failed]":
    """Make all runs. What fails is said at once and does not stop the others; it is returned by its place.

    `on_finished` is told the place of each run as soon as it is done.
    Where the caller is `tolerant`, an algorithm that cannot run on this experiment is left out rather than in error.
    """
    from winnow.cli.board import Board
    from winnow.cli.console import messages, say
    from winnow.experiment.workers import Failed, Finished, run_all

    failures, said = dict[int, Failed](), set[str]()
    with Board([job.experiment for job in work], None if quiet else messages()) as board:
        for index, message in run_all(work, min(workers, len(work))):
            if isinstance(message, Failed):
                failures[index] = message
                line = (left_out if tolerant and message.refused else _error)(work[index], message.reason)
                if line not in said:
                    say(line)
                said.add(line)
            elif isinstance(message, Finished):
                on_finished(index)
            board.seen(index, message)
    return failures


def left_out(job: "Job | str", reason: str) -> str:
    name = job if isinstance(job, str) else job.experiment.algorithm
    return f"winnow: {name} is left out: {reason}"


def failure(job: "Job", reason: str) -> str:
    return f"{job.experiment.algorithm}, seed {job.experiment.seed}: {reason}"


def _error(job: "Job", reason: str) -> str:
    return f"winnow: error: {failure(job, reason)}"


def cores() -> int:
    """The cores that this process may use, where the system tells."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
