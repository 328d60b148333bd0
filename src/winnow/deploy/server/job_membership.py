"""Which sites participate in the rounds of a running job, and which are excluded, since when and why.

A site is excluded while it is silent for too long, rejects the job, or has a revoked certificate. Rounds continue
without it, its tasks failing, as long as `min_sites` others participate; with fewer the job waits. The site is
readmitted as soon as it accepts the job again, which it is asked at growing intervals.
"""

import logging
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Protocol

from winnow.config.job_settings import JobSettings
from winnow.deploy.server.job_log_writer import JobLogs
from winnow.deploy.server.site_instruction_delivery import SiteSession
from winnow.deploy.server.site_job_state import Participation
from winnow.deploy.wire.errors import one_line
from winnow.deploy.wire.messages import LOG_KIND, SITE_LOST_KIND, AbsentSite, CancelTasks, ClientResult

log = logging.getLogger(__name__)

FIRST_RETRY, MAX_DOUBLINGS = 2.0, 7
"""Seconds until an excluded site is asked again; they double so many times, to 256."""


class TaskSource(Protocol):
    """The running job: what it does when replies come, or sites go and return."""

    @property
    def task_blobs(self) -> Path | None:
        """Where the blobs of its tasks are."""

    def reply_received(self, result: ClientResult, path: Path | None) -> None: ...

    def restart(self) -> None:
        """Go back to the last committed round: sites returned that this round excludes, and others are missing."""

    def pause_deadlines(self, on: bool) -> None:
        """While the job waits for sites."""


