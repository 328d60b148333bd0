"""A job that has not started: which sites could participate, what they replied, and what it is waiting for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from winnow.config.job_settings import JobSettings
from winnow.deploy.server.job_spec import JobSpec
from winnow.deploy.server.site_instruction_delivery import SiteSession
from winnow.deploy.wire.messages import DataDescription, DeployJob

RETRY_SECONDS = 30.0
"""Seconds after which a site that rejected a job is asked once more: its policy may have changed."""


@dataclass(kw_only=True)
class WaitingJob:
    job: str
    spec: JobSpec
    deploy: DeployJob
    rank: tuple[int, float, str]
    """Jobs are considered in this order."""
    status: str
    reason: str
    offered: set[str] = field(default_factory=set)
    accepted: dict[str, DataDescription] = field(default_factory=dict)
    rejected: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Why and when."""
    enough_since: float | None = None
    unlogged_since: float | None = None
    """Since when it has been waiting for what its log does not say yet."""

    @property
    def settings(self) -> JobSettings:
        return self.spec.settings

    def expire_rejections(self, now: float) -> None:
        """Sites that rejected the job long ago may be asked again."""
        self.rejected = {site: (why, at) for site, (why, at) in self.rejected.items() if now - at <= RETRY_SECONDS}

    def available_sites(self, connected: Mapping[str, SiteSession]) -> list[str]:
        """The sites that could participate now, in the order in which their clients will be numbered."""
        wanted = list(dict.fromkeys(self.settings.sites)) or sorted(connected)
        return [site for site in wanted if site in connected and not self._unavailability(connected[site])]

    def ready(self, available: Sequence[str], now: float, join_wait: float) -> bool:
        """Whether to start: all available sites have accepted, or enough have and the others were given time."""
        accepted = [site for site in available if site in self.accepted]
        if len(accepted) < self.settings.needed:
            self.enough_since = None
            return False
        if self.enough_since is None:
            self.enough_since = now
        return len(accepted) == len(available) or now - self.enough_since >= join_wait

    def shortage(self, connected: Mapping[str, SiteSession]) -> str:
        """Why too few sites can participate, in one line."""
        available = self.available_sites(connected)
        known = {site: connected.get(site) for site in self.settings.sites or sorted(connected)}
        why = [
            f"{site} {'is not connected' if session is None else self._unavailability(session)}"
            for site, session in known.items()
            if site not in available
        ]
        why += [
            f"{site} rejected the job: {reason}" for site, (reason, _) in self.rejected.items() if site not in known
        ]
        needed = f"waiting for sites: {len(available)} of {self.settings.needed} can participate"
        return "; ".join([needed, *why, "it starts when enough of them can"])

    def pending_replies(self) -> str:
        """Which sites have not replied to the offer, in one line."""
        silent = sorted(self.offered - self.accepted.keys())
        rejections = [f"{site} rejected the job: {reason}" for site, (reason, _) in sorted(self.rejected.items())]
        waiting = [f"waiting for {', '.join(silent)} to accept or reject the job"] if silent else []
        return "; ".join([*waiting, *rejections])

    def _unavailability(self, session: SiteSession) -> str:
        """Why a connected site cannot participate now; empty if it can."""
        assert session.connection is not None
        if session.site in self.rejected:
            return f"rejected the job: {self.rejected[session.site][0]}"
        # A site that a question names may be a helper: it decides itself whether it takes part without the table.
        named_by_question = self.settings.kind is not None and session.site in self.settings.sites
        if self.spec.data not in session.connection.hello.data and not named_by_question:
            return f"has no data called {self.spec.data}"
        if self.job not in session.participations and not session.has_capacity(self.spec.resources):
            return "has too few free resources"
        return ""
