"""Norm bounding (Sun et al., 2019): no client moves the model further than a bound, so none can replace it."""

from statistics import median
from typing import Literal

import numpy as np
from msgspec.structs import replace
from pydantic import Field

from winnow.core import Population
from winnow.learn.aggregation import AggregationRule, Contribution, Fold, PartialAggregation
from winnow.learn.algorithm import Recipe
from winnow.learn.selection import UniformSelector
from winnow.learn.stack import ModelState
from winnow.learn.tensor_arithmetic import minus, norm, only, plus, real


class NormBound(AggregationRule):
    """θ + Σ w_k·Δ_k·min(1, M/‖Δ_k‖) with Δ_k = θ_k − θ and w_k = |D_k| / |D_S|.

    `bound` is M; without it, the median of the round's norms, for which all updates must be there first.
    """

    name: Literal["norm-bound"] = "norm-bound"
    bound: float | None = Field(None, gt=0)

    def start(self, model: ModelState, population: Population, cohort_size: int, rng: np.random.Generator) -> Fold:
        return _BoundedFold(self.bound, model, PartialAggregation().start(model, population, cohort_size, rng))


class _BoundedFold:
    def __init__(self, bound: float | None, model: ModelState, mean: Fold) -> None:
        self._bound, self._model, self._mean = bound, model, mean
        self._waiting: list[tuple[Contribution, float]] = []

    def add(self, update: Contribution) -> None:
        length = float(norm(minus(real(update.model), self._model)))
        if self._bound is None:
            self._waiting.append((update, length))
        else:
            self._mean.add(self._shortened(update, length, self._bound))

    def finish(self) -> ModelState:
        if self._waiting:
            bound = median(length for _, length in self._waiting)
            for update, length in self._waiting:
                self._mean.add(self._shortened(update, length, bound))
        return self._mean.finish()

    def _shortened(self, update: Contribution, length: float, bound: float) -> Contribution:
        """The update no longer than the bound; counters come as they are."""
        if length <= bound:
            return update
        own = real(update.model)
        step = minus(own, self._model)
        model = {**update.model, **plus(only(self._model, own), step, bound / length)}
        return replace(update, model=model)


norm_bound = Recipe(
    name="norm-bound",
    summary="the mean of updates clipped to a norm bound",
    select=UniformSelector,
    aggregate=NormBound,
)
