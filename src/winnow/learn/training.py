"""The workflow of a training run: invite, collect, aggregate, assess (FedProf's algorithm 2), at some pace."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.core import (
    AnyEvent,
    Assessed,
    Cost,
    Federation,
    Invited,
    Outcome,
    Payload,
    Refused,
    Reply,
    RoundFinished,
    Scored,
    Snapshot,
    Task,
    Work,
    stream,
)
from winnow.learn.algorithm import Algorithm
from winnow.learn.collect import Expected, Gathered, Refusal, sift
from winnow.learn.handlers import TrainSettings
from winnow.learn.judge import Judge, Verdict
from winnow.learn.profile import Profile
from winnow.learn.select import Invitation, Selection, Turn
from winnow.learn.server import Folded
from winnow.learn.stack import Layout, ModelState
from winnow.learn.tree import only


@dataclass(frozen=True, kw_only=True)
class Plan:
    """What does not change during a run."""

    algorithm: Algorithm
    rounds: int
    seed: int
    metric: str
    message_bytes: int
    """What one transfer of the model weighs."""
    profile_bytes: int
    """What a profile weighs; 0 where replies carry none."""
    layout: Layout
    """What of the model is trained."""
    private: frozenset[str] = frozenset()
    """The names of what stays with the clients: it is neither sent nor folded."""
    judged_by: str = "reference"
    """Whose scores say which model is the best: those on the reference set, the clients' own, or those once tuned."""


