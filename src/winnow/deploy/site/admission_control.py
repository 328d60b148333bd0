"""Whether a job may run here, by the site's own policy and on the word of nobody but the job's author."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from winnow.core.errors import WinnowError
from winnow.deploy.jobs.bundle_format import Bundle
from winnow.deploy.sandbox.isolation import exposing_path, sandbox_unavailable_reason
from winnow.deploy.site.config import SiteConfig
from winnow.deploy.trust.kit import Kit
from winnow.deploy.trust.peer_identity import Peer, utc_now
from winnow.deploy.trust.signing import Signature, check_job_age, verify
from winnow.deploy.trust.site_policy import JobRequest, admits, allows_control, watch_site_policy
from winnow.deploy.wire.messages import DeployJob


class NotAdmittedError(WinnowError):
    """This job may not run here."""


@dataclass(frozen=True, kw_only=True)
class AdmissionTerms:
    """On what terms a job is admitted."""

    author: Peer
    data: str
    own_code: bool
    filters: list[dict[str, Any]]
    sandboxed: bool


class AdmissionControl:
    """Reads the policy anew whenever it changes."""

    def __init__(self, kit: Kit, config: SiteConfig, now: Callable[[], datetime] = utc_now) -> None:
        self._kit, self._config, self._now = kit, config, now
        self._policy = watch_site_policy(kit.path)
        self._revoked = kit.watch_revocations()

    def author(self, bundle: Bundle) -> Peer:
        """Who signed the job; raises unless the project's authority vouches for them."""
        signature = Signature(certificate=bundle.certificate, value=bundle.signature)
        return verify(signature, bundle.signed, self._kit.authority, self._revoked.current(), self._now())

    def check_date(self, bundle: Bundle) -> None:
        """Raise unless the job was signed lately; asked before it begins here."""
        check_job_age(bundle.issued, self._now(), self._config.job_days)

    def admit(self, deploy: DeployJob, bundle: Bundle, author: Peer) -> AdmissionTerms:
        """The terms for this author, or NotAdmittedError. Cheap: it is asked before every task."""
        if author.name != deploy.submitter:
            raise NotAdmittedError(f"the job was submitted by {deploy.submitter} and signed by {author}")
        policy, asked, name = self._policy.current(), deploy.resources, bundle.data_name
        request = JobRequest(
            data=(name,),
            own_code=bundle.own_code,
            cpus=asked.cpus,
            memory_mb=asked.memory_mb,
            gpus=asked.gpus,
        )
        decision = admits(policy, author, request)
        if not decision.allowed:
            raise NotAdmittedError(decision.reason)
        if name not in self._config.data:
            raise NotAdmittedError(f"this site has no data called {name!r}")
        return AdmissionTerms(
            author=author,
            data=name,
            own_code=bundle.own_code,
            filters=list(policy.filters),
            sandboxed=bundle.own_code and self._can_fence(required=policy.sandbox == "required"),
        )

    def controllable(self) -> str | None:
        """Why nobody may stop this agent from afar, if so."""
        decision = allows_control(self._policy.current())
        return None if decision.allowed else decision.reason

    def keeps_masks(self) -> bool:
        """Whether this site is willing to keep others' masks."""
        return self._policy.current().keeper

    def _can_fence(self, *, required: bool) -> bool:
        """Whether own code is shut in. Where it cannot be, it is refused unless the site does not mind."""
        reason = sandbox_unavailable_reason()
        for secret in (self._kit.path, Path(self._config.state)):
            if reason is None and (open_place := exposing_path(secret)) is not None:
                reason = f"the site's own files lie in {open_place}, where Python's libraries are; move them"
        if reason is not None and required:
            raise NotAdmittedError(f"own code cannot be shut in here: {reason}")
        return reason is None
