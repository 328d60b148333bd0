"""The workflow of a training run: invite, collect, aggregate, assess (FedProf's algorithm 2), at some pace."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.core import (
    AnyEvent,
    Cost,
    Evaluated,
    Federation,
    Metrics,
    Outcome,
    Payload,
    Rejected,
    Reply,
    RoundFinished,
    Scored,
    Selected,
    Snapshot,
    Stopped,
    Task,
    VirtualClock,
    stream,
)
from winnow.learn.algorithm import Algorithm
from winnow.learn.collect import RoundResult
from winnow.learn.emulated_client import EmulateUpdate
from winnow.learn.evaluation import CombinedEvaluator, Evaluation
from winnow.learn.privacy_accountant import PrivacyAccountant
from winnow.learn.randomness import secure_generator
from winnow.learn.reply_checks import Rejection, RoundContext, check_replies, finite, finite_update
from winnow.learn.representation_profile import Profile, ReplyCheck
from winnow.learn.selection import SelectedClients, Selection, SelectionContext, observe_one_by_one
from winnow.learn.server_optimiser import RoundAggregate
from winnow.learn.stack import ModelState
from winnow.learn.tensor_arithmetic import only
from winnow.learn.training_plan import TrainingPlan


class TrainingWorkflow:
    """Trains a global model, round by round, and says what happens.

    Version v is the model after round v; version 0 is the common start. All randomness comes from streams named by the
    round, so a restored workflow goes on exactly as the first one would have.
    """

    def __init__(
        self, plan: TrainingPlan, initial: ModelState, judge: CombinedEvaluator, emulate: EmulateUpdate | None = None
    ) -> None:
        self._plan, self.judge, self._emulate = plan, judge, emulate
        self.round = 0
        self._now = 0.0
        self.initial = self.model = initial
        self.best, self._best_score = initial, -np.inf
        self._trained = tuple(name for name in plan.layout.trained if name not in plan.private)
        self._server = plan.algorithm.server.start(only(initial, self._trained))
        self._shared_of: ModelState | None = None
        self._shared: ModelState = {}
        self._selected: Mapping[str, Any] = {}
        self._collected: Mapping[str, Any] = {}
        self._ledger: PrivacyAccountant | None = None
        self._booked: Mapping[str, Any] = {}
        self._verdict: Evaluation | None = None
        self._spent: list[Cost] = []
        self._refusals: list[Rejection] = []
        self._simulated = False
        self.underway = Snapshot(arrays={}, values={})
        """What the pace itself must remember: what is under way when a round ends."""

    def run(self, federation: Federation) -> Iterator[AnyEvent]:
        self._simulated = isinstance(federation.clock, VirtualClock)
        selection = self._plan.algorithm.select.start(federation.population)
        self._ledger = self._plan.ledger(federation.population)
        if self._ledger is not None and self._booked:
            self._ledger.restore(self._booked)
        if self._verdict is None:
            self._assess(federation)
            yield Evaluated(round=0, at=federation.clock.now, version=0, metrics=self._verdict_now.metrics)
        else:
            selection.restore(self._selected)
            if self._plan.profile_bytes and self._verdict.profile is None:
                self._assess(federation)  # the reference profile could not be kept: its holder makes another
        yield from self._plan.algorithm.schedule.run(self, selection, federation)
        if self._spent_up and self.round < self._plan.rounds:
            yield Stopped(round=self.round, at=federation.clock.now, reason=self._spent_up)

    # What a pace does -------------------------------------------------------------------------------------------------

    @property
    def rounds(self) -> int:
        """How many rounds the run shall have: no more than there were once its privacy budget is spent."""
        return self.round if self._spent_up else self._plan.rounds

    @property
    def _spent_up(self) -> str | None:
        return self._ledger.refusal() if self._ledger is not None else None

    @property
    def now(self) -> float:
        """When the last round ended, by the run's own clock."""
        return self._now

    @property
    def algorithm(self) -> Algorithm:
        return self._plan.algorithm

    def begin(self, federation: Federation, oldest: int | None = None) -> SelectionContext:
        """Enter the next round. `oldest` is the oldest version that clients are still at work on."""
        self.round += 1
        return SelectionContext(
            round=self.round,
            version=self.round - 1,
            oldest_pending_version=self.round - 1 if oldest is None else oldest,
            rng=self._luck(federation),
            model=self.shared,
            reference=self._verdict_now.profile,
            message_bytes=self._plan.message_bytes,
            trained=self._trained,
            send_tasks=partial(self._ask, federation),
        )

    def _luck(self, federation: Federation) -> np.random.Generator:
        """Who is invited; sampling that hides who takes part must not be foreseen by those who know the seed."""
        hides = self._plan.algorithm.select.sampling_probability(len(federation.population)) is not None
        return self._noise(federation, "select") if hides else stream(self._plan.seed, "select", self.round)

    def _noise(self, federation: Federation, purpose: str) -> np.random.Generator:
        """Randomness that protects somebody: it repeats on virtual time, where there is nobody to protect."""
        simulated = isinstance(federation.clock, VirtualClock)
        return stream(self._plan.seed, purpose, self.round) if simulated else secure_generator()

    def announce(self, invitation: SelectedClients, federation: Federation) -> Iterator[AnyEvent]:
        """Say whom the selection invites."""
        at = federation.clock.now
        if invitation.scores is not None:
            yield Scored(round=self.round, at=at, scores=invitation.scores)
        yield Selected(
            round=self.round, at=at, version=self.round - 1, clients=invitation.clients, counts=invitation.counts
        )

    def gather(self, invitation: SelectedClients, federation: Federation) -> RoundResult:
        """Have the invited train, and fold what is sound."""
        algorithm, population = self._plan.algorithm, federation.population
        clients, awaited = invitation.clients.tolist(), invitation.until.replies
        invited = algorithm.select.cohort_size(len(population))
        sampled = algorithm.select.sampling_probability(len(population)) is not None
        drawn = invited if sampled else int(invitation.counts.sum())
        if self._ledger is not None:
            self._ledger.book(invitation.clients)
        return algorithm.collect.gather(
            federation,
            self.tasks(clients, population.sizes),
            until=invitation.until,
            counts=dict(zip(clients, invitation.counts.tolist(), strict=True)),
            begin=lambda: algorithm.aggregate.start(self.shared, population, min(drawn, awaited or drawn)),
            expected=replace(
                self.expected,
                invited=invited,
                noise=lambda purpose: self._noise(federation, purpose),
                weighs=self._plan.message_bytes / max(1, sum(tensor.nbytes for tensor in self.shared.values())),
            ),
        )

    def apply(self, gathered: RoundResult, federation: Federation, later: Sequence[Reply] = ()) -> RoundResult:
        """Take the server's step; what was really folded. What the folded clients proposed to keep is kept, and that of
        replies for `later`.

        A rule such as the median may pass over an update that is not finite: its client keeps what it had.
        """
        if not self._step(gathered, federation):
            reason = "the round's model is not finite; the one before it stays"
            refused = [Rejection(client=reply.task.client, reason=reason) for reply in gathered.folded]
            gathered = replace(gathered, folded=[], refused=gathered.refused + refused)
        self._spent += [reply.cost for reply in gathered.answered]
        self._refusals += _once_each(gathered.refused)
        self._collected = gathered.left
        federation.settle(reply.task for reply in (*gathered.folded, *later) if finite_update(reply))
        return gathered

    def _step(self, gathered: RoundResult, federation: Federation) -> bool:
        """Whether the server's step leads anywhere: sums that nobody could look into may hold anything."""
        if not gathered.folded and not gathered.regardless:
            return True
        aggregate = RoundAggregate(
            model=gathered.model,
            clients=len(gathered.folded),
            population=len(federation.population),
            trained_names=self._trained,
            parts=gathered.parts,
        )
        state, model = self._plan.algorithm.server.step(self._server, self.shared, aggregate)
        if not finite(model) or not all(bool(tensor.isfinite().all()) for tensor in state.values()):
            return False
        self._server, self.model = state, self._plan.layout.tied(self.model | model)
        return True

    def observe(self, selection: Selection, turn: SelectionContext, replies: Sequence[Reply]) -> None:
        """Have the selection see what replies report. In a simulation, where nobody lies, its failure is a bug."""
        try:
            selection.observe(turn, replies)
        except Exception:
            if self._simulated:
                raise
            self._refusals += observe_one_by_one(selection, turn, replies)

    def finish(self, gathered: RoundResult, selection: Selection, federation: Federation) -> Iterator[AnyEvent]:
        """Judge the new version, and end the round: all state is what a checkpoint should hold."""
        self._selected = selection.state()
        self._booked = {} if self._ledger is None else self._ledger.state()
        self._assess(federation)
        yield from self._refused(federation)
        yield self._finished(gathered, federation)

    @property
    def shared(self) -> ModelState:
        """The present model without what stays with the clients; one object a version, as tasks compare by identity."""
        if not self._plan.private:
            return self.model
        if self._shared_of is not self.model:
            self._shared_of = self.model
            self._shared = {name: t for name, t in self.model.items() if name not in self._plan.private}
        return self._shared

    @property
    def payload(self) -> Payload:
        """What a training task of the present version carries."""
        return {"model": self.shared, **self._plan.algorithm.server.broadcast(self._server)}

    def tasks(
        self,
        clients: Sequence[int],
        sizes: NDArray[np.int64],
        *,
        payload: Payload | None = None,
        round: int | None = None,
    ) -> list[Task]:
        """Training in this round and from the present version, unless told otherwise, for each of these clients."""
        return self._plan.tasks(
            clients,
            sizes,
            payload=self.payload if payload is None else payload,
            round=self.round if round is None else round,
        )

    # Besides ----------------------------------------------------------------------------------------------------------

    def _assess(self, federation: Federation) -> None:
        """Judge the present model; keep it if it is the best so far."""
        self._verdict = self.judge.evaluate(self.model, self.round, self.round, partial(self._ask, federation))
        score = self._verdict.metrics.get(self._plan.evaluated_by, {}).get(self._plan.metric)
        if score is not None and score > self._best_score:
            self.best, self._best_score = self.model, score

    def _ask(self, federation: Federation, tasks: Sequence[Task], check: ReplyCheck | None = None) -> list[Outcome]:
        """An exchange besides training: its cost is charged to the round, unsound replies are left out."""
        with federation.dispatch(tasks) as exchange:
            outcomes = sorted(exchange, key=lambda outcome: outcome.task.client)
        sound, refused, answered = check_replies(outcomes, self.expected, check)
        self._spent += [reply.cost for reply in answered]
        self._refusals += refused
        return list(sound)

    def _refused(self, federation: Federation) -> Iterator[AnyEvent]:
        refusals, self._refusals = self._refusals, []
        for refusal in refusals:
            yield Rejected(round=self.round, at=federation.clock.now, client=refusal.client, reason=refusal.reason)

    def _finished(self, gathered: RoundResult, federation: Federation) -> RoundFinished:
        self._now = federation.clock.now
        spent, self._spent = Cost.total(self._spent), []
        losses = [reply.metrics["loss"] for reply in gathered.folded if "loss" in reply.metrics]
        return RoundFinished(
            round=self.round,
            at=self._now,
            version=self.round,
            metrics={**self._verdict_now.metrics, **self._told(gathered)},
            aggregated=np.array([reply.task.client for reply in gathered.folded], np.int64),
            loss=float(np.nanmean(losses)) if np.isfinite(losses).any() else float("nan"),
            joules=spent.joules,
            cost=spent,
        )

    def _told(self, gathered: RoundResult) -> Metrics:
        """What is known of the round besides scores: what its collection measured, what privacy it has cost."""
        spent = {} if self._ledger is None else self._ledger.spent()
        return {name: figures for name, figures in (("collect", gathered.measured), ("privacy", spent)) if figures}

    # State ----------------------------------------------------------------------------------------------------------

    @property
    def _verdict_now(self) -> Evaluation:
        assert self._verdict is not None, "the model has not been assessed yet"
        return self._verdict

    @property
    def expected(self) -> RoundContext:
        """What a sound reply looks like."""
        return RoundContext(
            parts={**self._plan.algorithm.client.extra_part_shapes(self.shared), **self.payload},
            carried=("model", *self._plan.algorithm.client.extra_parts),
            reference=self._verdict.profile if self._verdict else None,
            collected=self._collected,
            simulated=self._simulated,
            emulate=partial(self._emulate, self.payload, self.round) if self._emulate else None,
        )

    def snapshot(self) -> Snapshot:
        verdict = self._verdict_now
        profile = {} if verdict.profile is None else verdict.profile.state()
        groups = {
            "model": self.model,
            "best": self.best,
            "server": self._server,
            "select": self._selected,
            "collect": self._collected,
            "privacy": self._booked,
            "profile": profile,
            "underway": self.underway.arrays,
        }
        return Snapshot(
            arrays={f"{group}/{name}": array for group, named in groups.items() for name, array in named.items()},
            values={
                "round": self.round,
                "now": self._now,
                "best_score": self._best_score,
                "metrics": verdict.metrics,
                "underway": dict(self.underway.values),
            },
        )

    def restore(self, snapshot: Snapshot) -> None:
        groups: dict[str, dict[str, Any]] = {}
        for path, array in snapshot.arrays.items():
            group, name = path.split("/", 1)
            groups.setdefault(group, {})[name] = array
        self.model, self.best = groups["model"], groups["best"]
        self._server, self._selected = groups.get("server", {}), groups.get("select", {})
        self._collected = groups.get("collect", {})
        self._booked = groups.get("privacy", {})
        profile = Profile.of(groups["profile"]) if "profile" in groups else None
        self.round, self._now = snapshot.values["round"], snapshot.values["now"]
        self._best_score = snapshot.values["best_score"]
        self._verdict = Evaluation(metrics=snapshot.values["metrics"], profile=profile)
        self.underway = Snapshot(arrays=groups.get("underway", {}), values=snapshot.values.get("underway", {}))


def _once_each(refusals: Sequence[Rejection]) -> list[Rejection]:
    """A collection of several steps may refuse a client for what it did, and again as the round is abandoned: the first
    reason is its own.
    """
    first: dict[int, Rejection] = {}
    for refusal in refusals:
        first.setdefault(refusal.client, refusal)
    return list(first.values())
