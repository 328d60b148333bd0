"""One round of training as a cooperative game: what any of its clients would have made of the model without the others.

The model of a coalition S is θ + Σ_{k∈S} w_k·Δ_k / Σ_{k∈S} w_k, with the updates Δ_k that the clients sent and the
weights w_k of the aggregation, as in GTG-Shapley (Liu et al., 2022): nobody trains again. Its utility is measured on
the reference set.
"""

from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import combinations
from math import comb
from typing import TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from winnow.core import Reply
from winnow.learn.stack import ModelState

Utilities: TypeAlias = Callable[[ModelState], NDArray[np.float64]]
"""How good each of M models is, stacked [M, ...]; finite, and the higher, the better."""

MAX_MODELS_VALUES = 2**24
"""So many values of models are made at a time."""


class CoalitionGame:
    """The utilities U(S) of coalitions of one round's replies, each measured once; players are places of replies."""

    def __init__(
        self, start: ModelState, replies: Sequence[Reply], weights: Mapping[int, float], utilities: Utilities
    ) -> None:
        self._start, self._utilities = start, utilities
        self._weights = torch.tensor([weights[reply.task.client] for reply in replies], dtype=torch.float64)
        self._updates = {name: _updates(replies, name) for name in start}
        self._known: dict[frozenset[int], float] = {}
        self.players = len(replies)
        self.everybody = frozenset(range(self.players))

    @property
    def evaluations(self) -> int:
        """How many utilities have been measured."""
        return len(self._known)

    def values(self, coalitions: Sequence[Collection[int]]) -> NDArray[np.float64]:
        """U(S) of each; that of nobody is the utility of the model that the round started with."""
        asked = [frozenset(members) for members in coalitions]
        unknown = sorted({members for members in asked if members not in self._known}, key=sorted)
        at_once = max(1, MAX_MODELS_VALUES // max(1, sum(tensor.numel() for tensor in self._start.values())))
        for first in range(0, len(unknown), at_once):
            some = unknown[first : first + at_once]
            self._known |= zip(some, self._utilities(self._models(some)).tolist(), strict=True)
        return np.array([self._known[members] for members in asked])

    def value(self, coalition: Collection[int]) -> float:
        return float(self.values([coalition])[0])

    def _models(self, coalitions: Sequence[frozenset[int]]) -> ModelState:
        """[M, ...]"""
        shares = torch.zeros(len(coalitions), self.players, dtype=torch.float64)
        for row, members in zip(shares, coalitions, strict=True):
            row[sorted(members)] = self._weights[sorted(members)]
        shares /= shares.sum(1, keepdim=True).clamp_min(torch.finfo(torch.float64).tiny)
        return {name: _moved(tensor, self._updates[name], shares) for name, tensor in self._start.items()}

    def leave_one_out(self) -> NDArray[np.float64]:
        """U(N) − U(N∖{k}) for each player."""
        return self.value(self.everybody) - self.values([self.everybody - {k} for k in range(self.players)])

    def exact_shapley(self) -> NDArray[np.float64]:
        """φ_k = Σ_{S∌k} (U(S∪{k}) − U(S)) / (n·C(n−1, |S|)), from all 2^n coalitions."""
        found, sizes = np.zeros(self.players), range(self.players + 1)
        self.values([some for size in sizes for some in combinations(range(self.players), size)])  # all at once
        for k in range(self.players):
            others = sorted(self.everybody - {k})
            for size in range(self.players):
                some = list(combinations(others, size))
                gains = self.values([(*each, k) for each in some]) - self.values(some)
                found[k] += gains.sum() / (self.players * comb(self.players - 1, size))
        return found

    def gains_along(self, orders: Sequence[Sequence[int]], tolerance: float) -> NDArray[np.float64]:
        """[orders, players]: what each player adds to those before it.

        Once U is within the tolerance of U(N), the rest add nothing: GTG-Shapley's truncation within a round.
        """
        whole, gains = self.value(self.everybody), np.zeros((len(orders), self.players))
        before = np.full(len(orders), self.value(()))
        for place in range(self.players):
            going = np.flatnonzero(np.abs(whole - before) > tolerance).tolist()
            after = self.values([orders[i][: place + 1] for i in going])
            gains[going, [orders[i][place] for i in going]] = after - before[going]
            before[going] = after
        return gains


def _updates(replies: Sequence[Reply], name: str) -> Tensor:
    """Each client's change of one tensor [K, values], from what the client was sent; counters in float64."""
    after = torch.stack([reply.payload["model"][name].reshape(-1) for reply in replies])
    before = torch.stack([reply.task.payload["model"][name].reshape(-1) for reply in replies])
    return after - before if after.is_floating_point() else after.double() - before


def _moved(start: Tensor, updates: Tensor, shares: Tensor) -> Tensor:
    """[M, ...]: the tensor after its change by each of M mixtures of updates."""
    change = (shares.to(updates) @ updates).view(-1, *start.shape)
    return start + change if start.is_floating_point() else (start + change).round().to(start.dtype)
