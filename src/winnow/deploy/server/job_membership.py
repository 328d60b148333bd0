"""Who takes part in the rounds of a running job, and who is left out, since when and why.

A site is left out while it is silent for too long, refuses the job, or has a revoked certificate. Rounds go on without
it, its tasks failing, as long as `min_sites` others take part; with fewer the job waits. It is taken back as soon as it
accepts the job again, which it is asked at growing intervals.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from winnow.deploy.jobs.ipc import EXCLUDED_SITE
from winnow.deploy.server.site_sessions import Participation, SiteSession
from winnow.deploy.wire.errors import one_line
from winnow.deploy.wire.messages import LOG_KIND, SITE_LOST_KIND, AbsentSite, CancelTasks

FIRST_RETRY, MAX_DOUBLINGS = 2.0, 7
"""Seconds until a site that was left out is asked again; they double so many times, to 256."""


@dataclass(frozen=True, kw_only=True)
class MembershipCallbacks:
    """What follows from it."""

    say: Callable[[str, str, str], None]
    """By job: a line for its log, and the line's kind."""
    note: Callable[[str, AbsentSite | str], None]
    """By job: a site is left out, or (its name) no longer is."""
    fail: Callable[[str, str, str, int, str], None]
    """By site, job, task and client: there will be no answer, and why."""
    start_again: Callable[[str], None]
    """By job: the round began without sites that are back, and waits for others that are not."""
    hold: Callable[[str, bool], None]
    """By job: whether it waits for sites, so that deadlines stand still."""


class JobMembership:
    """Of one running job. `timeout` is how many seconds a site may be silent."""

    def __init__(
        self,
        job: str,
        desks: Mapping[str, SiteSession],
        sites: Sequence[str],
        reactions: MembershipCallbacks,
        *,
        needed: int,
        timeout: float,
    ) -> None:
        self.job, self._desks, self._sites, self._reactions = job, desks, sites, reactions
        self._needed, self._timeout = needed, timeout
        self._said = False
        """Whether we have said that the job waits."""
        for site in sites:
            if (reason := self._part(site).out) and self._part(site).out_since is None:
                self.leave_out(site, reason, self._desks[site].seen)  # it changed its mind while the job began

    def leave_out(self, site: str, reason: str, now: float, kind: str = LOG_KIND) -> None:
        """Go on without this site. It is said once, and the site asked again."""
        part, reason = self._part(site), one_line(reason)
        part.offer_at = now + FIRST_RETRY * 2 ** min(part.offers, MAX_DOUBLINGS)
        if part.out != reason or part.out_since is None:
            part.out, part.out_since = reason, part.out_since or time.time()
            self._reactions.note(self.job, AbsentSite(site=site, since=part.out_since, reason=part.out))
            self._reactions.say(self.job, f"site {site} is left out: {part.out}", kind)
        self.review()

    def take_back(self, site: str) -> None:
        """The site accepts the job. It hears of the tasks that were kept for it."""
        part = self._part(site)
        part.offers, part.offer_at = 0, None
        if not part.out:
            return
        part.out, part.out_since = "", None
        self._reactions.note(self.job, site)
        self._reactions.say(self.job, f"site {site} takes part again", LOG_KIND)
        for order in part.assignments():
            self._desks[site].tell(order)
        self.review()

    def sweep(self, now: float) -> None:
        """Leave out who has been silent for too long, and ask those again who are there."""
        for site in self._sites:
            desk, part = self._desks[site], self._part(site)
            if now - desk.seen > self._timeout and not part.out:
                desk.disconnect()  # it says hello when it is back, and is asked then
                reason = f"no word from it for {self._timeout:g} s; it is taken back when it returns"
                self.leave_out(site, reason, now, SITE_LOST_KIND)
            elif desk.session is not None and part.offer_at is not None and now >= part.offer_at:
                part.offers, part.offer_at = part.offers + 1, None
                desk.tell(part.deploy)
        self.review()

    def review(self) -> None:
        """Fail the tasks of sites that are left out, where enough others take part in their round."""
        for site in self._sites:
            part = self._part(site)
            for open_task in list(part.tasks.values()) if part.out else ():
                if self._in(open_task.task.round) >= self._needed:
                    part.left_out.add(open_task.task.round)
                    self._fail(site, part, open_task.task.id)
        if self._waits != self._said:
            self._said = self._waits
            self._reactions.say(self.job, self._lack() if self._waits else "the job goes on", LOG_KIND)
            self._reactions.hold(self.job, self._waits)
        if self._waits and self._in() >= self._needed:
            self._reactions.start_again(self.job)

    def absences(self) -> list[AbsentSite]:
        return [
            AbsentSite(site=site, since=part.out_since, reason=part.out)
            for site in self._sites
            if (part := self._part(site)).out_since is not None
        ]

    def told(self) -> str:
        """How the job stands, in one line: who is left out, who is silent, whose answers are awaited."""
        said = [self._lack()] if self._waits else []
        said += [f"{each.site} is left out since {format_utc(each.since)}: {each.reason}" for each in self.absences()]
        for site in self._silent():
            at = self._desks[site].seen_at
            since = f"no word from it since {format_utc(at)}" if at else "it has not come since this server leads"
            said.append(f"{site} is not connected: {since}; it is left out after {self._timeout:g} s")
        awaited = {
            site: min(each.asked for each in part.tasks.values())
            for site in self._sites
            if (part := self._part(site)).tasks and not part.out
        }
        if awaited:
            said.append(f"awaits {', '.join(awaited)} since {format_utc(min(awaited.values()))}")
        return "; ".join(said)

    def missing(self) -> bool:
        """Whether a site is left out, or may soon be."""
        return bool(self.absences() or self._silent())

    # ------------------------------------------------------------------------------------------------------------------

    def _part(self, site: str) -> Participation:
        return self._desks[site].parts[self.job]

    def _parts(self) -> list[Participation]:
        return [self._part(site) for site in self._sites]

    @property
    def _waits(self) -> bool:
        """Whether tasks are kept for sites that are left out, because the others are too few."""
        return any(part.tasks for part in self._parts() if part.out)

    def _silent(self) -> list[str]:
        """Who is not connected, and not yet left out."""
        return [site for site in self._sites if self._desks[site].session is None and not self._part(site).out]

    def _in(self, round_: int | None = None) -> int:
        """How many sites take part now, and have in this round so far."""
        return sum(not part.out and round_ not in part.left_out for part in self._parts())

    def _lack(self) -> str:
        return f"the job waits for sites: {self._in()} take part, and it needs {self._needed} (min_sites)"

    def _fail(self, site: str, part: Participation, task: str) -> None:
        clients = sorted(part.tasks[task].waiting)
        part.withdraw(task)
        self._desks[site].tell(CancelTasks(job=self.job, tasks=[task]))
        assert part.out_since is not None
        reason = f"{EXCLUDED_SITE.format(site)}{format_utc(part.out_since)}: {part.out}"
        for client in clients:
            self._reactions.fail(site, self.job, task, client, reason)


def format_utc(at: float) -> str:
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
