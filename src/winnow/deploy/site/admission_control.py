"""Whether a job may run at this site: decided by the site's policy and the signature of the job's author alone."""

from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winnow.core.errors import WinnowError
from winnow.deploy.jobs.bundle_format import Bundle
from winnow.deploy.sandbox.isolation import exposing_path, sandbox_unavailable_reason
from winnow.deploy.site.config import SiteConfig
from winnow.deploy.trust.kit import Kit
from winnow.deploy.trust.peer_identity import Peer, utc_now
from winnow.deploy.trust.policy_rules import PolicyDecision
from winnow.deploy.trust.signing import Signature, check_job_age, verify
from winnow.deploy.trust.site_policy import (
    JobRequest,
    QuestionRequest,
    SitePolicy,
    SiteQueryRule,
    admits,
    allows_control,
    answers,
    strictest_rule,
    watch_site_policy,
    within_limits,
)
from winnow.deploy.wire.messages import DeployJob

if TYPE_CHECKING:
    from winnow.analytics.question import Question


class NotAdmittedError(WinnowError):
    """This job may not run at this site."""


@dataclass(frozen=True, kw_only=True)
class AdmissionTerms:
    """The terms on which a job is admitted."""

    author: Peer
    data: str
    """The name of the data, or of the first table that a question is about."""
    own_code: bool
    filters: list[dict[str, Any]]
    confusion_matrix: bool
    share_evidence: list[str]
    sandboxed: bool
    rule: SiteQueryRule | None = None
    """Under which a question is answered; None for any other job, and for a helper, which has no rows."""
    tables: tuple[str, ...] = ()
    """Those of a question that this site has."""


class AdmissionControl:
    """Reads the policy again whenever it changes."""

    def __init__(self, kit: Kit, config: SiteConfig, now: Callable[[], datetime] = utc_now) -> None:
        self._kit, self._config, self._now = kit, config, now
        self._policy = watch_site_policy(kit.path)
        self._revoked = kit.watch_revocations()

    def author(self, bundle: Bundle) -> Peer:
        """Who signed the job; raises unless the project's authority vouches for them."""
        signature = Signature(certificate=bundle.certificate, value=bundle.signature)
        return verify(signature, bundle.signed, self._kit.authority, self._revoked.current(), self._now())

    def check_date(self, bundle: Bundle) -> None:
        """Raise if the job was signed too long ago; called before it starts here."""
        check_job_age(bundle.issued, self._now(), self._config.job_days)

    def admit(
        self, deploy: DeployJob, bundle: Bundle, author: Peer, question: "Question | None" = None
    ) -> AdmissionTerms:
        """The terms for this author, or NotAdmittedError. Cheap: it is called before every task."""
        if author.name != deploy.submitter:
            raise NotAdmittedError(f"the job was submitted by {deploy.submitter} but signed by {author}")
        policy, asked, name = self._policy.current(), deploy.resources, bundle.data_name
        request = JobRequest(
            data=(name,),
            own_code=bundle.own_code,
            cpus=asked.cpus,
            memory_mb=asked.memory_mb,
            gpus=asked.gpus,
        )
        if question is not None:
            return self._admit_question(policy, author, request, question)
        decision = admits(policy, author, request)
        if not decision.allowed:
            raise NotAdmittedError(decision.reason)
        if name in self._config.tables:
            self._admit_table(policy, author, name, bundle)
        elif name not in self._config.data:
            raise NotAdmittedError(f"this site has no data called {name!r}")
        return AdmissionTerms(
            author=author,
            data=name,
            own_code=bundle.own_code,
            filters=list(policy.filters),
            confusion_matrix=policy.confusion_matrix,
            share_evidence=list(policy.shared_evidence),
            sandboxed=bundle.own_code and self._sandboxed(required=policy.sandbox == "required"),
        )

    def _admit_table(self, policy: SitePolicy, author: Peer, name: str, bundle: Bundle) -> None:
        """A rule for any data means [data] alone, and custom code would see columns that are not declared."""
        if bundle.own_code:
            raise NotAdmittedError(f"{name!r} is a table, which jobs with custom code cannot use")
        if not any(name in rule.data for rule in policy.jobs if rule.includes(author)):
            raise NotAdmittedError(f"{author} may not train on table {name!r} here: no [[jobs]] rule names it")

    def _admit_question(
        self, policy: SitePolicy, author: Peer, request: JobRequest, question: "Question"
    ) -> AdmissionTerms:
        """Filters are for updates, and a rule for questions has terms of its own: neither stands in for the other."""
        held = tuple(name for name in question.tables if name in self._config.tables)
        rules = []
        for table in held or (() if policy.helper else (question.table,)):
            asked = QuestionRequest(
                table=table,
                needs=question.needs(),
                rows=question.shows_rows(),
                epsilon=question.epsilon,
                delta=question.delta,
                opens_nothing=question.opens_nothing,
            )
            if isinstance(rule := answers(policy, author, asked), PolicyDecision):
                raise NotAdmittedError(rule.reason)
            rules.append(rule)
        if not (decision := within_limits(policy, author, request)).allowed:
            raise NotAdmittedError(decision.reason)
        if rules and not held:
            raise NotAdmittedError(f"this site has no table called {question.table!r}")
        return AdmissionTerms(
            author=author,
            data=question.table,
            tables=held,
            own_code=False,
            filters=[],
            confusion_matrix=False,
            share_evidence=[],
            sandboxed=False,
            rule=strictest_rule(rules) if rules else None,
        )

    def remote_control_rejection(self) -> str | None:
        """Why this agent may not be stopped or restarted remotely, if so."""
        decision = allows_control(self._policy.current())
        return None if decision.allowed else decision.reason

    def may_keep_masks(self) -> bool:
        """Whether the policy lets this site act as mask keeper."""
        return self._policy.current().keeper

    def _sandboxed(self, *, required: bool) -> bool:
        """Whether the job's own code runs in a sandbox. Raises if there is none and the policy requires it."""
        reason = sandbox_unavailable_reason()
        for secret in (self._kit.path, Path(self._config.state)):
            if reason is None and (exposed := exposing_path(secret)) is not None:
                reason = f"the site's own files are in {exposed}, which sandboxed code can read; move them"
        if reason is not None and required:
            raise NotAdmittedError(f"this site cannot sandbox the job's own code: {reason}")
        return reason is None
