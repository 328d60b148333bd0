"""One round of training as a cooperative game: what any of its clients would have made of the model without the others.

The model of a coalition S is θ + Σ_{k∈S} w_k·Δ_k / Σ_{k∈S} w_k, with the updates Δ_k that the clients sent and the
weights w_k of the aggregation, as in GTG-Shapley (Liu et al., 2022): nobody trains again. Its utility is measured on
the reference set.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import combinations
from math import comb, isfinite
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from winnow.core import Reply
from winnow.learn.aggregation import WeightedSum
from winnow.learn.stack import ModelState

Utility: TypeAlias = Callable[[ModelState], float]
"""How good a model is; the higher, the better."""


class CoalitionGame:
    """The utilities U(S) of coalitions of one round's replies, each measured once; players are places of replies."""

    def __init__(
        self, start: ModelState, replies: Sequence[Reply], weights: Mapping[int, float], utility: Utility
    ) -> None:
        self._start, self._replies, self._utility = start, replies, utility
        self._weights = [weights[reply.task.client] for reply in replies]
        self._known: dict[frozenset[int], float] = {}
        self.players = len(replies)
        self.everybody = frozenset(range(self.players))

    @property
    def evaluations(self) -> int:
        """How many utilities have been measured."""
        return len(self._known)

    def value(self, coalition: Iterable[int]) -> float:
        """U(S); that of nobody is the utility of the model that the round started with."""
        members = frozenset(coalition)
        if members not in self._known:
            utility = self._utility(self._model(members))
            if not isfinite(utility):
                raise ValueError(f"the utility of a model must be a finite number, not {utility}")
            self._known[members] = utility
        return self._known[members]

    def _model(self, members: frozenset[int]) -> ModelState:
        """Members are added in their order, so that a coalition has the same bits however it came together."""
        if not members:
            return self._start
        total = WeightedSum(self._start)
        for k in sorted(members):
            sent = self._replies[k].task.payload["model"]
            total.add(self._replies[k].payload["model"], self._weights[k])
            if sent is not self._start:  # of a client that was sent an older version, only its change counts
                total.add(sent, -self._weights[k])
                total.add(self._start, self._weights[k])
        return total.mean()

    def leave_one_out(self) -> NDArray[np.float64]:
        """U(N) − U(N∖{k}) for each player."""
        whole = self.value(self.everybody)
        return np.array([whole - self.value(self.everybody - {k}) for k in range(self.players)])

    def exact_shapley(self) -> NDArray[np.float64]:
        """φ_k = Σ_{S∌k} (U(S∪{k}) − U(S)) / (n·C(n−1, |S|)), from all 2^n coalitions."""
        values = np.zeros(self.players)
        for k in range(self.players):
            others = sorted(self.everybody - {k})
            for size in range(self.players):
                gains = [self.value({*some, k}) - self.value(some) for some in combinations(others, size)]
                values[k] += np.sum(gains) / (self.players * comb(self.players - 1, size))
        return values

    def gains_along(self, order: Sequence[int], tolerance: float) -> NDArray[np.float64]:
        """What each player adds to those before it. Once U is within the tolerance of U(N), the rest add nothing
        (GTG-Shapley's truncation within a round, algorithm 1).
        """
        whole, before = self.value(self.everybody), self.value(())
        gains = np.zeros(self.players)
        for place, k in enumerate(order):
            if abs(whole - before) <= tolerance:
                break
            after = self.value(order[: place + 1])
            gains[k] = after - before
            before = after
        return gains