class JobMembership:
    """Of one running job."""

    def __init__(
        self,
        job: str,
        sessions: Mapping[str, SiteSession],
        sites: Sequence[str],
        source: TaskSource,
        job_logs: JobLogs,
        settings: JobSettings,
    ) -> None:
        self.job, self.source, self._sessions, self._sites, self._job_logs = job, source, sessions, sites, job_logs
        self._needed, self._timeout, self._task_timeout = settings.needed, settings.site_timeout, settings.task_timeout
        self._announced = False
        """Whether the log says that the job waits."""
        for site in sites:
            part = self._part(site)
            if part.exclusion_reason and part.excluded_since is None:  # it changed its mind while the job started
                self.exclude(site, part.exclusion_reason, self._sessions[site].last_seen)

    def exclude(self, site: str, reason: str, now: float, kind: str = LOG_KIND) -> None:
        """Continue without this site. It is logged once, and the site asked again."""
        part, reason = self._part(site), one_line(reason)
        part.retry_at = now + FIRST_RETRY * 2 ** min(part.retries, MAX_DOUBLINGS)
        if part.exclusion_reason != reason or part.excluded_since is None:
            part.exclusion_reason, part.excluded_since = reason, part.excluded_since or time.time()
            self._job_logs.record_exclusion(self.job, AbsentSite(site=site, since=part.excluded_since, reason=reason))
            self._log(f"site {site} is excluded: {reason}", kind)
        self.update()

    def readmit(self, site: str) -> None:
        """The site accepts the job. It gets the tasks that were kept for it."""
        part = self._part(site)
        part.retries, part.retry_at = 0, None
        if not part.exclusion_reason:
            return
        part.exclusion_reason, part.excluded_since = "", None
        self._job_logs.record_exclusion(self.job, site)
        self._log(f"site {site} rejoined the job")
        for order in part.assignments():
            self._sessions[site].send(order)
        self.update()

    def sweep(self, now: float) -> None:
        """Exclude sites that have been silent for too long, and ask connected ones again."""
        for site in self._sites:
            session, part = self._sessions[site], self._part(site)
            if now - session.last_seen > self._timeout and not part.exclusion_reason:
                session.disconnect()  # it says hello when it is back, and is asked then
                reason = f"no contact for {self._timeout:g} s; it rejoins when it reconnects"
                self.exclude(site, reason, now, SITE_LOST_KIND)
            elif session.connection is not None and part.retry_at is not None and now >= part.retry_at:
                part.retries, part.retry_at = part.retries + 1, None
                session.send(part.deploy)
        self.update()

    def update(self) -> None:
        """Fail the tasks of excluded sites, where enough others participate in their round."""
        for site in self._sites:
            part = self._part(site)
            for open_task in list(part.tasks.values()) if part.exclusion_reason else ():
                if self._participating(open_task.task.round) >= self._needed:
                    part.excluded_rounds.add(open_task.task.round)
                    self._fail_task(site, part, open_task.task.id)
        if self._is_waiting != self._announced:
            self._announced = self._is_waiting
            self._log(self._shortage() if self._is_waiting else "the job continues")
            self.source.pause_deadlines(self._is_waiting)
        if self._is_waiting and self._participating() >= self._needed:
            self.source.restart()

    def fail(self, task: str, client: int, reason: str) -> None:
        """There will be no reply from this client."""
        result = ClientResult(job=self.job, task=task, client=client, stage="taking part", failure=reason)
        self.source.reply_received(result, None)

    def exclusions(self) -> list[AbsentSite]:
        return [
            AbsentSite(site=site, since=part.excluded_since, reason=part.exclusion_reason)
            for site in self._sites
            if (part := self._part(site)).excluded_since is not None
        ]

    def summary(self) -> str:
        """The state of the job in one line: who is excluded, who is not connected, whose replies are awaited."""
        parts = [self._shortage()] if self._is_waiting else []
        parts += [
            f"{each.site} has been excluded since {format_utc(each.since)}: {each.reason}" for each in self.exclusions()
        ]
        for site in self._disconnected():
            at = self._sessions[site].last_seen_utc
            since = f"last contact {format_utc(at)}" if at else "no contact since this server became leader"
            parts.append(f"{site} is not connected: {since}; it is excluded after {self._timeout:g} s without contact")
        return "; ".join([*parts, *self._awaited()])

    def has_absences(self) -> bool:
        """Whether a site is excluded, or may soon be."""
        return bool(self.exclusions() or self._disconnected())

    # ------------------------------------------------------------------------------------------------------------------

    def _part(self, site: str) -> Participation:
        return self._sessions[site].participations[self.job]

    @property
    def _is_waiting(self) -> bool:
        """Whether tasks are kept for excluded sites, because the others are too few."""
        return any(part.tasks for part in map(self._part, self._sites) if part.exclusion_reason)

    def _disconnected(self) -> list[str]:
        """Who is not connected, and not yet excluded."""
        return [
            site
            for site in self._sites
            if self._sessions[site].connection is None and not self._part(site).exclusion_reason
        ]

    def _not_reconnected(self) -> list[str]:
        """Of those, who has not contacted this leader at all. They do not count for `min_sites`."""
        return [site for site in self._disconnected() if self._sessions[site].last_seen_utc is None]

    def _awaited(self) -> list[str]:
        """Whose replies are awaited, since when, and how it goes on; nothing if nobody's are."""
        since = {
            site: min(each.assigned_at for each in part.tasks.values())
            for site in self._sites
            if (part := self._part(site)).tasks and not part.exclusion_reason
        }
        if not since:
            return []
        who = ", ".join(f"{site} since {format_utc(at)}" for site, at in since.items())
        limit = self._task_timeout and f"{self._task_timeout:g} s"
        then = f"the round continues without them after {limit}" if limit else "for as long as they keep contact"
        return [f"waiting for replies from {who} ({then})"]

    def _participating(self, round_: int | None = None) -> int:
        """How many sites participate now, and have in this round so far."""
        parts = [self._part(site) for site in self._sites if site not in self._not_reconnected()]
        return sum(not part.exclusion_reason and round_ not in part.excluded_rounds for part in parts)

    def _shortage(self) -> str:
        count = self._participating()
        verb = "participates" if count == 1 else "participate"
        text = f"the job is waiting for sites: {count} {verb}, {self._needed} needed (min_sites)"
        absent = self._not_reconnected()
        return f"{text}; not reconnected yet: {', '.join(absent)}" if absent else text

    def _fail_task(self, site: str, part: Participation, task: str) -> None:
        clients = sorted(part.tasks[task].pending_clients)
        part.withdraw(task)
        self._sessions[site].send(CancelTasks(job=self.job, tasks=[task]))
        assert part.excluded_since is not None
        reason = f"site {site} has been excluded since {format_utc(part.excluded_since)}: {part.exclusion_reason}"
        for client in clients:
            self.fail(task, client, reason)

    def _log(self, text: str, kind: str = LOG_KIND) -> None:
        log.info("job %s: %s", self.job, text)
        self._job_logs.add_server_line(self.job, text, kind)


def format_utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
