"""Power of choice (Cho et al., 2020): of some candidates, select those on whose data the model does worst."""

from functools import partial
from typing import Literal

import numpy as np
from pydantic import Field

from winnow.core import Population
from winnow.learn.aggregation import PartialAggregation
from winnow.learn.algorithm import Recipe
from winnow.learn.client_loss_requests import START_LOSS, reported_metric, reporting_clients, request_losses
from winnow.learn.selection import SelectedClients, Selection, SelectionContext, SelectorWithoutReplacement, draw


class PowerOfChoiceSelector(SelectorWithoutReplacement):
    """d = `candidate_factor`·K clients are drawn by the size of their data, without replacement; each tells its loss
    of the present model, and the K with the highest are selected (the paper's π_pow-d). Ties are broken by chance.
    """

    name: Literal["power-of-choice"] = "power-of-choice"
    candidate_factor: float = Field(2.0, ge=1)

    @property
    def requests_losses(self) -> bool:
        return True

    def start(self, population: Population) -> Selection:
        cohort_size = self.cohort_size(len(population))
        candidates = min(round(self.candidate_factor * cohort_size), len(population))
        return _CandidateSelection(population, cohort_size, candidates)


class _CandidateSelection(Selection):
    def __init__(self, population: Population, cohort_size: int, candidates: int) -> None:
        self._log_sizes = np.log(population.sizes)
        self._cohort_size, self._candidates = cohort_size, candidates

    def propose(self, context: SelectionContext) -> SelectedClients:
        candidates = draw(self._log_sizes, self._candidates, context.rng, replacement=False).clients
        losses = np.full(len(self._log_sizes), -np.inf)  # of those who do not answer, or tell no finite loss
        replies = request_losses(context, candidates)
        losses[reporting_clients(replies)] = reported_metric(replies, START_LOSS, otherwise=-np.inf)
        shuffled = context.rng.permutation(candidates)
        highest = shuffled[np.argsort(-losses[shuffled], kind="stable")[: self._cohort_size]]
        return SelectedClients(clients=np.sort(highest), counts=np.ones(self._cohort_size, np.int64))


power_of_choice = Recipe(
    name="power-of-choice",
    summary="candidates with the highest losses, partial aggregation",
    select=PowerOfChoiceSelector,
    aggregate=partial(PartialAggregation, weights="uniform"),
)
