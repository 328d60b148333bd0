"""Krum and multi-Krum (Blanchard et al., 2017): trust the updates that have the most others near them."""

from abc import abstractmethod
from typing import Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor

from winnow.core import Arrays, ModelError, Population
from winnow.learn.aggregation import AggregationRule, Contribution, Fold, WeightedSum
from winnow.learn.algorithm import Recipe
from winnow.learn.selection import UniformSelector
from winnow.learn.stack import ModelState
from winnow.learn.tensor_arithmetic import real

BLOCK = 2**20
"""Coordinates whose products are taken together."""


class KrumRule(AggregationRule):
    """An update's score is the sum of its squared distances to the n − f − 2 updates nearest to it (section 4).

    `attackers` is f, by default as many as n allows: n ≥ 2f + 3. Each client counts once, however often it was drawn:
    an update is near to its own copy. Where replies were refused and too few are left to tell whom to trust, the model
    stays as it is.
    """

    attackers: int | None = Field(None, ge=0)

    @property
    def min_clients(self) -> int:
        return 2 * (self.attackers or 0) + 3

    def attackers_among(self, updates: int) -> int:
        """f among so many updates."""
        return (updates - 3) // 2 if self.attackers is None else self.attackers

    @abstractmethod
    def averaged_count(self, updates: int) -> int:
        """How many of so many updates, those with the lowest scores, are averaged."""

    def start(self, model: ModelState, population: Population, cohort_size: int, rng: np.random.Generator) -> Fold:
        if cohort_size < self.min_clients:
            raise ModelError(
                f"aggregate: this rule needs {self.min_clients} updates per round, but the round has {cohort_size}; "
                "select more clients"
            )
        return _NearestFold(self, model)


class Krum(KrumRule):
    """The one update with the lowest score is the new model."""

    name: Literal["krum"] = "krum"

    def averaged_count(self, updates: int) -> int:
        return 1


class MultiKrum(KrumRule):
    """The mean of the `keep` updates with the lowest scores; by default of n − f."""

    name: Literal["multi-krum"] = "multi-krum"
    keep: int | None = Field(None, ge=1)

    @property
    def min_clients(self) -> int:
        return max(super().min_clients, (self.keep or 0) + (self.attackers or 0))

    def averaged_count(self, updates: int) -> int:
        return updates - self.attackers_among(updates) if self.keep is None else self.keep


class _NearestFold:
    def __init__(self, rule: KrumRule, model: ModelState) -> None:
        self._rule, self._model = rule, model
        self._updates: list[Arrays] = []

    def add(self, update: Contribution) -> None:
        self._updates.append(update.model)

    def finish(self) -> ModelState:
        count = len(self._updates)
        if count < self._rule.min_clients:
            return self._model
        scores = _scores(self._distances(), neighbours=count - self._rule.attackers_among(count) - 2)
        chosen = scores.argsort(stable=True)[: self._rule.averaged_count(count)]  # of equals, those with lower numbers
        mean = WeightedSum(self._model)
        for i in sorted(chosen.tolist()):
            mean.add(self._updates[i], 1.0)
        return mean.mean()

    def _distances(self) -> Tensor:
        """Squared distances between updates, [n, n]; those that are not numbers sort behind all others.

        They come from products of the updates' differences to the model, which are as small as the distances are.
        """
        products = torch.zeros(len(self._updates), len(self._updates), dtype=torch.float64)
        for name, tensor in real(self._model).items():
            rows = (torch.split(update[name].reshape(-1), BLOCK) for update in self._updates)
            for before, *after in zip(torch.split(tensor.reshape(-1), BLOCK), *rows, strict=True):
                block = torch.stack(after) - before
                products += (block @ block.T).cpu()
        squares = products.diagonal()
        distances = squares[:, None] + squares[None, :] - 2 * products
        return distances.clamp(min=0)


def _scores(distances: Tensor, neighbours: int) -> Tensor:
    return distances.fill_diagonal_(torch.inf).sort(1).values[:, :neighbours].sum(1)


krum = Recipe(
    name="krum",
    summary="the one update closest to the others",
    select=UniformSelector,
    aggregate=Krum,
)

multi_krum = Recipe(
    name="multi-krum",
    summary="the mean of the updates closest to the others",
    select=UniformSelector,
    aggregate=MultiKrum,
)
