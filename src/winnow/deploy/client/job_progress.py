"""The progress of a job for its user: a bar over its rounds, and its log lines as they arrive."""

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from winnow.core import AnyEvent, Evaluated, Rejected, RoundFinished, RunError, Stopped
from winnow.core.untrusted_text import printable
from winnow.deploy.client.told_event import told_event
from winnow.deploy.client.unsigned_requests import SubmittedJob
from winnow.deploy.wire.messages import EVENT_KIND, LOG_KIND, SITE_LOST_KIND, JobInfo, LogLine
from winnow.runs.summary import PRIVACY, privacy_spent_lines


def watch_job(job: SubmittedJob, console: Console, *, shown: bool = True, all_needed: bool = False) -> JobInfo:
    """Follow a job to its end and return its final state. Raises a RunError if it failed or was aborted.

    With `all_needed` the job is aborted as soon as it loses a site: nobody would bring the site back.
    """
    state = job.state()
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=console, disable=not shown, transient=True) as progress:
        bar = progress.add_task(f"{job.name}: {state.status}", total=state.rounds or None)
        for line in job.lines():
            finished = _finished_round(line)
            if finished is not None:
                progress.update(
                    bar, completed=finished.round, description=printable(f"{job.name}: {_scores(finished)}")
                )
            elif all_needed and line.kind == SITE_LOST_KIND:
                job.abort(line.text)
                raise RunError(f"job {job.name} cannot continue: {line.text}")
            elif line.kind in (LOG_KIND, SITE_LOST_KIND) and shown:
                text = printable(f"{line.source}: {line.text}")
                progress.console.print(text, markup=False, highlight=False, soft_wrap=True)
    state = job.state()
    if state.status != "finished":
        raise RunError(f"job {job.name} {state.status}: {state.reason}")
    return state


class LogFormatter:
    """Formats the lines of one job's log, in their order.

    A round is one line with its scores and counts. Why a reply was rejected stands in the log once for each site and
    reason; the events repeat it for every client and round, which is for programs.
    """

    def __init__(self) -> None:
        self._rejected: set[int] = set()

    def format(self, line: LogLine) -> str | None:
        """The line as people read it, fit for a terminal; None for what only programs read."""
        if line.kind != EVENT_KIND:
            return printable(f"{line.source}: {line.text}")
        text = self._format_event(told_event(line))
        return None if text is None else printable(text)

    def _format_event(self, event: AnyEvent) -> str | None:
        if isinstance(event, Evaluated):
            return f"round 0, untrained: {_scores(event)}"
        if isinstance(event, Stopped):
            return f"stopped after round {event.round}: {event.reason}"
        if isinstance(event, Rejected):
            self._rejected.add(event.client)
        if not isinstance(event, RoundFinished):
            return None
        count, rejected, self._rejected = len(event.aggregated), len(self._rejected), set()
        parts = [_scores(event)] if event.metrics else []
        parts.append(f"{count} client{'s' if count != 1 else ''} aggregated")
        parts += [f"{rejected} rejected or missing"] if rejected else []
        return f"round {event.round}: {', '.join(parts)}"


def _finished_round(line: LogLine) -> RoundFinished | None:
    if line.kind != EVENT_KIND:
        return None
    event = told_event(line)
    return event if isinstance(event, RoundFinished) else None


def _scores(event: Evaluated | RoundFinished) -> str:
    """The scores on the first data set, and the privacy spent."""
    first = next(iter(event.metrics.values()), {})
    spent = event.metrics.get(PRIVACY, {})
    scores = [f"{name} {value:.4f}" for name, value in first.items() if first is not spent]
    return ", ".join([*scores, *privacy_spent_lines(spent)])
