"""A job that has not begun: which sites could take part, what they said, and what it still waits for."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from winnow.config.job_settings import JobSettings
from winnow.deploy.server.job_spec import JobSpec
from winnow.deploy.server.site_sessions import SiteSession
from winnow.deploy.wire.messages import DataDescription, DeployJob

RETRY_SECONDS = 30.0
"""Seconds after which a site that refused is asked once more: its policy may have changed."""


@dataclass(kw_only=True)
class WaitingJob:
    job: str
    order: JobSpec
    deploy: DeployJob
    rank: tuple[int, float, str]
    """Jobs are considered in this order."""
    status: str
    reason: str
    offered: set[str] = field(default_factory=set)
    accepted: dict[str, DataDescription] = field(default_factory=dict)
    refused: dict[str, tuple[str, float]] = field(default_factory=dict)
    """Why and when."""
    enough_since: float | None = None

    @property
    def wishes(self) -> JobSettings:
        return self.order.wishes

    def forgive(self, now: float) -> None:
        """Those who refused long ago may be asked again."""
        self.refused = {site: (why, at) for site, (why, at) in self.refused.items() if now - at <= RETRY_SECONDS}

    def able(self, connected: Mapping[str, SiteSession]) -> list[str]:
        """The sites that could take part now, in the order in which their clients will be numbered."""
        wanted = list(dict.fromkeys(self.wishes.sites)) or sorted(connected)
        return [site for site in wanted if site in connected and not self._objection(connected[site])]

    def ready(self, here: Sequence[str], now: float, patience: float) -> bool:
        """Whether to begin: all who could take part have accepted, or enough have and the others were given time."""
        willing = [site for site in here if site in self.accepted]
        if len(willing) < self.wishes.needed:
            self.enough_since = None
            return False
        if self.enough_since is None:
            self.enough_since = now
        return len(willing) == len(here) or now - self.enough_since >= patience

    def lacking(self, connected: Mapping[str, SiteSession]) -> str:
        """Why too few sites can take part, in one line."""
        here = self.able(connected)
        known = {site: connected.get(site) for site in self.wishes.sites or sorted(connected)}
        why = [
            f"{site} {'is not connected' if desk is None else self._objection(desk)}"
            for site, desk in known.items()
            if site not in here
        ]
        why += [f"{site} refused: {reason}" for site, (reason, _) in self.refused.items() if site not in known]
        return "; ".join([f"waits for sites: {len(here)} of {self.wishes.needed} can take part", *why])

    def unanswered(self) -> str:
        """Whose answer is missing, in one line."""
        silent = sorted(self.offered - self.accepted.keys())
        refusals = [f"{site} refused: {reason}" for site, (reason, _) in sorted(self.refused.items())]
        return "; ".join([f"waits for answers of {', '.join(silent)}" if silent else "waits for sites", *refusals])

    def _objection(self, desk: SiteSession) -> str:
        """Why a site that is there cannot take part now; nothing if it can."""
        assert desk.session is not None
        if desk.site in self.refused:
            return f"refused: {self.refused[desk.site][0]}"
        if self.order.data not in desk.session.hello.data:
            return f"has no data called {self.order.data}"
        if self.job not in desk.parts and not desk.has_room(self.order.resources):
            return "has not enough free"
        return ""
