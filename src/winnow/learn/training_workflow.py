"""The workflow of a training run: select, collect, aggregate, evaluate (FedProf's algorithm 2), on some schedule."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray

from winnow.core import (
    AnyEvent,
    Evaluated,
    Federation,
    Metrics,
    Payload,
    Population,
    Reply,
    Scored,
    Selected,
    Stopped,
    Task,
    stream,
)
from winnow.learn.accountant_interface import PrivacyAccountant
from winnow.learn.aggregation import Fold
from winnow.learn.client_quality.assessor import ClientAssessor
from winnow.learn.client_quality.policy import SelectionUnderPolicy
from winnow.learn.client_round_method import PREDICTIONS
from winnow.learn.collect import RoundContext, RoundResult
from winnow.learn.evaluation import CombinedEvaluator
from winnow.learn.final_evaluation import FinalEvaluation, MakeFinalEvaluation
from winnow.learn.metrics import metrics_by_name
from winnow.learn.pseudo_labels import PSEUDO_LABELS, share_of_sure
from winnow.learn.reply_checks import ExpectedReply, Rejection, is_bounded_update
from winnow.learn.round_costs_and_rejections import RoundRecord
from winnow.learn.run_plan import TrainingPlan
from winnow.learn.selection import SelectedClients, Selection, SelectionContext, observe_one_by_one
from winnow.learn.server_optimiser import Features
from winnow.learn.stack import ModelState
from winnow.learn.tasks_besides_training import TasksBesidesTraining
from winnow.learn.teacher import Distiller, Teacher
from winnow.learn.training_state import TrainingState
from winnow.learn.trial_update_on_server_samples import EmulateUpdate


class TrainingWorkflow(TrainingState):
    """Trains a global model, round by round, and says what happens.

    All randomness comes from streams named by the round, so a restored workflow goes on exactly as the first one would
    have.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        initial: ModelState,
        evaluator: CombinedEvaluator,
        emulate: EmulateUpdate | None = None,
        evaluate_outcome: MakeFinalEvaluation | None = None,
        assessor: ClientAssessor | None = None,
        teacher: Teacher | None = None,
        distiller: Distiller | None = None,
        target: Features | None = None,
    ) -> None:
        super().__init__(plan, initial, assessor, teacher, distiller, target)
        self.evaluator, self._emulate, self._evaluate_outcome = evaluator, emulate, evaluate_outcome
        self.outcome: FinalEvaluation | None = None
        """What came of the training; known at its end."""
        self._accountant: PrivacyAccountant | None = None
        self._record = RoundRecord()
        self._simulated = False
        self._sizes = np.zeros(0, np.int64)

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
            scores, number = self._current_evaluation.metrics, self.round
            yield Evaluated(round=number, at=federation.clock.now, version=number, metrics=scores)
        else:
            selection.restore(self._selected)
            if self._plan.profile_bytes and self._evaluation.profile is None:
                self._evaluate(federation)  # the reference profile could not be kept: its holder makes another
        yield from self._plan.algorithm.schedule.run(self, selection, federation)
        ended = federation.clock.now
        if self._evaluate_outcome is not None:
            self.outcome = self._evaluate_outcome(
                self.best, self.model, self.round, self.round + 1, self._besides(federation).send
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
            send_tasks=self._besides(federation).send,
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

    def start_aggregation(self, population: Population, updates: int) -> Fold:
        """For so many updates to the shared model, in this round."""
        rng = stream(self._plan.seed, "aggregate", self.round)
        return self._plan.algorithm.aggregate.start(self.shared, population, updates, rng)

    def _start_fold(self, population: Population, awaited: int) -> Fold:
        fold = self.start_aggregation(population, awaited)
        return fold if self.assessor is None else self.assessor.policy.fold(fold)

    def apply(self, gathered: RoundResult, federation: Federation, later: Sequence[Reply] = ()) -> RoundResult:
        """Take the server's step; what was really folded. What the folded clients proposed to keep is kept, and that of
        replies for `later`.

        A rule such as the median may pass over an update that is not finite: its client keeps what it had.
        """
        start = self.shared
        if not self._step(gathered, len(federation.population)):
            reason = "the round's model is not finite; the previous model is kept"
            rejected = [Rejection(client=reply.task.client, reason=reason) for reply in gathered.aggregated]
            gathered = replace(gathered, aggregated=[], rejected=gathered.rejected + rejected)
        self._record.add_training(gathered)
        if self.assessor is not None:
            aggregated = {reply.task.client for reply in gathered.aggregated}
            as_sent = [each for each in gathered.reported if each.task.client in aggregated]  # a schedule moves them
            self.assessor.observe(self.round, start, as_sent)
        self._collect_state = gathered.next_round_state
        federation.settle(reply.task for reply in (*gathered.aggregated, *later) if is_bounded_update(reply))
        return gathered

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
        self._keep(self.evaluator.evaluate(self.model, self.round, self.round, self._besides(federation).send))

    def _assess(self, federation: Federation) -> Iterator[AnyEvent]:
        """Have the clients assessed, if it is time."""
        if self.assessor is not None:
            tasks = self._besides(federation)
            yield from self.assessor.assess(
                self.model, self.shared, self.round, tasks.ask, tasks.send, federation.clock
            )

    def _besides(self, federation: Federation) -> TasksBesidesTraining:
        return TasksBesidesTraining(federation=federation, expected=lambda: self.expected, record=self._record)

    def _round_metrics(self, gathered: RoundResult) -> Metrics:
        """What is known of the round besides scores: what collecting showed, what privacy it cost, who is how sure."""
        spent = {} if self._accountant is None else self._accountant.spent()
        told = (("collect", gathered.metrics), ("privacy", spent), (PSEUDO_LABELS, share_of_sure(gathered.aggregated)))
        return {name: figures for name, figures in told if figures}

    @property
    def expected(self) -> ExpectedReply:
        """What a valid reply looks like."""
        plan, client = self._plan, self._plan.algorithm.client
        predictions = {PREDICTIONS: {PREDICTIONS: torch.zeros(plan.predicted_rows, plan.outputs)}}
        main, shapes = (PREDICTIONS, predictions) if client.sends_predictions else ("model", {})
        return ExpectedReply(
            parts={**client.extra_part_shapes(self.shared), **self.payload, **shapes},
            reply_parts=(main, *client.extra_parts),
            reference=self._evaluation.profile if self._evaluation else None,
            sizes=self._sizes,
            exact_counts=self._plan.algorithm.select.comparison.exact_counts,
            metrics=metrics_by_name(self._plan.metrics),
        )
