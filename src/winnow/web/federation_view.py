"""A federation as one person sees it, through that person's own connection and role."""

import time
from collections import OrderedDict, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from threading import Lock
from typing import Any, TypeVar
from weakref import WeakValueDictionary

from cryptography import x509

from winnow.analytics.answers import answer_errors
from winnow.core import ConfigError, WinnowError
from winnow.core.join_names import counted
from winnow.core.untrusted_text import one_line
from winnow.deploy.client.connection import Connection
from winnow.deploy.client.fetched_audit import CheckedAudit, FetchedAudit
from winnow.deploy.client.job_progress import LogFormatter
from winnow.deploy.client.unsigned_requests import FINAL_STATES, ServerRequests
from winnow.deploy.trust.kit import Kit
from winnow.deploy.trust.peer_identity import Peer
from winnow.deploy.wire.messages import ApplicationInfo, JobInfo, LogLine, ServerStatus, SiteInfo

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


@dataclass(frozen=True, kw_only=True)
class Viewer:
    """Who looks at the pages, and the CA by which that person's machine, or the server, checks the audit log."""

    peer: Peer
    project: str
    authority: x509.Certificate

    @classmethod
    def of(cls, kit: Kit) -> "Viewer":
        return cls(peer=kit.peer, project=kit.project, authority=kit.authority)

    def __str__(self) -> str:
        return f"{self.peer.name} ({self.peer.role}, {self.peer.organisation}) in project {self.project}"


class FederationView:
    """Answers of the server, each kept for a moment. Requests of different kinds do not wait for each other."""

    def __init__(
        self,
        requests: ServerRequests,
        viewer: Viewer,
        *,
        signing: Connection | None = None,
        control: bool = False,
    ) -> None:
        """`signing` is what submits jobs: only where the person's key is can one be signed."""
        self.requests, self.viewer, self.control, self._signing = requests, viewer, control, signing
        self.audit_log = FetchedAudit(requests.audit_page, viewer.authority)
        self.budgets: list[dict[str, Any]] | None = None
        """What owners last told; None before anybody asked."""
        self.budget_notes: list[str] = []
        self._kept: dict[str, tuple[float, Any]] = {}
        self._logs: OrderedDict[str, JobLog] = OrderedDict()
        self._lock = Lock()
        """For a moment, around what is kept."""
        self._asking: WeakValueDictionary[str, Lock] = WeakValueDictionary()
        """Held while something is asked for: others who want the same wait for it."""

    @property
    def can_sign(self) -> bool:
        return self._signing is not None

    @property
    def signing(self) -> Connection:
        if self._signing is None:
            raise ConfigError(
                "this needs your signature, and your key is not here: use winnow ui --kit, or the command"
            )
        return self._signing

    def status(self) -> ServerStatus:
        return self._recent("status", self.requests.status)

    def jobs(self) -> list[JobInfo]:
        """The latest first."""
        return self._recent("jobs", self.requests.jobs)[::-1]

    def job(self, name: str) -> JobInfo:
        return self._recent(f"job {name}", self.requests.job(name).state)

    def sites(self) -> list[SiteInfo]:
        return self._recent("sites", self.requests.sites)

    def applications(self) -> list[ApplicationInfo]:
        return self._recent("applications", self.requests.applications)

    def audit(self) -> CheckedAudit:
        """A server keeps no copy of its own log for each reader; a reader's machine does, to find out another past."""
        if not self.can_sign:
            return FetchedAudit(self.requests.audit_page, self.viewer.authority).refresh()
        return self._recent("audit", self.audit_log.refresh)

    def log(self, job: str) -> JobLog:
        """With what has been written since it was last read; a copy, since others read on."""
        with self._alone(f"log {job}"):
            with self._lock:
                log = self._logs.get(job) or JobLog()
            until = time.monotonic() + LOG_SECONDS
            for line in self.requests.job(job).lines(log.next, follow=False):
                log.add(line)
                if time.monotonic() > until:
                    break
            with self._lock:
                self._logs[job] = log
                self._logs.move_to_end(job)
                while len(self._logs) > LOGS:
                    self._logs.popitem(last=False)
            return replace(log, lines=log.lines.copy())

    def forget(self) -> None:
        """After a change, what was told before is out of date."""
        with self._lock:
            self._kept.clear()

    def ask_budgets(self) -> str:
        """Ask the owners of every table what is left of this person's privacy budgets. It opens nothing."""
        from winnow.analytics.budget_question import BudgetQuestion  # noqa: PLC0415 - the extra `query`

        told, notes = list[dict[str, Any]](), list[str]()
        signing = self.signing
        tables = sorted({name for site in self.sites() if not site.revoked for name in site.data})
        for name in tables[:MAX_TABLES]:
            try:
                with answer_errors():
                    answer = signing.ask(BudgetQuestion(table=name)).values
                    told += [{**each, "table": name} for each in answer["budgets"]]
            except WinnowError as error:
                notes.append(f"{name}: {error}")
        if len(tables) > MAX_TABLES:
            notes.append(f"{len(tables) - MAX_TABLES:,} more tables were not asked: winnow query budget asks for one")
        self.budgets, self.budget_notes = told, notes
        return f"{counted(len(told), 'budget')} told"

    def _recent(self, what: str, ask: Callable[[], Told]) -> Told:
        """The answer that is at hand, or else a new one; one thread asks, those who want the same wait for it."""
        with self._alone(what):
            with self._lock:
                now = time.monotonic()
                self._kept = {key: kept for key, kept in self._kept.items() if now - kept[0] < KEPT_SECONDS}
                if what in self._kept:
                    return self._kept[what][1]  # type: ignore[no-any-return]
            told = ask()
            with self._lock:
                self._kept[what] = (time.monotonic(), told)
            return told

    def _alone(self, what: str) -> Lock:
        with self._lock:
            return self._asking.setdefault(what, Lock())


def has_ended(job: JobInfo) -> bool:
    return job.status in FINAL_STATES
