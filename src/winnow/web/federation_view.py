"""A federation as one person sees it, through that person's own connection and role."""

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, TypeVar

from winnow.analytics.answers import answer_errors
from winnow.core import WinnowError
from winnow.core.join_names import counted
from winnow.core.untrusted_text import one_line
from winnow.deploy.client.connection import FINAL_STATES, Connection
from winnow.deploy.client.fetched_audit import CheckedAudit, FetchedAudit
from winnow.deploy.client.job_progress import LogFormatter
from winnow.deploy.wire.messages import JobInfo, LogLine, ServerStatus, SiteInfo

KEPT_SECONDS = 1.5
"""How old an answer may be: several tabs ask the server no more often than one."""
LOG_LINES, LOGS = 500, 20
"""Lines of a log that are shown, and logs that are kept."""
LOG_SECONDS = 10.0
"""How long a log is read at a time, since a server can send lines without an end; the next look goes on from there."""
MAX_TABLES = 200
"""How many tables are asked for budgets: each is a job, and it is the server that says which tables there are."""

Told = TypeVar("Told")


@dataclass(kw_only=True)
class JobLog:
    """The last lines of a job's log, as people read them."""

    next: int = 0
    lines: deque[tuple[float, str]] = field(default_factory=lambda: deque(maxlen=LOG_LINES))
    formatter: LogFormatter = field(default_factory=LogFormatter)

    def add(self, line: LogLine) -> None:
        self.next = max(self.next, line.number + 1)
        text = self._text(line)
        if text is not None:
            self.lines.append((line.at, one_line(text)))

    def _text(self, line: LogLine) -> str | None:
        """A program in a job, or a server, can write events of any shape."""
        try:
            return self.formatter.format(line)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, WinnowError):
            return f"{line.source}: {line.text}"


class FederationView:
    """Answers of the server, each kept for a moment."""

    def __init__(self, connection: Connection, *, control: bool = False) -> None:
        self.connection, self.control = connection, control
        self.audit_log = FetchedAudit(connection.audit_page, connection.kit.authority)
        self.budgets: list[dict[str, Any]] | None = None
        """What owners last told; None before anybody asked."""
        self.budget_notes: list[str] = []
        self._kept: dict[str, tuple[float, Any]] = {}
        self._logs: OrderedDict[str, JobLog] = OrderedDict()
        self._lock, self._log_lock = Lock(), Lock()

    @property
    def person(self) -> str:
        kit = self.connection.kit
        return f"{kit.name} ({kit.role}, {kit.organisation}) in project {kit.project}"

    def status(self) -> ServerStatus:
        return self._recent("status", self.connection.status)

    def jobs(self) -> list[JobInfo]:
        """The latest first."""
        return self._recent("jobs", self.connection.jobs)[::-1]

    def job(self, name: str) -> JobInfo:
        return self._recent(f"job {name}", self.connection.job(name).state)

    def sites(self) -> list[SiteInfo]:
        return self._recent("sites", self.connection.sites)

    def audit(self) -> CheckedAudit:
        return self._recent("audit", self.audit_log.refresh)

    def log(self, job: str) -> JobLog:
        """With what has been written since it was last read; a copy, since others read on."""
        with self._log_lock:
            log, until = self._logs.get(job) or JobLog(), time.monotonic() + LOG_SECONDS
            for line in self.connection.job(job).lines(log.next, follow=False):
                log.add(line)
                if time.monotonic() > until:
                    break
            self._logs[job] = log
            self._logs.move_to_end(job)
            while len(self._logs) > LOGS:
                self._logs.popitem(last=False)
            return replace(log, lines=log.lines.copy())

    def forget(self) -> None:
        """After a change, what was told before is out of date."""
        self._kept.clear()

    def ask_budgets(self) -> str:
        """Ask the owners of every table what is left of this person's privacy budgets. It opens nothing."""
        from winnow.analytics.budget_question import BudgetQuestion  # noqa: PLC0415 - the extra `query`

        told, notes = list[dict[str, Any]](), list[str]()
        tables = sorted({name for site in self.sites() if not site.revoked for name in site.data})
        for name in tables[:MAX_TABLES]:
            try:
                with answer_errors():
                    answer = self.connection.ask(BudgetQuestion(table=name)).values
                    told += [{**each, "table": name} for each in answer["budgets"]]
            except WinnowError as error:
                notes.append(f"{name}: {error}")
        if len(tables) > MAX_TABLES:
            notes.append(f"{len(tables) - MAX_TABLES:,} more tables were not asked: winnow query budget asks for one")
        self.budgets, self.budget_notes = told, notes
        return f"{counted(len(told), 'budget')} told"

    def _recent(self, what: str, ask: Callable[[], Told]) -> Told:
        """The answer that is at hand, or else a new one; one thread asks, the others wait for it."""
        with self._lock:
            now = time.monotonic()
            self._kept = {key: kept for key, kept in self._kept.items() if now - kept[0] < KEPT_SECONDS}
            if what not in self._kept:
                self._kept[what] = (time.monotonic(), ask())
            return self._kept[what][1]  # type: ignore[no-any-return]


def has_ended(job: JobInfo) -> bool:
    return job.status in FINAL_STATES