class Training:
    """Trains a global model, round by round, and says what happens.

    Version v is the model after round v; version 0 is the common start. All randomness comes from streams named by the
    round, so a restored workflow goes on exactly as the first one would have.
    """

    def __init__(self, plan: Plan, initial: ModelState, judge: Judge) -> None:
        self._plan, self.judge = plan, judge
        self.round = 0
        self._now = 0.0
        self.initial = self.model = initial
        self.best, self._best_score = initial, -np.inf
        self._trained = tuple(name for name in plan.layout.trained if name not in plan.private)
        self._server = plan.algorithm.server.start(only(initial, self._trained))
        self._shared_of: ModelState | None = None
        self._shared: ModelState = {}
        self._selected: Mapping[str, Any] = {}
        self._verdict: Verdict | None = None
        self._spent: list[Cost] = []
        self._refusals: list[Refusal] = []
        self.underway = Snapshot(arrays={}, values={})
        """What the pace itself must remember: what is under way when a round ends."""

    def run(self, federation: Federation) -> Iterator[AnyEvent]:
        selection = self._plan.algorithm.select.start(federation.population)
        if self._verdict is None:
            self._assess(federation)
            yield Assessed(round=0, at=federation.clock.now, version=0, metrics=self._verdict_now.metrics)
        else:
            selection.restore(self._selected)
            if self._plan.profile_bytes and self._verdict.profile is None:
                self._assess(federation)  # the reference profile could not be kept: its holder makes another
        yield from self._plan.algorithm.pace.run(self, selection, federation)

    # What a pace does -------------------------------------------------------------------------------------------------

    @property
    def rounds(self) -> int:
        """How many rounds the run shall have."""
        return self._plan.rounds

    @property
    def algorithm(self) -> Algorithm:
        return self._plan.algorithm

    def begin(self, federation: Federation, oldest: int | None = None) -> Turn:
        """Enter the next round. `oldest` is the oldest version that clients are still at work on."""
        self.round += 1
        return Turn(
            round=self.round,
            version=self.round - 1,
            oldest=self.round - 1 if oldest is None else oldest,
            rng=stream(self._plan.seed, "select", self.round),
            model=self.shared,
            reference=self._verdict_now.profile,
            message_bytes=self._plan.message_bytes,
            trained=self._trained,
            ask=lambda tasks: self._ask(federation, tasks),
        )

    def announce(self, invitation: Invitation, federation: Federation) -> Iterator[AnyEvent]:
        """Say whom the selection invites."""
        at = federation.clock.now
        if invitation.scores is not None:
            yield Scored(round=self.round, at=at, scores=invitation.scores)
        yield Invited(
            round=self.round, at=at, version=self.round - 1, clients=invitation.clients, counts=invitation.counts
        )

    def gather(self, invitation: Invitation, federation: Federation) -> Gathered:
        """Have the invited train, and fold what is sound."""
        algorithm, population = self._plan.algorithm, federation.population
        clients, drawn, awaited = invitation.clients.tolist(), int(invitation.counts.sum()), invitation.until.replies
        return algorithm.collect.gather(
            federation,
            self.tasks(clients, population.sizes),
            until=invitation.until,
            counts=dict(zip(clients, invitation.counts.tolist(), strict=True)),
            begin=lambda: algorithm.aggregate.start(self.shared, population, min(drawn, awaited or drawn)),
            expected=self.expected,
        )

    def apply(self, gathered: Gathered, federation: Federation) -> None:
        """Take the server's step; what the folded clients proposed to keep is kept."""
        self._spent += [reply.cost for reply in gathered.answered]
        self._refusals += gathered.refused
        federation.settle(reply.task for reply in gathered.folded)
        if gathered.folded:
            folded = Folded(
                model=gathered.model,
                clients=len(gathered.folded),
                population=len(federation.population),
                trained=self._trained,
                parts=gathered.parts,
            )
            self._server, model = self._plan.algorithm.server.step(self._server, self.shared, folded)
            self.model = self._plan.layout.tied(self.model | model)

    def finish(self, gathered: Gathered, selection: Selection, federation: Federation) -> Iterator[AnyEvent]:
        """Judge the new version, and end the round: all state is what a checkpoint should hold."""
        self._selected = selection.state()
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
        payload = self.payload if payload is None else payload
        number = self.round if round is None else round
        plan, algorithm = self._plan, self._plan.algorithm
        profiled = plan.profile_bytes > 0
        settings = TrainSettings(
            local=algorithm.local,
            client=algorithm.client,
            seed=plan.seed,
            profile=profiled,
            value=algorithm.values_model,
        )

        @cache
        def work(passes: float) -> Work:
            return Work(
                training_passes=passes,
                profiling_passes=float(profiled or algorithm.values_model),
                download_bytes=int(plan.message_bytes * algorithm.server.models_down),
                upload_bytes=int(plan.message_bytes * algorithm.client.models_up),
                profile_bytes=plan.profile_bytes,
            )

        return [
            Task(
                name="train",
                client=k,
                round=number,
                version=number - 1,
                payload=payload,
                settings=settings,
                work=work(algorithm.client.passes(algorithm.local, int(sizes[k]))),
            )
            for k in clients
        ]

    # Besides ----------------------------------------------------------------------------------------------------------

    def _assess(self, federation: Federation) -> None:
        """Judge the present model; keep it if it is the best so far."""
        self._verdict = self.judge.assess(
            self.model, self.round, self.round, lambda tasks: self._ask(federation, tasks)
        )
        score = self._verdict.metrics.get(self._plan.judged_by, {}).get(self._plan.metric)
        if score is not None and score > self._best_score:
            self.best, self._best_score = self.model, score

    def _ask(self, federation: Federation, tasks: Sequence[Task]) -> list[Outcome]:
        """An exchange besides training: its cost is charged to the round, unsound replies are left out."""
        with federation.dispatch(tasks) as exchange:
            outcomes = sorted(exchange, key=lambda outcome: outcome.task.client)
        self._spent += [outcome.cost for outcome in outcomes if isinstance(outcome, Reply)]
        sound, refused = sift(outcomes, self.expected)
        self._refusals += refused
        return list(sound)

    def _refused(self, federation: Federation) -> Iterator[AnyEvent]:
        refusals, self._refusals = self._refusals, []
        for refusal in refusals:
            yield Refused(round=self.round, at=federation.clock.now, client=refusal.client, reason=refusal.reason)

    def _finished(self, gathered: Gathered, federation: Federation) -> RoundFinished:
        self._now = federation.clock.now
        spent, self._spent = Cost.total(self._spent), []
        losses = [reply.metrics["loss"] for reply in gathered.folded if "loss" in reply.metrics]
        return RoundFinished(
            round=self.round,
            at=self._now,
            version=self.round,
            metrics=self._verdict_now.metrics,
            folded=np.array([reply.task.client for reply in gathered.folded], np.int64),
            loss=float(np.nanmean(losses)) if np.isfinite(losses).any() else float("nan"),
            joules=spent.joules,
            cost=spent,
        )

    # State ----------------------------------------------------------------------------------------------------------

    @property
    def _verdict_now(self) -> Verdict:
        assert self._verdict is not None, "the model has not been assessed yet"
        return self._verdict

    @property
    def expected(self) -> Expected:
        """What a sound reply looks like."""
        return Expected(
            parts=self.payload,
            carried=("model", *self._plan.algorithm.client.sends),
            reference=self._verdict.profile if self._verdict else None,
        )

    def snapshot(self) -> Snapshot:
        verdict = self._verdict_now
        profile = {} if verdict.profile is None else verdict.profile.state()
        groups = {
            "model": self.model,
            "best": self.best,
            "server": self._server,
            "select": self._selected,
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
        profile = Profile.of(groups["profile"]) if "profile" in groups else None
        self.round, self._now = snapshot.values["round"], snapshot.values["now"]
        self._best_score = snapshot.values["best_score"]
        self._verdict = Verdict(metrics=snapshot.values["metrics"], profile=profile)
        self.underway = Snapshot(arrays=groups.get("underway", {}), values=snapshot.values.get("underway", {}))
