"""The coordinate-wise median and trimmed mean (Yin et al., 2018, definitions 1 and 2).

A few clients cannot spoil them, whatever they send. They need every update, not only sums; beside those they hold a
block of coordinates at a time. All clients count alike, because a size is what a client claims.
"""

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from winnow.core import Arrays, Population
from winnow.learn.aggregation import AggregationRule, Contribution, Fold
from winnow.learn.algorithm import Recipe
from winnow.learn.selection import UniformSelector
from winnow.learn.stack import ModelState

BLOCK = 2**18
"""Coordinates that are sorted together."""
ROUNDING = 1e-9
"""0.07 · 100 is a little more than 7."""


class CoordinateWiseRule(AggregationRule):
    """The mean of each coordinate's values without the largest and the smallest; a client drawn twice counts twice."""

    @abstractmethod
    def trimmed_count(self, count: int) -> int:
        """How many of so many values are left out on either side."""

    def start(self, model: ModelState, population: Population, cohort_size: int, rng: np.random.Generator) -> Fold:
        return _MiddleFold(self, model)


class Median(CoordinateWiseRule):
    """The value in the middle, or the mean of the two that share it."""

    name: Literal["median"] = "median"

    def trimmed_count(self, count: int) -> int:
        return (count - 1) // 2


class TrimmedMean(CoordinateWiseRule):
    """A share β of the values is left out on either side, rounded up; β should be no less than the attackers' share."""

    name: Literal["trimmed-mean"] = "trimmed-mean"
    trim: float = Field(0.1, ge=0, lt=0.5)

    def trimmed_count(self, count: int) -> int:
        return min(math.ceil(self.trim * count - ROUNDING), (count - 1) // 2)


class _MiddleFold:
    def __init__(self, rule: CoordinateWiseRule, model: ModelState) -> None:
        self._rule, self._model = rule, model
        self._updates: list[Arrays] = []

    def add(self, update: Contribution) -> None:
        self._updates += [update.model] * update.count

    def finish(self) -> ModelState:
        if not self._updates:
            return self._model
        outside = self._rule.trimmed_count(len(self._updates))
        return {
            name: _middle([update[name] for update in self._updates], outside).to(tensor.dtype)
            for name, tensor in self._model.items()
        }


def _middle(values: Sequence[Tensor], outside: int) -> Tensor:
    """The mean of the middle values; what is not a number counts as infinite. Whole numbers stay whole."""
    shape, whole = values[0].shape, not values[0].is_floating_point()
    blocks = zip(*(torch.split(tensor.reshape(-1), BLOCK) for tensor in values), strict=True)
    middle = [_sorted(torch.stack(block))[outside : len(values) - outside].mean(0) for block in blocks]
    result = torch.cat(middle).reshape(shape)
    return result.round() if whole else result


def _sorted(block: Tensor) -> Tensor:
    return (block if block.is_floating_point() else block.double()).sort(0).values


median = Recipe(
    name="median",
    summary="coordinate-wise median, robust to a few attackers",
    select=UniformSelector,
    aggregate=Median,
)

trimmed_mean = Recipe(
    name="trimmed-mean",
    summary="coordinate-wise mean without extreme values",
    select=UniformSelector,
    aggregate=TrimmedMean,
)
