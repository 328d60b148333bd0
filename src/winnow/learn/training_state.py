"""What a training knows between two rounds, all of which a checkpoint holds: models, the server's and others' state."""

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from winnow.core import Payload, Snapshot
from winnow.learn.algorithm import Algorithm
from winnow.learn.client_quality.assessor import ClientAssessor
from winnow.learn.collect import RoundResult
from winnow.learn.evaluation import Evaluation
from winnow.learn.profile_by_class import restored_profile
from winnow.learn.reply_checks import is_bounded
from winnow.learn.run_plan import TrainingPlan
from winnow.learn.server_optimiser import Features, RoundAggregate
from winnow.learn.stack import ModelState
from winnow.learn.teacher import Distiller, Teacher
from winnow.learn.tensor_arithmetic import only


class TrainingState:
    """The models of a training and what its parts remember. Version v is the model after round v; version 0 is the
    common start.
    """

    def __init__(
        self,
        plan: TrainingPlan,
        initial: ModelState,
        assessor: ClientAssessor | None,
        teacher: Teacher | None,
        distiller: Distiller | None,
        target: Features | None = None,
    ) -> None:
        self._plan, self._teacher, self._distiller, self._target = plan, teacher, distiller, target
        self.assessor = assessor
        """Who says whose data are bad; None where nothing is asked about clients' data."""
        self.round = plan.rounds_before
        self._now = 0.0
        self.initial = self.model = initial
        self.best, self._best_score = initial, -np.inf
        self._trained = tuple(name for name in plan.layout.trained if name not in plan.private)
        self._server = plan.algorithm.server.start(only(initial, self._trained))
        self._shared_of: ModelState | None = None
        self._shared: ModelState = {}
        self._selected: Mapping[str, Any] = {}
        self._collect_state: Mapping[str, Any] = {}
        self._accountant_state: Mapping[str, Any] = {}
        self._evaluation: Evaluation | None = None
        self.schedule_state = Snapshot(arrays={}, values={})
        """What the schedule itself must remember: what is under way when a round ends."""

    @property
    def now(self) -> float:
        """When the last round ended, by the run's own clock."""
        return self._now

    @property
    def algorithm(self) -> Algorithm:
        return self._plan.algorithm

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
        return {"model": self.shared, **self._plan.algorithm.server.broadcast(self._server), **self._plan.constants}

    def _step(self, gathered: RoundResult, population: int) -> bool:
        """Take the server's step, if it leads anywhere: sums that nobody could look into may hold anything."""
        teaches = self._teacher is not None and self._plan.algorithm.server.teaches
        if not gathered.aggregated and not gathered.valid_without_replies and not teaches:
            return True
        aggregate = RoundAggregate(
            model=gathered.model,
            clients=len(gathered.aggregated),
            population=population,
            trained_names=self._trained,
            parts=gathered.parts,
            replies=gathered.aggregated if self._plan.algorithm.server.sees_updates else (),
            teach=None if self._teacher is None else partial(self._teacher, round=self.round),
            target=self._target,
            distil=None if self._distiller is None else partial(self._distiller, round=self.round),
            round=self.round,
        )
        state, model = self._plan.algorithm.server.step(self._server, self.shared, aggregate)
        if not is_bounded(model) or not all(bool(tensor.isfinite().all()) for tensor in state.values()):
            return False
        self._server, self.model = state, self._plan.layout.tied(self.model | model)
        return True

    @property
    def _current_evaluation(self) -> Evaluation:
        assert self._evaluation is not None, "the model has not been evaluated yet"
        return self._evaluation

    def _keep(self, evaluation: Evaluation) -> None:
        """Remember what the present model scored, and the model if it is the best so far."""
        self._evaluation = evaluation
        score = evaluation.metrics.get(self._plan.evaluated_by, {}).get(self._plan.metric)
        value = None if score is None else -score if self._plan.lower_is_better else score
        if value is not None and value > self._best_score:  # NaN is not
            self.best = self.model | evaluation.fitted if evaluation.fitted else self.model
            self._best_score = value

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
