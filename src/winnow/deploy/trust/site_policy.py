"""What a site lets be done on its machine and with its data: `policy.toml` beside its kit. Without one, nothing.

The site has the last word, and believes no server: whom a job comes from is read off the signature of its bundle.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeAlias, get_args

import msgspec
from msgspec import Meta

from winnow.analytics.permissions import NO_ROWS_HINT, Permission, Reveal, noise_hint
from winnow.deploy.trust.errors import PolicyError
from winnow.deploy.trust.peer_identity import Peer
from winnow.deploy.trust.policy_rules import POLICY_FILE, PolicyDecision, PolicyRule, matches, read_policy
from winnow.deploy.trust.watched_file import WatchedFile

EvidenceShared: TypeAlias = Literal["inputs", "columns", "labels"]


class JobRule(PolicyRule, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """These persons may submit jobs that use these data, and bring code of their own if it says so."""

    data: tuple[str, ...]
    own_code: bool = False


class SpendingLimit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What all answers to one person about one table may cost together, in differential privacy."""

    epsilon: Annotated[float, Meta(gt=0)]
    delta: Annotated[float, Meta(gt=0, lt=1)] = 1e-6


class SiteQueryRule(PolicyRule, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """These persons may put such questions to these tables. What an answer shows has at least `minimum` rows behind
    it; with `noise`, answers are noisy, and all of them together cost no more than that.
    """

    tables: tuple[str, ...]
    allow: tuple[Permission, ...]
    minimum: Annotated[int, Meta(ge=1, le=1_000_000_000)] = 10
    rows: Annotated[int, Meta(ge=0)] = 0
    """How many rows as they are an answer may show at most."""
    owners: Annotated[int, Meta(ge=1)] = 2
    """So many owners have to take part at least."""
    reveal: Reveal = "intersection"
    """What others may learn where identifiers are matched: which are in common, or only how many."""
    noise: SpendingLimit | None = None


class JobResourceLimits(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The most that one job may ask for; what is not given is limited by what the site has."""

    cpus: Annotated[float, Meta(gt=0)] | None = None
    memory_mb: Annotated[int, Meta(gt=0)] | None = None
    gpus: Annotated[int, Meta(ge=0)] | None = None


class SitePolicy(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    jobs: tuple[JobRule, ...] = ()
    queries: tuple[SiteQueryRule, ...] = ()
    """Who may ask what of which tables; jobs that put a question need no other rule."""
    limits: JobResourceLimits = JobResourceLimits()
    filters: tuple[dict[str, Any], ...] = ()
    """Forced on every job, in this order: tables with a `name` and the filter's settings."""
    remote_control: bool = False
    """Whether the agent stops or restarts when a person asks for it through the server."""
    keeper: bool = False
    """Whether this site keeps the masks of others in secure aggregation, for jobs that ask it to."""
    helper: bool = False
    """Whether this site computes as the third party for two owners of a table that it has not, where a question names
    it.
    """
    confusion_matrix: bool = False
    """Whether a job may learn, for each client's test samples, how many of which class are taken for which."""
    share_evidence: tuple[EvidenceShared, ...] | None = None
    """What a job may learn of each client's data when it assesses them: means and variances by class. None is all, or
    nothing where there are filters, which do not cover it.
    """
    sandbox: Literal["required", "none"] = "required"
    """Whether custom code may run where this machine's kernel offers no sandbox."""

    @property
    def shared_evidence(self) -> tuple[EvidenceShared, ...]:
        if self.share_evidence is None:
            return () if self.filters else get_args(EvidenceShared)
        return self.share_evidence


@dataclass(frozen=True, kw_only=True)
class QuestionRequest:
    """What a question wants of a site."""

    table: str
    needs: frozenset[str]
    rows: bool = False
    """Whether it shows rows as they are."""
    epsilon: float | None = None
    delta: float = 1e-6
    opens_nothing: bool = False


@dataclass(frozen=True, kw_only=True)
class JobRequest:
    """What a job wants of a site."""

    data: tuple[str, ...]
    own_code: bool = False
    cpus: float = 1.0
    memory_mb: int = 512
    gpus: int = 0


DENY_ALL = SitePolicy()


def admits(policy: SitePolicy, author: Peer, job: JobRequest) -> PolicyDecision:
    """Whether this person's job may run here. One rule must allow all of it; rules do not add up."""
    known = [rule for rule in policy.jobs if rule.includes(author)]
    if not known:
        return _denied(f"{author} may not run jobs here")
    for name in job.data:
        if not any(matches(rule.data, name) for rule in known):
            return _denied(f"{author} may not use data {name!r} here")
    fitting = [rule for rule in known if all(matches(rule.data, name) for name in job.data)]
    if not fitting:
        return _denied(f"{author} may not use these data together here: {', '.join(job.data)}")
    if job.own_code and not any(rule.own_code for rule in fitting):
        return _denied(f"{author} may not run custom code here")
    return within_limits(policy, author, job)


def within_limits(policy: SitePolicy, author: Peer, job: JobRequest) -> PolicyDecision:
    """Whether the job asks for no more of this machine than one job may."""
    asked = {"cpus": job.cpus, "memory_mb": job.memory_mb, "gpus": job.gpus}
    for resource, wanted in asked.items():
        most = getattr(policy.limits, resource)
        if most is not None and not wanted <= most:  # refuses what is no number, too
            return _denied(f"the job asks for {wanted:g} {resource}; this site allows {most:g}")
    return PolicyDecision(allowed=True, reason=f"{author} may run this job")


def answers(policy: SitePolicy, author: Peer, question: QuestionRequest) -> SiteQueryRule | PolicyDecision:
    """The rule under which this person's question is answered here, or why it is not. One rule must allow all of it;
    the first that does is taken.
    """
    known = [rule for rule in policy.queries if rule.includes(author)]
    if not known:
        return _denied(f"{author} may not ask questions here")
    about = [rule for rule in known if matches(rule.tables, question.table)]
    if not about:
        return _denied(f"{author} may not ask about table {question.table!r} here")
    allowing = [rule for rule in about if question.needs <= {*rule.allow}]
    if not allowing:
        least = min((question.needs - {*rule.allow} for rule in about), key=len)
        return _denied(f"{author} may not ask table {question.table!r} for {', '.join(sorted(least))} here")
    if question.opens_nothing:
        return next((rule for rule in allowing if rule.noise is not None), allowing[0])
    if question.rows and not (allowing := [rule for rule in allowing if rule.rows]):
        return _denied(f"{author} may see no rows of table {question.table!r} here; {NO_ROWS_HINT}")
    for rule in allowing:
        if rule.noise is None or (question.epsilon is not None and question.delta <= rule.noise.delta):
            return rule
    if question.epsilon is None:
        hint = noise_hint(question.needs)
        return _denied(f"questions about table {question.table!r} are answered with noise only here; {hint}")
    delta = max(rule.noise.delta for rule in allowing if rule.noise is not None)
    return _denied(f"epsilon is counted at delta = {delta:g} here; the question has delta = {question.delta:g}")


def strictest_rule(rules: Sequence[SiteQueryRule]) -> SiteQueryRule:
    """The rule for a question about several tables, each of which has one that allows it."""
    noisy = [rule.noise for rule in rules if rule.noise is not None]
    return msgspec.structs.replace(
        rules[0],
        allow=tuple(each for each in rules[0].allow if all(each in rule.allow for rule in rules)),
        minimum=max(rule.minimum for rule in rules),
        rows=min(rule.rows for rule in rules),
        owners=max(rule.owners for rule in rules),
        reveal="size" if any(rule.reveal == "size" for rule in rules) else "intersection",
        noise=min(noisy, key=lambda limit: (limit.epsilon, limit.delta), default=None),
    )


def allows_control(policy: SitePolicy) -> PolicyDecision:
    if not policy.remote_control:
        return _denied("this site's policy does not allow its agent to be stopped or restarted remotely")
    return PolicyDecision(allowed=True, reason="this site's agent may be stopped and restarted")


def watch_site_policy(folder: Path) -> WatchedFile[SitePolicy]:
    """The policy beside a kit, as it is now. A missing file, or one that cannot be understood, denies everything."""

    def deny_all(_: SitePolicy) -> SitePolicy:
        return DENY_ALL

    return WatchedFile(folder / POLICY_FILE, _read, first=DENY_ALL, on_missing=deny_all, on_invalid=deny_all)


def _read(content: bytes, _: SitePolicy) -> SitePolicy:
    return read_site_policy(content)


def read_site_policy(content: bytes) -> SitePolicy:
    policy = read_policy(content, SitePolicy)
    for each in policy.filters:
        if not isinstance(each.get("name"), str):
            raise PolicyError("a [[filters]] table has no name")
    return policy


def _denied(reason: str) -> PolicyDecision:
    return PolicyDecision(allowed=False, reason=reason)
