"""FedProx (Li et al., 2020): clients are drawn by the size of their data and held near the global model by a proximal
term; their models count alike.
"""

from functools import partial
from typing import Literal

import numpy as np
from pydantic import Field

from winnow.core import Population
from winnow.learn.aggregation import PartialAggregation
from winnow.learn.algorithm import Recipe
from winnow.learn.client_round_method import ClientUpdate, LocalResult, LocalTraining
from winnow.learn.selection import Selection, Selector, WeightedSelection


class SizeSelector(Selector):
    """Clients are drawn with probability p_k = |D_k| / |D|."""

    name: Literal["size"] = "size"

    def start(self, population: Population) -> Selection:
        return WeightedSelection(
            np.log(population.sizes), self.cohort_size(len(population)), replacement=self.replacement
        )


class ProximalUpdate(ClientUpdate):
    """min f_k(w) + μ/2·‖w − w_t‖² (equation 2), so that the gradient has the term μ·(w − w_t)."""

    name: Literal["proximal"] = "proximal"
    mu: float = Field(0.01, ge=0)

    def update(self, training: LocalTraining) -> LocalResult:
        trained = training.train(proximal_weight=self.mu)
        return LocalResult(model=trained.states, trained=trained)


fedprox = Recipe(
    name="fedprox",
    summary="by data size, proximal term, partial aggregation",
    select=SizeSelector,
    client=ProximalUpdate,
    aggregate=partial(PartialAggregation, weights="uniform"),
)
