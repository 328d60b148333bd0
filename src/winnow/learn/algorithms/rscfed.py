"""RSCFed (Liang et al., 2022): some clients have labels, the others learn from a mean teacher; the server averages over
random groups, and within each counts those less that lie far from the rest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from winnow.core import Population
from winnow.learn.aggregation import AggregationRule, Contribution, Fold, WeightedSum
from winnow.learn.algorithm import Recipe
from winnow.learn.augment import weak
from winnow.learn.client_round_method import ClientUpdate, LocalResult, LocalTraining
from winnow.learn.moving_average import average_outputs, move_average
from winnow.learn.pseudo_labels import LABELLED, added, clipped, labelled_share
from winnow.learn.selection import UniformSelector
from winnow.learn.stack import Batch, Draw, GradientRule, Loss, ModelState, StepContext, mean_loss
from winnow.learn.tensor_arithmetic import real

TEACHER = "teacher"
STEPS = "steps so far"
"""How many steps a teacher has followed, beside its parameters, whose names have no spaces."""
NO_LABELS = "the client has no labels, and the first rounds are for those who have"
SQUARED_DISTANCE = Loss("squared distance", lambda outputs, targets: (outputs.softmax(1) - targets).square().sum(1))


def sharpened(probabilities: Tensor, temperature: float) -> Tensor:
    """p^(1/T), normalised."""
    powers = probabilities ** (1 / temperature)
    return powers / powers.sum(1, keepdim=True)


@dataclass(frozen=True, kw_only=True)
class MeanTeacherGradient(GradientRule):
    """CE(f(w(x)), y) over labelled samples + factor·‖p(w(u)) − sharpened p'(w'(u))‖² over unlabelled ones, bounded to a
    norm. p' is the teacher's, whose parameters follow the student's: θ' ← a_t·θ' + (1 − a_t)·θ.

    a_t = min(1 − 1/(t + 1), a) for the client's steps t = 0, 1, … of all rounds: at first the teacher is the mean of
    all students so far. With a = 0.999 alone it would hardly leave its start within hundreds of steps.
    """

    factor: float
    temperature: float
    average: float
    clip: float

    @property
    def draws(self) -> Sequence[Draw]:
        return Draw("labelled"), Draw("unlabelled")

    def __call__(
        self, at: StepContext, parameters: list[Tensor], batches: Sequence[Batch]
    ) -> tuple[list[Tensor], Tensor]:
        labelled, unlabelled = batches
        known = labelled._replace(x=at.changed(weak, "weak labelled", labelled))
        gradients, losses = at.gradients(parameters, known)
        seen = average_outputs(at, unlabelled, at.changed(weak, "weak teacher", unlabelled))
        followed = unlabelled._replace(
            x=at.changed(weak, "weak student", unlabelled), y=sharpened(seen.softmax(1), self.temperature)
        )
        further, distances = at.gradients(parameters, followed, SQUARED_DISTANCE)
        loss = mean_loss(labelled, losses) + self.factor * mean_loss(unlabelled, distances)
        return clipped(added(gradients, further, self.factor), self.clip), loss

    def after(self, at: StepContext, parameters: list[Tensor]) -> None:
        before = at.memory[STEPS]
        move_average(at, parameters, (1 - 1 / (before + 1)).clamp_max(self.average))
        before += 1


class MeanTeacherUpdate(ClientUpdate):
    """Labelled samples as they are, the others by a teacher that each client keeps from round to round. Reported is the
    share of labelled samples. In the first `warmup_rounds` clients without labels stay out, so that teachers begin with
    what the labels teach; the authors start from a model of the labelled clients.
    """

    name: Literal["mean-teacher"] = "mean-teacher"
    factor: float = Field(0.02, ge=0)
    temperature: float = Field(0.5, gt=0)
    average: float = Field(0.999, ge=0, lt=1)
    clip: float = Field(5.0, gt=0)
    warmup_rounds: int = Field(0, ge=0)
    training_factor: ClassVar[float] = 4 / 3
    own_steps: ClassVar[bool] = True
    uses_unlabelled: ClassVar[bool] = True
    tells_labelled_share: ClassVar[bool] = True

    def update(self, training: LocalTraining) -> LocalResult:
        rule = MeanTeacherGradient(
            factor=self.factor, temperature=self.temperature, average=self.average, clip=self.clip
        )
        new = {**training.model, STEPS: torch.zeros(1, device=training.data.device)}
        trained = training.train(gradient_rule=rule, memory=training.stored_part(TEACHER, new))
        shares = labelled_share(training.data, training.clients)
        warming_up = training.round <= self.warmup_rounds
        return LocalResult(
            model=trained.states,
            trained=trained,
            keep={TEACHER: trained.memory},
            metrics={LABELLED: shares},
            stay_out={place: NO_LABELS for place, share in enumerate(shares.tolist()) if warming_up and not share},
        )


class ConsensusAggregation(AggregationRule):
    """The mean over `groups` random groups of clients of each group's own mean, in which client i counts
    v_i·exp(−β·Σ_layers ‖θ_i − θ̄‖ / n_i).

    v_i is the number of its samples, n_i, times `labelled_weight` if it says that it has labels; θ̄ is the group's mean
    by n: a labelled client is not near the centre because it counts more. β is `labelled_beta` in groups that have such
    a client.
    """

    name: Literal["consensus"] = "consensus"
    groups: int = Field(3, ge=1)
    group_size: int = Field(5, ge=1)
    beta: float = Field(1e4, ge=0)
    labelled_beta: float = Field(100.0, ge=0)
    labelled_weight: float = Field(6.0, gt=0)
    needs: ClassVar[Mapping[str, str]] = {"schedule": "rounds", "client": "mean-teacher"}

    def start(self, model: ModelState, population: Population, cohort_size: int, rng: np.random.Generator) -> Fold:
        return _ConsensusFold(self, model, population, rng)


class _ConsensusFold:
    def __init__(
        self, rule: ConsensusAggregation, model: ModelState, population: Population, rng: np.random.Generator
    ) -> None:
        self._rule, self._model, self._sizes, self._rng = rule, model, population.sizes, rng
        self._updates: list[Contribution] = []

    def add(self, update: Contribution) -> None:
        self._updates.append(update)

    def finish(self) -> ModelState:
        count = len(self._updates)
        if not count:
            return self._model
        whole = WeightedSum(self._model)
        for _ in range(self._rule.groups):
            drawn = np.sort(self._rng.permutation(count)[: self._rule.group_size])
            whole.add(self._group_mean([self._updates[i] for i in drawn.tolist()]), 1.0)
        return whole.mean()

    def _group_mean(self, group: Sequence[Contribution]) -> ModelState:
        rule, sizes = self._rule, np.array([self._sizes[update.client] for update in group], np.float64)
        labelled = np.array([update.metrics.get(LABELLED, 0.0) > 0 for update in group])
        weights = sizes * np.where(labelled, rule.labelled_weight, 1.0)
        centre = _weighted_mean(self._model, group, sizes)
        distances = np.array([_distance(update.model, centre) for update in group])
        exponent = np.log(weights) - (rule.labelled_beta if labelled.any() else rule.beta) * distances / sizes
        return _weighted_mean(self._model, group, np.exp(exponent - exponent.max()))


def _weighted_mean(like: ModelState, group: Sequence[Contribution], weights: np.ndarray) -> ModelState:
    total = WeightedSum(like)
    for update, weight in zip(group, weights.tolist(), strict=True):
        total.add(update.model, weight)
    return total.mean()


def _distance(model: Mapping[str, Tensor], centre: ModelState) -> float:
    """Σ_layers ‖θ − θ̄‖, in numbers whose squares stay finite whatever a client sends."""
    return sum(
        float(torch.linalg.vector_norm(model[name] - tensor, dtype=torch.float64))
        for name, tensor in real(centre).items()
    )


rscfed = Recipe(
    name="rscfed",
    summary="mean teachers without labels, random groups agree",
    select=UniformSelector,
    client=MeanTeacherUpdate,
    aggregate=ConsensusAggregation,
)
