"""The workflow of a training run in rounds: invite, collect, aggregate, assess (FedProf's algorithm 2)."""

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
from winnow.learn.select import Invitation, Turn
from winnow.learn.stack import ModelState


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


class Training:
    """Trains a global model, round by round, and says what happens.

    Version v is the model after round v; version 0 is the common start. All randomness comes from streams named by the
    round, so a restored workflow goes on exactly as the first one would have.
    """

    def __init__(self, plan: Plan, initial: ModelState, judge: Judge) -> None:
        self._plan, self.judge = plan, judge
        self._round = 0
        self._now = 0.0
        self.model = initial
        self.best, self._best_score = initial, -np.inf
        self._server = plan.algorithm.server.start(initial)
        self._selected: Mapping[str, Any] = {}
        self._verdict: Verdict | None = None
        self._spent: list[Cost] = []
        self._refusals: list[Refusal] = []

    def run(self, federation: Federation) -> Iterator[AnyEvent]:
        selection = self._plan.algorithm.select.start(federation.population)
        if self._verdict is None:
            self._assess(federation)
            yield Assessed(round=0, at=federation.clock.now, version=0, metrics=self._verdict_now.metrics)
        else:
            selection.restore(self._selected)
        while self._round < self._plan.rounds:
            self._round += 1
            turn = self._turn(federation)
            invitation = selection.propose(turn)
            yield from self._announce(invitation, federation)
            gathered = self._gather(invitation, federation)
            selection.observe(turn, gathered.reported)
            self._selected = selection.state()
            self._assess(federation)
            yield from self._refused(federation)
            yield self._finish(gathered, federation)

    # One round ------------------------------------------------------------------------------------------------------

    def _turn(self, federation: Federation) -> Turn:
        return Turn(
            round=self._round,
            version=self._round - 1,
            rng=stream(self._plan.seed, "select", self._round),
            reference=self._verdict_now.profile,
            ask=lambda tasks: self._ask(federation, tasks),
        )

    def _announce(self, invitation: Invitation, federation: Federation) -> Iterator[AnyEvent]:
        at = federation.clock.now
        if invitation.scores is not None:
            yield Scored(round=self._round, at=at, scores=invitation.scores)
        yield Invited(
            round=self._round, at=at, version=self._round - 1, clients=invitation.clients, counts=invitation.counts
        )

    def _gather(self, invitation: Invitation, federation: Federation) -> Gathered:
        """Train the invited, fold what is sound, and take the server's step."""
        algorithm, population = self._plan.algorithm, federation.population
        clients, drawn = invitation.clients.tolist(), int(invitation.counts.sum())
        gathered = algorithm.collect.gather(
            federation,
            self._training_tasks(clients, population.sizes),
            until=invitation.until,
            counts=dict(zip(clients, invitation.counts.tolist(), strict=True)),
            begin=lambda: algorithm.aggregate.start(self.model, population, drawn),
            expected=self._expected,
        )
        self._spent += [reply.cost for reply in gathered.answered]
        self._refusals += gathered.refused
        if gathered.folded:
            self._server, self.model = algorithm.server.step(self._server, self.model, gathered.model)
        return gathered

    def _training_tasks(self, clients: list[int], sizes: NDArray[np.int64]) -> list[Task]:
        local, profiled = self._plan.algorithm.local, self._plan.profile_bytes > 0
        settings = TrainSettings(local=local, seed=self._plan.seed, profile=profiled)
        payload = {"model": self.model}

        @cache
        def work(passes: float) -> Work:
            return Work(
                training_passes=passes,
                profiling_passes=1.0 if profiled else 0.0,
                download_bytes=self._plan.message_bytes,
                upload_bytes=self._plan.message_bytes,
                profile_bytes=self._plan.profile_bytes,
            )

        return [
            Task(
                name="train",
                client=k,
                round=self._round,
                version=self._round - 1,
                payload=payload,
                settings=settings,
                work=work(local.passes(int(sizes[k]))),
            )
            for k in clients
        ]

    def _assess(self, federation: Federation) -> None:
        """Judge the present model; keep it if it is the best so far."""
        self._verdict = self.judge.assess(
            self.model, self._round, self._round, lambda tasks: self._ask(federation, tasks)
        )
        score = self._verdict.metrics["reference"][self._plan.metric]
        if score > self._best_score:
            self.best, self._best_score = self.model, score

    def _ask(self, federation: Federation, tasks: Sequence[Task]) -> list[Outcome]:
        """An exchange besides training: its cost is charged to the round, unsound replies are left out."""
        with federation.dispatch(tasks) as exchange:
            outcomes = sorted(exchange, key=lambda outcome: outcome.task.client)
        self._spent += [outcome.cost for outcome in outcomes if isinstance(outcome, Reply)]
        sound, refused = sift(outcomes, self._expected)
        self._refusals += refused
        return list(sound)

    def _refused(self, federation: Federation) -> Iterator[AnyEvent]:
        refusals, self._refusals = self._refusals, []
        for refusal in refusals:
            yield Refused(round=self._round, at=federation.clock.now, client=refusal.client, reason=refusal.reason)

    def _finish(self, gathered: Gathered, federation: Federation) -> RoundFinished:
        self._now = federation.clock.now
        spent, self._spent = Cost.total(self._spent), []
        losses = [reply.metrics["loss"] for reply in gathered.folded if "loss" in reply.metrics]
        return RoundFinished(
            round=self._round,
            at=self._now,
            version=self._round,
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
    def _expected(self) -> Expected:
        return Expected(model=self.model, reference=self._verdict.profile if self._verdict else None)

    def snapshot(self) -> Snapshot:
        verdict = self._verdict_now
        profile = {} if verdict.profile is None else vars(verdict.profile)
        groups = {
            "model": self.model,
            "best": self.best,
            "server": self._server,
            "select": self._selected,
            "profile": profile,
        }
        return Snapshot(
            arrays={f"{group}/{name}": array for group, named in groups.items() for name, array in named.items()},
            values={
                "round": self._round,
                "now": self._now,
                "best_score": self._best_score,
                "metrics": verdict.metrics,
            },
        )

    def restore(self, snapshot: Snapshot) -> None:
        groups: dict[str, dict[str, Any]] = {}
        for path, array in snapshot.arrays.items():
            group, name = path.split("/", 1)
            groups.setdefault(group, {})[name] = array
        self.model, self.best = groups["model"], groups["best"]
        self._server, self._selected = groups.get("server", {}), groups.get("select", {})
        profile = Profile(**{k: np.asarray(v) for k, v in groups["profile"].items()}) if "profile" in groups else None
        self._round, self._now = snapshot.values["round"], snapshot.values["now"]
        self._best_score = snapshot.values["best_score"]
        self._verdict = Verdict(metrics=snapshot.values["metrics"], profile=profile)
