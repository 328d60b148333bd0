"""The workflow of a training run: select, collect, aggregate, evaluate (FedProf's algorithm 2), on some schedule."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.core import (
    AnyEvent,
    Evaluated,
    Failure,
    Federation,
    Metrics,
    Outcome,
    Payload,
    Population,
    Reply,
    Scored,
    Selected,
    Snapshot,
    Stopped,
    Task,
    stream,
)
from winnow.core.untrusted_text import one_line
from winnow.learn.accountant_interface import PrivacyAccountant
from winnow.learn.aggregation import Fold
from winnow.learn.algorithm import Algorithm
from winnow.learn.client_quality.assessor import ClientAssessor
from winnow.learn.client_quality.policy import SelectionUnderPolicy
from winnow.learn.collect import RoundContext, RoundResult
from winnow.learn.evaluation import CombinedEvaluator, Evaluation
from winnow.learn.final_evaluation import FinalEvaluation, MakeFinalEvaluation
from winnow.learn.metrics import metrics_by_name
from winnow.learn.profile_by_class import restored_profile
from winnow.learn.reply_checks import (
    CheckedReplies,
    ExpectedReply,
    Rejection,
    check_replies,
    is_bounded,
    is_bounded_update,
)
from winnow.learn.representation_profile import ReplyCheck
from winnow.learn.round_costs_and_rejections import RoundRecord
from winnow.learn.run_plan import TrainingPlan
from winnow.learn.selection import SelectedClients, Selection, SelectionContext, observe_one_by_one
from winnow.learn.server_optimiser import RoundAggregate
from winnow.learn.stack import ModelState
from winnow.learn.tensor_arithmetic import only
from winnow.learn.trial_update_on_server_samples import EmulateUpdate


class TrainingWorkflow:
    """Trains a global model, round by round, and says what happens.

    Version v is the model after round v; version 0 is the common start. All randomness comes from streams named by the
    round, so a restored workflow goes on exactly as the first one would have.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        initial: ModelState,
        evaluator: CombinedEvaluator,
        emulate: EmulateUpdate | None = None,
        evaluate_outcome: MakeFinalEvaluation | None = None,
        assessor: ClientAssessor | None = None,
    ) -> None:
        self._plan, self.evaluator, self._emulate = plan, evaluator, emulate
        self.assessor = assessor
        """Who says whose data are bad; None where nothing is asked about clients' data."""
        self._evaluate_outcome = evaluate_outcome
        self.outcome: FinalEvaluation | None = None
        """What came of the training; known at its end."""
        self.round = 0
        self._now = 0.0
        self.initial = self.model = initial
        self.best, self._best_score = initial, -np.inf
        self._trained = tuple(name for name in plan.layout.trained if name not in plan.private)
        self._server = plan.algorithm.server.start(only(initial, self._trained))
        self._shared_of: ModelState | None = None
        self._shared: ModelState = {}
        self._selected: Mapping[str, Any] = {}
        self._collect_state: Mapping[str, Any] = {}
        self._accountant: PrivacyAccountant | None = None
        self._accountant_state: Mapping[str, Any] = {}
        self._evaluation: Evaluation | None = None
        self._record = RoundRecord()
        self._simulated = False
        self._sizes = np.zeros(0, np.int64)
        self.schedule_state = Snapshot(arrays={}, values={})
        """What the schedule itself must remember: what is under way when a round ends."""

    def run(self, federation: Federation) -> Iterator[AnyEvent]:
        self._simulated, self._sizes = federation.simulated, federation.population.sizes
        selection = self._plan.algorithm.select.start(federation.population)
        if self.assessor is not None:
            selection = SelectionUnderPolicy(selection, self.assessor.policy)
        self._accountant = self._plan.accountant(federation.population)
        if self._accountant is not None and self._accountant_state:
            self._accountant.restore(self._accountant_state)
        if self._evaluation is None:
            self._evaluate(federation)
            yield Evaluated(round=0, at=federation.clock.now, version=0, metrics=self._current_evaluation.metrics)
        else:
            selection.restore(self._selected)
            if self._plan.profile_bytes and self._evaluation.profile is None:
                self._evaluate(federation)  # the reference profile could not be kept: its holder makes another
        yield from self._plan.algorithm.schedule.run(self, selection, federation)
        ended = federation.clock.now
        if self._evaluate_outcome is not None:
            self.outcome = self._evaluate_outcome(
                self.best, self.model, self.round, self.round + 1, partial(self._send_tasks, federation)
            )
            yield from self._record.rejected(self.round, ended)
        if self._budget_exhausted and self.round < self._plan.rounds:
            yield Stopped(round=self.round, at=ended, reason=self._budget_exhausted)

    # What a schedule does ---------------------------------------------------------------------------------------------

    @property
    def rounds(self) -> int:
        """How many rounds the run shall have: no more than there were once its privacy budget is spent."""
        return self.round if self._budget_exhausted else self._plan.rounds

    @property
    def _budget_exhausted(self) -> str | None:
        return self._accountant.exhausted_reason() if self._accountant is not None else None

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
            rng=self._selection_rng(federation),
            model=self.shared,
            reference=self._current_evaluation.profile,
            message_bytes=self._plan.message_bytes,
            trained=self._trained,
            send_tasks=partial(self._send_tasks, federation),
            profile_classes=self._plan.profile_classes,
        )

    def _selection_rng(self, federation: Federation) -> np.random.Generator:
        """Who is selected; where sampling hides who takes part, whoever knows the seed must not foresee it."""
        hides = self._plan.algorithm.select.sampling_probability(len(federation.population)) is not None
        draw = federation.randomness if hides else stream
        return draw(self._plan.seed, "select", self.round)

    def announce(self, selected: SelectedClients, federation: Federation) -> Iterator[AnyEvent]:
        """Charge the round to the privacy accountant, and report whom the selection chose."""
        if self._accountant is not None:
            self._accountant.record_round(selected.clients)
        at = federation.clock.now
        if selected.scores is not None:
            yield Scored(round=self.round, at=at, scores=selected.scores)
        yield Selected(
            round=self.round, at=at, version=self.round - 1, clients=selected.clients, counts=selected.counts
        )

    def round_context(self, selected: SelectedClients, federation: Federation) -> RoundContext:
        """All that the round's collection needs to know."""
        plan, population = self._plan, federation.population
        algorithm, clients = plan.algorithm, selected.clients.tolist()
        per_round = algorithm.select.cohort_size(len(population))
        sampled = algorithm.select.sampling_probability(len(population)) is not None
        drawn = per_round if sampled else int(selected.counts.sum())
        awaited = min(drawn, selected.until.replies or drawn)
        return RoundContext(
            round=self.round,
            seed=plan.seed,
            tasks=self.tasks(clients, population.sizes),
            until=selected.until,
            counts=dict(zip(clients, selected.counts.tolist(), strict=True)),
            start_fold=lambda: self._start_fold(population, awaited),
            expected=self.expected,
            selected=per_round,
            state=self._collect_state,
            emulated_update=partial(self._emulate, self.payload, self.round) if self._emulate else None,
            byte_scale=plan.message_bytes / max(1, sum(tensor.nbytes for tensor in self.shared.values())),
        )

    def _start_fold(self, population: Population, awaited: int) -> Fold:
        fold = self._plan.algorithm.aggregate.start(self.shared, population, awaited)
        return fold if self.assessor is None else self.assessor.policy.fold(fold)

    def apply(self, gathered: RoundResult, federation: Federation, later: Sequence[Reply] = ()) -> RoundResult:
        """Take the server's step; what was really folded. What the folded clients proposed to keep is kept, and that of
        replies for `later`.

        A rule such as the median may pass over an update that is not finite: its client keeps what it had.
        """
        start = self.shared
        if not self._step(gathered, federation):
            reason = "the round's model is not finite; the previous model is kept"
            rejected = [Rejection(client=reply.task.client, reason=reason) for reply in gathered.aggregated]
            gathered = replace(gathered, aggregated=[], rejected=gathered.rejected + rejected)
        self._record.add_training(gathered)
        if self.assessor is not None:
            self.assessor.observe(self.round, start, _unchanged(gathered))
        self._collect_state = gathered.next_round_state
        federation.settle(reply.task for reply in (*gathered.aggregated, *later) if is_bounded_update(reply))
        return gathered

    def _step(self, gathered: RoundResult, federation: Federation) -> bool:
        """Whether the server's step leads anywhere: sums that nobody could look into may hold anything."""
        if not gathered.aggregated and not gathered.valid_without_replies:
            return True
        aggregate = RoundAggregate(
            model=gathered.model,
            clients=len(gathered.aggregated),
            population=len(federation.population),
            trained_names=self._trained,
            parts=gathered.parts,
        )
        state, model = self._plan.algorithm.server.step(self._server, self.shared, aggregate)
        if not is_bounded(model) or not all(bool(tensor.isfinite().all()) for tensor in state.values()):
            return False
        self._server, self.model = state, self._plan.layout.tied(self.model | model)
        return True

    def observe(self, selection: Selection, context: SelectionContext, replies: Sequence[Reply]) -> None:
        """Have the selection see what replies report. In a simulation, where nobody lies, its failure is a bug."""
        try:
            selection.observe(context, replies)
        except Exception:
            if self._simulated:
                raise
            self._record.add((), observe_one_by_one(selection, context, replies))

    def finish(self, gathered: RoundResult, selection: Selection, federation: Federation) -> Iterator[AnyEvent]:
        """Evaluate the new version, and end the round: all state is what a checkpoint should hold."""
        self._selected = selection.state()
        self._accountant_state = {} if self._accountant is None else self._accountant.state()
        self._evaluate(federation)
        yield from self._assess(federation)
        self._now = federation.clock.now
        metrics = {**self._current_evaluation.metrics, **self._round_metrics(gathered)}
        yield from self._record.finish(self.round, self._now, gathered, metrics)

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

    def _evaluate(self, federation: Federation) -> None:
        """Evaluate the present model; keep it if it is the best so far."""
        self._evaluation = self.evaluator.evaluate(
            self.model, self.round, self.round, partial(self._send_tasks, federation)
        )
        score = self._evaluation.metrics.get(self._plan.evaluated_by, {}).get(self._plan.metric)
        value = None if score is None else -score if self._plan.lower_is_better else score
        if value is not None and value > self._best_score:  # NaN is not
            self.best, self._best_score = self.model, value

    def _assess(self, federation: Federation) -> Iterator[AnyEvent]:
        """Have the clients assessed, if it is time."""
        if self.assessor is not None:
            send, ask = partial(self._send_tasks, federation), partial(self._ask, federation)
            yield from self.assessor.assess(self.model, self.shared, self.round, ask, send, federation.clock)

    def _send_tasks(
        self, federation: Federation, tasks: Sequence[Task], check: ReplyCheck | None = None
    ) -> list[Outcome]:
        """An exchange besides training: its cost is charged to the round, unsound replies are left out."""
        sound, refused, answered = check_replies(_outcomes(federation, tasks), self.expected, check)
        self._record.add(answered, refused)
        return list(sound)

    def _ask(self, federation: Federation, tasks: Sequence[Task], check: ReplyCheck) -> CheckedReplies:
        """An exchange whose tasks clients may decline, and say why: only unsound replies are rejected."""
        outcomes = _outcomes(federation, tasks)
        sound, unsound, answered = check_replies(
            [each for each in outcomes if isinstance(each, Reply)], self.expected, check
        )
        self._record.add(answered, unsound)
        declined = [
            Rejection(client=each.task.client, reason=one_line(each.reason))
            for each in outcomes
            if isinstance(each, Failure)
        ]
        return CheckedReplies(sound, [*unsound, *declined], answered)

    def _round_metrics(self, gathered: RoundResult) -> Metrics:
        """What is known of the round besides scores: what its collection measured, what privacy it has cost."""
        spent = {} if self._accountant is None else self._accountant.spent()
        return {name: figures for name, figures in (("collect", gathered.metrics), ("privacy", spent)) if figures}

    # State ----------------------------------------------------------------------------------------------------------

    @property
    def _current_evaluation(self) -> Evaluation:
        assert self._evaluation is not None, "the model has not been evaluated yet"
        return self._evaluation

    @property
    def expected(self) -> ExpectedReply:
        """What a valid reply looks like."""
        return ExpectedReply(
            parts={**self._plan.algorithm.client.extra_part_shapes(self.shared), **self.payload},
            reply_parts=("model", *self._plan.algorithm.client.extra_parts),
            reference=self._evaluation.profile if self._evaluation else None,
            sizes=self._sizes,
            exact_counts=self._plan.algorithm.select.comparison.exact_counts,
            metrics=metrics_by_name(self._plan.metrics),
        )

    def snapshot(self) -> Snapshot:
        evaluation = self._current_evaluation
        profile = {} if evaluation.profile is None else evaluation.profile.state()
        groups = {
            "model": self.model,
            "best": self.best,
            "server": self._server,
            "select": self._selected,
            "collect": self._collect_state,
            "privacy": self._accountant_state,
            "profile": profile,
            "underway": self.schedule_state.arrays,
            "quality": {} if self.assessor is None else self.assessor.state(),
        }
        return Snapshot(
            arrays={f"{group}/{name}": array for group, named in groups.items() for name, array in named.items()},
            values={
                "round": self.round,
                "now": self._now,
                "best_score": self._best_score,
                "metrics": evaluation.metrics,
                "underway": dict(self.schedule_state.values),
            },
        )

    def restore(self, snapshot: Snapshot) -> None:
        groups: dict[str, dict[str, Any]] = {}
        for path, array in snapshot.arrays.items():
            group, name = path.split("/", 1)
            groups.setdefault(group, {})[name] = array
        self.model, self.best = groups["model"], groups["best"]
        self._server, self._selected = groups.get("server", {}), groups.get("select", {})
        self._collect_state = groups.get("collect", {})
        self._accountant_state = groups.get("privacy", {})
        profile = restored_profile(groups["profile"]) if "profile" in groups else None
        self.round, self._now = snapshot.values["round"], snapshot.values["now"]
        self._best_score = snapshot.values["best_score"]
        self._evaluation = Evaluation(metrics=snapshot.values["metrics"], profile=profile)
        if self.assessor is not None and "quality" in groups:
            self.assessor.restore(groups["quality"])
        self.schedule_state = Snapshot(arrays=groups.get("underway", {}), values=snapshot.values.get("underway", {}))


def _outcomes(federation: Federation, tasks: Sequence[Task]) -> list[Outcome]:
    with federation.dispatch(tasks) as exchange:
        return sorted(exchange, key=lambda outcome: outcome.task.client)


def _unchanged(gathered: RoundResult) -> list[Reply]:
    """The aggregated replies as their clients sent them; a schedule may have moved them."""
    aggregated = {reply.task.client for reply in gathered.aggregated}
    return [reply for reply in gathered.reported if reply.task.client in aggregated]
