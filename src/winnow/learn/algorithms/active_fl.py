"""AFL, active federated learning (Goetz et al., 2019): select clients on whose data the model does badly."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from winnow.core import Population, Reply
from winnow.learn.aggregation import PartialAggregation
from winnow.learn.algorithm import Recipe
from winnow.learn.client_loss_requests import START_LOSS, reported_metric, reporting_clients, request_losses
from winnow.learn.selection import SelectedClients, Selection, SelectionContext, SelectorWithoutReplacement, draw


class ValuationSelector(SelectorWithoutReplacement):
    """Valuations v_k = 1/√n_k · Σ_i loss_i, and the draw of the paper's algorithm 2.

    The fraction `alpha1` of clients with the smallest valuations is left out; of the others (1 − `alpha3`)·K are drawn
    by exp(`alpha2`·v_k), and from all who are left then, those too, `alpha3`·K uniformly. A valuation is renewed when
    its client trains, with the model that the client received. The first ones come from the common start, which every
    client values before round 1: the paper says nothing of them.
    """

    name: Literal["valuation"] = "valuation"
    alpha1: float = Field(0.75, ge=0, lt=1)
    alpha2: float = Field(0.01, ge=0)
    alpha3: float = Field(0.1, ge=0, lt=1)

    @property
    def needs_start_loss(self) -> bool:
        return True

    @property
    def requests_losses(self) -> bool:
        return True

    def start(self, population: Population) -> Selection:
        return _ValuationSelection(self, population)


class _ValuationSelection(Selection):
    def __init__(self, settings: ValuationSelector, population: Population) -> None:
        self._settings = settings
        self._root_sizes = np.sqrt(population.sizes)
        cohort_size = settings.cohort_size(len(population))
        self._uniform = int(settings.alpha3 * cohort_size)
        self._valued = cohort_size - self._uniform
        self._left_out = min(int(settings.alpha1 * len(population)), len(population) - self._valued)
        self._valuations = np.zeros(len(population))

    def propose(self, context: SelectionContext) -> SelectedClients:
        if context.version == 0 and not self._valuations.any():
            self._renew(request_losses(context, np.arange(len(self._valuations))))
        by_value = draw(self._log_weights(context.rng), self._valued, context.rng, replacement=False)
        rest = np.delete(np.arange(len(self._valuations)), by_value.clients)
        uniform = context.rng.choice(rest, self._uniform, replace=False)
        clients = np.sort(np.concatenate([by_value.clients, uniform]))
        return SelectedClients(clients=clients, counts=np.ones(len(clients), np.int64), scores=by_value.scores)

    def _log_weights(self, rng: np.random.Generator) -> NDArray[np.float64]:
        """α2·v_k, and minus infinity for those left out; among equal valuations chance decides."""
        weights: NDArray[np.float64] = self._settings.alpha2 * self._valuations
        if self._left_out:
            limit = np.partition(self._valuations, self._left_out - 1)[self._left_out - 1]
            below, at = np.flatnonzero(self._valuations < limit), np.flatnonzero(self._valuations == limit)
            weights[below] = -np.inf
            weights[rng.choice(at, self._left_out - len(below), replace=False)] = -np.inf
        return weights

    def observe(self, context: SelectionContext, replies: Sequence[Reply]) -> None:
        self._renew(replies)

    def _renew(self, replies: Sequence[Reply]) -> None:
        """√n_k times the mean loss. Who tells no finite loss is worth nothing."""
        clients = reporting_clients(replies)
        self._valuations[clients] = self._root_sizes[clients] * reported_metric(replies, START_LOSS, otherwise=0.0)

    def state(self) -> Mapping[str, Any]:
        return {"valuations": self._valuations}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._valuations = np.array(state["valuations"], np.float64)


afl = Recipe(
    name="afl",
    summary="selection by clients' losses, partial aggregation",
    select=ValuationSelector,
    aggregate=PartialAggregation,
)
