"""CFCFM, compensatory first come, first merged: SAFA's selection (Wu et al., 2021, algorithm 1) in plain rounds."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from winnow.core import UNTIL_ALL, Population, Reply, Until
from winnow.learn.aggregation import FullAggregation
from winnow.learn.algorithm import Recipe
from winnow.learn.client_loss_requests import reporting_clients, seconds_of
from winnow.learn.selection import SelectedClients, Selection, SelectionContext, SelectorWithoutReplacement


class FirstComeSelector(SelectorWithoutReplacement):
    """The first K replies are merged, those of clients that were not merged in the last round before all others.

    Where more than K clients were left out of the last round, they alone are selected, and the first K replies end the
    round: no reply of another could be merged. Otherwise all of them are awaited, and so are the fastest of the others,
    by the time that each took when it was last merged.
    """

    name: Literal["first-come"] = "first-come"

    def start(self, population: Population) -> Selection:
        return _FirstComeSelection(len(population), self.cohort_size(len(population)))


class _FirstComeSelection(Selection):
    def __init__(self, clients: int, quota: int) -> None:
        self._quota = quota
        self._merged = np.zeros(clients, bool)
        self._seconds = np.full(clients, np.inf)

    def propose(self, context: SelectionContext) -> SelectedClients:
        first = np.flatnonzero(~self._merged)
        if len(first) > self._quota:
            return _selected(first, Until(replies=self._quota))
        again = np.flatnonzero(self._merged)
        fastest = again[np.argsort(self._seconds[again], kind="stable")][: self._quota - len(first)]
        return _selected(np.sort(np.concatenate([first, fastest])), UNTIL_ALL)

    def observe(self, context: SelectionContext, replies: Sequence[Reply]) -> None:
        clients = reporting_clients(replies)
        self._merged[:] = False
        self._merged[clients] = True
        self._seconds[clients] = seconds_of(replies)

    def state(self) -> Mapping[str, Any]:
        return {"merged": self._merged, "seconds": self._seconds}

    def restore(self, state: Mapping[str, Any]) -> None:
        self._merged = np.array(state["merged"], bool)
        self._seconds = np.array(state["seconds"], np.float64)


def _selected(clients: NDArray[np.int64], until: Until) -> SelectedClients:
    return SelectedClients(clients=clients, counts=np.ones(len(clients), np.int64), until=until)


cfcfm = Recipe(
    name="cfcfm",
    summary="first come, first merged; full aggregation",
    select=FirstComeSelector,
    aggregate=FullAggregation,
)
