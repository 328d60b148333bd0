"""q-FedAvg (Li et al., 2020, "Fair Resource Allocation in Federated Learning", algorithm 2): clients are drawn by the
size of their data, p_k = n_k/n, and those on which the model does badly count more. As in the authors' code a client
is drawn at most once a round.
"""

import math
from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from winnow.core import Population
from winnow.learn.aggregation import AggregationRule, Contribution, Fold, WeightedSum
from winnow.learn.algorithm import Recipe
from winnow.learn.algorithms.fedprox import SizeSelector
from winnow.learn.stack import ModelState
from winnow.learn.tensor_arithmetic import minus, norm, real

LARGEST_INVERSE = 1e9
"""Nobody trains at a lower rate than its inverse; who says so has nothing to weigh it by."""
TINY = 1e-10
"""Added to losses: where q < 1, a loss of nothing would have an infinite power."""


class FairAggregation(AggregationRule):
    """θ ← θ − Σ Δ_k / Σ h_k, where F_k is client k's loss of θ, and

        Δ_k = F_k^q·L·(θ − θ_k)    and    h_k = q·F_k^(q−1)·L²·‖θ − θ_k‖² + L·F_k^q.

    L is the inverse of the learning rate; with momentum, of the mean length of a step. With q = 0 every client counts
    alike. The weights of the clients' models add up to at most one, so counters and batch statistics remain sound.
    """

    name: Literal["fair"] = "fair"
    q: float = Field(1.0, ge=0)
    needs: ClassVar[Mapping[str, str]] = {"schedule": "rounds"}

    @property
    def needs_start_loss(self) -> bool:
        return True

    def start(self, model: ModelState, population: Population, cohort_size: int, rng: np.random.Generator) -> Fold:
        return _FairFold(self.q, model)


class _FairFold:
    """All powers of losses are taken relative to the largest so far: only ratios matter, and nothing overflows."""

    def __init__(self, q: float, model: ModelState) -> None:
        self._q, self._model = q, model
        self._sum = WeightedSum(model)
        self._unit = 0.0
        self._h = 0.0

    def add(self, update: Contribution) -> None:
        loss, total_step_size = (
            update.metrics.get("start_loss", math.nan) + TINY,
            update.metrics.get("total_step_size", 0.0),
        )
        steps = update.metrics.get("steps", 0.0)
        squared = float(norm(minus(real(update.model), self._model))) ** 2
        if not (
            loss > 0
            and total_step_size > 0
            and 0 < steps <= LARGEST_INVERSE * total_step_size
            and math.isfinite(squared)
        ):
            self._sum.add(update.model, 0.0)  # nothing to weigh it by; if it is not finite, that must still show
            return
        if loss > self._unit:
            self._take_as_unit(loss)
        inverse = steps / total_step_size
        weight = update.count * inverse * (loss / self._unit) ** self._q
        self._sum.add(update.model, weight)
        self._h += weight * (1 + self._q / loss * inverse * squared)

    def _take_as_unit(self, loss: float) -> None:
        factor = (self._unit / loss) ** self._q
        self._sum.scale(factor)
        self._h *= factor
        self._unit = loss

    def finish(self) -> ModelState:
        if self._h:
            self._sum.scale(1 / self._h)  # first, for h may be larger than a float32
        self._sum.add(self._model, 1 - self._sum.weight)
        return self._sum.total()


qfedavg = Recipe(
    name="qfedavg",
    summary="selection by data size; higher losses count more",
    select=SizeSelector,
    aggregate=FairAggregation,
)
