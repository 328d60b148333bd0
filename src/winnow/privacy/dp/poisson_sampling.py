"""Poisson sampling: the only selection by which privacy is amplified."""

from typing import Literal

import numpy as np

from winnow.core import Population
from winnow.learn.selection import SelectedClients, Selection, SelectionContext, SelectorWithoutReplacement


class PoissonSampling(SelectorWithoutReplacement):
    """Every client is selected with the same probability, independently of its data and of the others.

    `fraction` is that probability; `count` says how many are selected on average. A round may have nobody in it.
    """

    name: Literal["poisson"] = "poisson"

    def privacy_text(self) -> str:
        return "poisson: the selection does not depend on data; only the server needs to know whom it selected."

    def sampling_probability(self, clients: int) -> float:
        return self.fraction if self.fraction is not None else self.cohort_size(clients) / clients

    def start(self, population: Population) -> Selection:
        return _PoissonSelection(len(population), self.sampling_probability(len(population)))


class _PoissonSelection(Selection):
    def __init__(self, clients: int, probability: float) -> None:
        self._clients, self._probability = clients, probability

    def propose(self, context: SelectionContext) -> SelectedClients:
        clients = np.flatnonzero(context.rng.random(self._clients) < self._probability)
        return SelectedClients(clients=clients, counts=np.ones_like(clients))
