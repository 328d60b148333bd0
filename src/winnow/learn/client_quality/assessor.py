"""Compares clients' data with the reference's while a run goes on, and says whose are bad."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from winnow.core import AnyEvent, Arrays, Assessed, Clock, Payload, PolicyApplied, Reply, Task, Work, stream
from winnow.core.events import CANNOT_TELL
from winnow.learn.client_quality.assess_handler import ASSESS, AssessmentSettings
from winnow.learn.client_quality.assessment import ClientAssessment, assess, unknown_size
from winnow.learn.client_quality.client_findings import DataNames, client_findings
from winnow.learn.client_quality.client_median_reference import corrected_reference, typical_reference
from winnow.learn.client_quality.contribution import ContributionEstimate, ContributionEstimator
from winnow.learn.client_quality.departures import Departures, measure_all
from winnow.learn.client_quality.difference_size import difference_size
from winnow.learn.client_quality.evidence import ClientEvidence
from winnow.learn.client_quality.evidence_checks import EvidenceCheck
from winnow.learn.client_quality.findings import Finding
from winnow.learn.client_quality.policy import QualityPolicy
from winnow.learn.client_quality.reference_source import ReferenceSource, ServerReference
from winnow.learn.client_quality.reference_summary import ReferenceSummary
from winnow.learn.client_quality.reference_utility import ReferenceUtility
from winnow.learn.client_quality.score_table import ClientSpread, client_spread
from winnow.learn.client_quality.settings import QualitySettings
from winnow.learn.client_quality.update_evidence import UpdateEvidence, UpdateScore
from winnow.learn.reply_checks import CheckedReplies
from winnow.learn.representation_profile import ReplyCheck, SendTasks
from winnow.learn.stack import ModelState

MAX_ASSESSED_CLIENTS = 2_000
"""Of more clients, so many are drawn: nobody could look at all of them."""

NO_REFERENCE = "no client that holds the reference set told what it is like"


class AskClients(Protocol):
    """Holds an exchange like `SendTasks`, and also tells who did not answer, or not soundly, and why."""

    def __call__(self, tasks: Sequence[Task], check: ReplyCheck) -> CheckedReplies: ...


@dataclass(frozen=True, kw_only=True)
class Questions:
    """What clients are asked, whose answers are compared with what, and in which words."""

    settings: AssessmentSettings
    check: EvidenceCheck
    reference: ReferenceSource
    work: Work
    names: DataNames


@dataclass(frozen=True, kw_only=True)
class ContributionSearch:
    """How the server finds out what the model gains by each client."""

    estimator: ContributionEstimator
    utility: ReferenceUtility
    evaluations: float
    """How many models a round may have evaluated, on average."""
    seed: int


class ClientAssessor:
    """Asks clients, remembers what they told, and judges, in one run."""

    def __init__(
        self,
        settings: QualitySettings,
        *,
        rounds: int,
        clients: NDArray[np.int64],
        weights: NDArray[np.float64],
        questions: Questions | None,
        updates: UpdateEvidence | None,
        contributions: ContributionSearch | None,
        policy: QualityPolicy,
    ) -> None:
        """Of these `clients`; `weights` are all clients' in the aggregation. Without `questions` nobody is asked."""
        self._settings, self._due = settings, settings.assessment_rounds(rounds)
        self._clients, self._weights = clients.tolist(), weights
        self._questions, self.policy = questions, policy
        self._updates, self._contributions = updates, contributions
        self._history: dict[int, list[Departures]] = {client: [] for client in self._clients}
        self.reference: ReferenceSummary | None = None
        """What clients were last compared with."""
        self._spread: ClientSpread | None = None

    def observe(self, round: int, start: ModelState, replies: Sequence[Reply]) -> None:
        """See the updates of a round, which began with this model."""
        weights = {reply.task.client: float(self._weights[reply.task.client]) for reply in replies}
        if self._updates is not None:
            self._updates.observe(replies, weights)
        if (search := self._contributions) is not None:
            rng = stream(search.seed, "contribution", round)
            search.estimator.observe(start, replies, weights, search.utility, rng, search.evaluations)

    def assess(
        self, model: ModelState, shared: ModelState, round: int, ask: AskClients, send_tasks: SendTasks, clock: Clock
    ) -> Iterator[AnyEvent]:
        """Assess the clients after a round, if it is time, and apply the policy. `shared` is what is sent of the
        `model`.
        """
        if round not in self._due:
            return
        evidence, reasons = self._evidence(model, shared, round, ask, send_tasks)
        updates = {} if self._updates is None else self._updates.scores()
        contributions = {} if self._contributions is None else self._contributions.estimator.estimates()
        typical = None if self.reference is None else typical_reference(self.reference, evidence.values())
        found = assess(
            self._history,
            false_alarms=self._settings.false_alarms,
            asked=self._questions is not None,
            updates={client: score.z for client, score in updates.items()},
            contribution=contributions,
            findings=partial(self._findings, typical, evidence, updates, contributions),
            size_of=partial(self._size, typical, evidence),
        )
        found = [_with_reason(each, reasons) for each in found]
        yield Assessed(
            round=round,
            at=clock.now,
            version=round,
            clients=np.array([each.client for each in found], np.int64),
            scores=np.array([each.score for each in found], np.float64),
            verdicts=tuple(each.verdict for each in found),
            evidence=tuple(each.evidence for each in found),
        )
        for client, action, reason in self.policy.apply(found):
            yield PolicyApplied(round=round, at=clock.now, client=client, action=action, reason=reason)

    def summary_for_owners(
        self, model: ModelState
    ) -> tuple[ReferenceSummary, AssessmentSettings, ClientSpread | None] | None:
        """What an owner needs to check data alone: what the server's reference is like, seen through a model, how
        clients are looked at, and how much they differ if that is known. None if the server has no reference set, or
        asks clients nothing.
        """
        questions = self._questions
        if questions is None or not isinstance(questions.reference, ServerReference):
            return None
        summary = questions.reference.summary_for_owners(model)
        return None if summary is None else (summary, questions.settings, self._spread)

    def _evidence(
        self, model: ModelState, shared: ModelState, round: int, ask: AskClients, send_tasks: SendTasks
    ) -> tuple[Mapping[int, ClientEvidence], Mapping[int, str]]:
        """What clients tell, by client; and of those that tell nothing, why."""
        questions = self._questions
        if questions is None:
            return {}, {}
        self.reference = questions.reference.summary(model, round, send_tasks)
        if self.reference is None:
            return {}, dict.fromkeys(self._clients, NO_REFERENCE)
        payload: Payload = {"model": shared}
        tasks = [
            Task(
                name=ASSESS,
                client=client,
                round=round,
                version=round,
                payload=payload,
                settings=questions.settings,
                work=questions.work,
            )
            for client in self._clients
        ]
        sound, refused, _ = ask(tasks, questions.check.fault)
        told = {reply.task.client: questions.check.evidence_of(reply) for reply in sound}
        corrected = corrected_reference(self.reference, told.values())
        for client, departures in zip(told, measure_all(corrected, [*told.values()]), strict=True):
            self._history[client].append(departures)
        if round == max(self._due):  # owners who check their data alone have the reference as it is
            self._spread = client_spread([[each] for each in measure_all(self.reference, [*told.values()])])
        return told, {each.client: each.reason for each in refused}

    def _findings(
        self,
        typical: ReferenceSummary | None,
        evidence: Mapping[int, ClientEvidence],
        updates: Mapping[int, UpdateScore],
        contributions: Mapping[int, ContributionEstimate],
        client: int,
    ) -> Sequence[Finding]:
        found: list[Finding] = []
        if client in evidence and typical is not None and self._questions is not None:
            found += client_findings(evidence[client], typical, self._questions.names)
        if client in updates:
            found.append(Finding(kind="updates", strength=1.0, text=updates[client].text()))
        if client in contributions:
            found.append(Finding(kind="contribution", strength=1.0, text=contributions[client].text()))
        return found

    def _size(self, typical: ReferenceSummary | None, evidence: Mapping[int, ClientEvidence], client: int) -> float:
        if typical is None or self._questions is None or client not in evidence:
            return unknown_size(client)
        return difference_size(evidence[client], typical, self._questions.names.inputs)

    # State ----------------------------------------------------------------------------------------------------------

    def state(self) -> Arrays:
        """Named arrays for a checkpoint: numbers by client, and nothing of what clients told."""
        groups: dict[str, Arrays] = {"policy": self.policy.state(), "history": self._history_state()}
        if self._spread is not None:
            groups["spread"] = {"centre": self._spread.centre, "spread": self._spread.spread}
        if self._updates is not None:
            groups["updates"] = self._updates.state()
        if self._contributions is not None:
            groups["contribution"] = self._contributions.estimator.state()
        return {f"{group}/{name}": array for group, named in groups.items() for name, array in named.items()}

    def _history_state(self) -> Arrays:
        told = {client: departures for client, departures in self._history.items() if departures}
        stacked = [each.array for departures in told.values() for each in departures]
        return {
            "clients": np.array(list(told), np.int64),
            "times": np.array([len(departures) for departures in told.values()], np.int64),
            **({"departures": np.stack(stacked)} if stacked else {}),
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        groups: dict[str, dict[str, Any]] = {}
        for path, array in state.items():
            group, name = path.split("/", 1)
            groups.setdefault(group, {})[name] = np.asarray(array)
        self.policy.restore(groups["policy"])
        history = groups["history"]
        ends = np.cumsum(history["times"])[:-1]
        for client, own in zip(
            history["clients"].tolist(), np.split(history.get("departures", np.zeros(0)), ends), strict=False
        ):
            self._history[client] = [Departures.of(array) for array in own]
        if "spread" in groups:
            self._spread = ClientSpread(**groups["spread"])
        if self._updates is not None:
            self._updates.restore(groups["updates"])
        if self._contributions is not None:
            self._contributions.estimator.restore(groups["contribution"])


def _with_reason(assessed: ClientAssessment, reasons: Mapping[int, str]) -> ClientAssessment:
    """Of whom nothing is known, why not."""
    reason = reasons.get(assessed.client)
    return replace(assessed, evidence=reason) if assessed.verdict == CANNOT_TELL and reason else assessed
