"""What a person sees of a job while it runs: a bar over its rounds, and lines as they come."""

import re

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from winnow.core import AnyEvent, Evaluated, Rejected, RoundFinished, RunError, Stopped
from winnow.deploy.client.connection import SubmittedJob
from winnow.deploy.wire.messages import JobInfo, LogLine
from winnow.runs.event_log import decode_event
from winnow.runs.summary import PRIVACY, privacy_spent_lines

GONE = (" takes no part: ", " is left out: no word from it")
"""In a line of the server's about a site that refuses a job before it begins, or has fallen silent."""
EXCLUDED_SITE_REASON = re.compile(r"site \S+ is left out since ")
"""How the reason begins for which a client is missing from each round while its site is left out."""


def watch_job(job: SubmittedJob, console: Console, *, shown: bool = True, all_needed: bool = False) -> JobInfo:
    """Follow a job to its end; its state then. Raises a RunError if it failed or was aborted.

    With `all_needed` it is aborted as soon as a site is gone: nobody will bring it back.
    """
    state = job.state()
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not shown, transient=True) as progress:
        bar = progress.add_task(f"{job.name}: {state.status}", total=state.rounds or None)
        for line in job.lines():
            finished = _round(line)
            if finished is not None:
                progress.update(bar, completed=finished.round, description=f"{job.name}: {_scores(finished)}")
            elif all_needed and line.source == "server" and any(words in line.text for words in GONE):
                job.abort(line.text)
                raise RunError(f"job {job.name} cannot go on: {line.text}")
            elif line.kind == "log" and shown:
                progress.console.print(format_line(line) or "", markup=False, highlight=False, soft_wrap=True)
    state = job.state()
    if state.status != "finished":
        raise RunError(f"job {job.name} {state.status}: {state.reason}")
    return state


def format_line(line: LogLine) -> str | None:
    """A line as a person reads it: rounds by their scores, the rest as it is; None for what only programs read."""
    if line.kind == "event":
        return _told(decode_event(line.text.encode()))
    return f"{line.source}: {line.text}"


def _told(event: AnyEvent) -> str | None:
    if isinstance(event, Evaluated):
        return f"round 0, untrained: {_scores(event)}"
    if isinstance(event, Rejected):
        if EXCLUDED_SITE_REASON.match(event.reason):
            return None  # the server said so once, when it happened
        return f"round {event.round}: client {event.client} left out: {event.reason}"
    if isinstance(event, Stopped):
        return f"stopped after round {event.round}: {event.reason}"
    if not isinstance(event, RoundFinished):
        return None
    folded = len(event.folded)
    scores = f"{_scores(event)}, " if event.metrics else ""
    return f"round {event.round}: {scores}{folded} client{'s' if folded != 1 else ''} folded"


def _round(line: LogLine) -> RoundFinished | None:
    if line.kind != "event":
        return None
    event = decode_event(line.text.encode())
    return event if isinstance(event, RoundFinished) else None


def _scores(event: Evaluated | RoundFinished) -> str:
    """The first data's scores, and what privacy the job has cost."""
    first = next(iter(event.metrics.values()), {})
    spent = event.metrics.get(PRIVACY, {})
    scores = [f"{name} {value:.4f}" for name, value in first.items() if first is not spent]
    return ", ".join([*scores, *privacy_spent_lines(spent)])
