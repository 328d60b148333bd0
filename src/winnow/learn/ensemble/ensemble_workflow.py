"""A workflow of workflows: leaves advance round after round in turn, each on its clients alone; then an over-arch."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.core import (
    AnyEvent,
    Evaluated,
    Federation,
    Rejected,
    RoundFinished,
    RunError,
    Selected,
    Snapshot,
    Stopped,
)
from winnow.learn.algorithm import Algorithm
from winnow.learn.ensemble.ensemble_net import joined_state, leaf_states
from winnow.learn.ensemble.leaf import Leaf, nearest_leaves, renumbered, with_leaves
from winnow.learn.ensemble.subset_federation import SubsetFederation
from winnow.learn.evaluation import CombinedEvaluator, Evaluation
from winnow.learn.final_evaluation import FinalEvaluation, MakeFinalEvaluation
from winnow.learn.run_plan import TrainingPlan
from winnow.learn.stack import ModelState
from winnow.learn.training_workflow import TrainingWorkflow

MakeOver = Callable[[Sequence[ModelState]], TrainingWorkflow]
"""From the trained leaves to the training of an over-arch on them."""


class EnsembleWorkflow:
    """Trains the leaves of an ensemble and what combines them. A round is one of every leaf; later ones are the
    over-arch's. Its models are states of an `EnsembleNet`.
    """

    assessor = None

    def __init__(
        self,
        plan: TrainingPlan,
        leaves: Sequence[Leaf],
        evaluator: CombinedEvaluator,
        evaluate_outcome: MakeFinalEvaluation,
        make_over: MakeOver | None,
        over_members: NDArray[np.int64],
        *,
        over_initial: ModelState,
        further_rounds: int,
        by_loss: bool,
    ) -> None:
        """`plan.rounds` are those of the leaves, which `further_rounds` of the over-arch follow."""
        self._plan, self.leaves, self.evaluator = plan, list(leaves), evaluator
        self._evaluate_outcome, self._make_over, self._over_members = evaluate_outcome, make_over, over_members
        self._over_initial = over_initial
        self._by_loss, self._further = by_loss, further_rounds
        self.over: TrainingWorkflow | None = None
        self.outcome: FinalEvaluation | None = None
        self.round, self.now = 0, 0.0
        self._stands_on: ModelState = {}
        self._leaf_best, self._best_score = self._joined(), -np.inf
        self._evaluation: Evaluation | None = None
        self._stopped = ""

    @property
    def algorithm(self) -> Algorithm:
        return self._plan.algorithm

    @property
    def rounds(self) -> int:
        return self._plan.rounds + self._further

    @property
    def model(self) -> ModelState:
        """The present ensemble."""
        return self._joined() if self.over is None else joined_state(self._leaves_below, self.over.model)

    @property
    def best(self) -> ModelState:
        """The best ensemble so far; with an over-arch, the best of its rounds."""
        return self._leaf_best if self.over is None else joined_state(self._leaves_below, self.over.best)

    @property
    def _alone(self) -> bool:
        """Whether one leaf is all there is: then nothing but its training happens."""
        return len(self.leaves) == 1

    @property
    def _leaves_below(self) -> list[ModelState]:
        return leaf_states(self._stands_on)

    def _joined(self) -> ModelState:
        return joined_state([leaf.training.model for leaf in self.leaves], self._over_initial)

    # Running ----------------------------------------------------------------------------------------------------------

    def run(self, federation: Federation) -> Iterator[AnyEvent]:
        if self._evaluation is None and not self._alone:
            self._keep(self._evaluated())
            yield Evaluated(round=0, at=federation.clock.now, version=0, metrics=self._metrics)
        if self.over is None:
            yield from self._train_leaves(federation)
        if self._make_over is not None:
            if self.over is None:
                self._begin_over()
            assert self.over is not None
            for event in self.over.run(SubsetFederation(federation, self._over_members)):
                yield self._of_over(event)
        self.outcome = self._evaluate_outcome(
            self.best, self.model, self.round, self.round + 1, lambda tasks, check=None: []
        )
        if self._stopped:
            yield Stopped(round=self.round, at=federation.clock.now, reason=self._stopped)

    def _train_leaves(self, federation: Federation) -> Iterator[AnyEvent]:
        runs = [self._start(leaf, federation) for leaf in self.leaves]
        while self.round < self._plan.rounds:
            if self._by_loss:
                runs = self._regrouped(federation)
            finished: list[RoundFinished] = []
            for leaf, run in zip(self.leaves, runs, strict=True):
                yield from self._advance(leaf, run, finished)
            if not finished:
                return
            self.round += 1
            self.now = federation.clock.now
            yield self._finished(finished)

    def _start(self, leaf: Leaf, federation: Federation) -> Iterator[AnyEvent]:
        return leaf.training.run(SubsetFederation(federation, leaf.members)) if len(leaf.members) else iter(())

    def _advance(self, leaf: Leaf, run: Iterator[AnyEvent], finished: list[RoundFinished]) -> Iterator[AnyEvent]:
        """A leaf's next round, whose end is added to those that are finished; what happens in it, by the clients'
        numbers in the whole federation.
        """
        for event in run:
            if isinstance(event, RoundFinished):
                finished.append(renumbered(event, leaf.members))
                return
            if isinstance(event, Stopped):
                self._stopped = self._stopped or f"{leaf.name}: {event.reason}"
            elif self._alone or isinstance(event, Selected | Rejected):
                yield renumbered(event, leaf.members)

    def _finished(self, leaves: Sequence[RoundFinished]) -> RoundFinished:
        """The end of a round of all leaves."""
        if self._alone:
            self._keep_of_leaf(self.leaves[0].training, leaves[0])
            return leaves[0]
        self._keep(self._evaluated())
        whole = RoundFinished(
            round=self.round, at=self.now, version=self.round, metrics=self._metrics, aggregated=np.zeros(0, np.int64)
        )
        return with_leaves(whole, self.leaves, leaves, self._plan.evaluated_by)

    def _regrouped(self, federation: Federation) -> list[Iterator[AnyEvent]]:
        """The leaves' runs, with every client at the leaf whose loss on its samples is least; who does not answer
        stays where it is.
        """
        nearest = nearest_leaves(self.leaves, federation, self.round)
        self.leaves = [
            Leaf(name=leaf.name, training=leaf.training, members=np.flatnonzero(nearest == place))
            for place, leaf in enumerate(self.leaves)
        ]
        return [self._start(leaf, federation) for leaf in self.leaves]

    # The over-arch ----------------------------------------------------------------------------------------------------

    def _begin_over(self) -> None:
        assert self._make_over is not None
        self._stands_on = self._leaf_best
        self.over = self._make_over(self._leaves_below)

    def _of_over(self, event: AnyEvent) -> AnyEvent:
        assert self.over is not None
        if isinstance(event, RoundFinished):
            self.round, self.now = event.round, event.at
        changed: AnyEvent = renumbered(event, self._over_members)
        return changed

    # Scores -----------------------------------------------------------------------------------------------------------

    def _evaluated(self) -> Evaluation:
        return self.evaluator.evaluate(self._joined(), self.round, self.round, lambda tasks, check=None: [])

    @property
    def _metrics(self) -> Mapping[str, Mapping[str, float]]:
        assert self._evaluation is not None
        return self._evaluation.metrics

    def _keep(self, evaluation: Evaluation) -> None:
        self._evaluation = evaluation
        score = evaluation.metrics.get(self._plan.evaluated_by, {}).get(self._plan.metric)
        value = None if score is None else -score if self._plan.lower_is_better else score
        if value is not None and value > self._best_score:
            self._leaf_best, self._best_score = self._joined(), value

    def _keep_of_leaf(self, training: TrainingWorkflow, event: RoundFinished) -> None:
        """Of one leaf the ensemble is that leaf: its scores and its best model are the ensemble's."""
        self._evaluation = Evaluation(
            metrics={name: dict(scores) for name, scores in event.metrics.items()}, profile=None
        )
        self._leaf_best = joined_state([training.best], self._over_initial)

    # Checkpoints ------------------------------------------------------------------------------------------------------

    def snapshot(self) -> Snapshot:
        arrays: dict[str, Any] = {f"best/{name}": tensor for name, tensor in self._leaf_best.items()}
        parts = {f"leaf{place}": leaf.training for place, leaf in enumerate(self.leaves)}
        if self.over is not None:
            parts["over"] = self.over
        values = dict[str, Any]()
        for name, training in parts.items():
            taken = training.snapshot()
            arrays |= {f"{name}/{path}": array for path, array in taken.arrays.items()}
            values[name] = dict(taken.values)
        for place, leaf in enumerate(self.leaves):
            arrays[f"members/{place}"] = leaf.members
        return Snapshot(
            arrays=arrays,
            values={
                "round": self.round,
                "leaf_rounds": self._plan.rounds,
                "now": self.now,
                "best_score": self._best_score,
                "metrics": {name: dict(scores) for name, scores in self._metrics.items()},
                "parts": values,
            },
        )

    def restore(self, snapshot: Snapshot) -> None:
        groups: dict[str, dict[str, Any]] = {}
        for path, array in snapshot.arrays.items():
            group, name = path.split("/", 1)
            groups.setdefault(group, {})[name] = array
        values, parts = snapshot.values, snapshot.values["parts"]
        if "over" in parts and values["leaf_rounds"] != self._plan.rounds:
            raise RunError(
                f"the over-arch stands on leaves of {values['leaf_rounds']} rounds, so rounds = {self._plan.rounds} "
                "needs another run; choose another --out"
            )
        self.leaves = [
            Leaf(name=leaf.name, training=leaf.training, members=np.asarray(groups["members"][str(place)], np.int64))
            for place, leaf in enumerate(self.leaves)
        ]
        for place, leaf in enumerate(self.leaves):
            leaf.training.restore(Snapshot(arrays=groups[f"leaf{place}"], values=parts[f"leaf{place}"]))
        self.round, self.now, self._best_score = values["round"], values["now"], values["best_score"]
        self._leaf_best = groups["best"]
        self._evaluation = Evaluation(metrics=values["metrics"], profile=None)
        if "over" in parts:
            self._begin_over()
            assert self.over is not None
            self.over.restore(Snapshot(arrays=groups["over"], values=parts["over"]))
