"""Who shares masks with whom.

In the *complete* graph every two clients do. In the *ring* (Bell et al., 2020) the clients form a ring, in a random
order derived from the round and the list of members, and each shares masks and secrets with its k nearest neighbours,
k/2 on either side. Every party can compute the ring itself.

The degree k is the smallest with which three properties hold for all n clients at once, if a share `COLLUDING_SHARE` of
the clients collude with the server and a share `DROPOUT_SHARE` drop out:

- colluding clients hold fewer than t of the shares of any secret, except with probability 2^-40;
- the graph of honest survivors is connected, except with probability 2^-40;
- t holders of every secret survive, except with probability 2^-20.

Here t = ⌈0.4·(k + 1)⌉. So k grows with log n: 60 neighbours for 200 clients, 88 for 1,000, 106 for 10,000.

This assumes that clients drop out at random. A server that lies about who dropped out can choose where the ring is
cut, so members check the list of survivors themselves, and refuse one that may disconnect the ring.
"""

import hashlib
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache
from math import ceil, exp, lgamma

import numpy as np

COLLUDING_SHARE = 0.1
DROPOUT_SHARE = 0.3
RING_THRESHOLD = 0.4
"""The share of its holders that reconstruct a secret in the ring."""
MIN_SURVIVING_SHARE = 0.25
"""The share of any k/2 consecutive members that must survive."""
BREACH_PROBABILITY = 2.0**-40
RECOVERY_FAILURE_PROBABILITY = 2.0**-20


@dataclass(frozen=True)
class MaskingGraph:
    """The masking graph of a session's members; `degree` is None in the complete graph."""

    members: tuple[int, ...]
    round: int
    degree: int | None

    @cached_property
    def is_complete(self) -> bool:
        return self.degree is None or self.degree >= len(self.members) - 1

    def neighbours(self, member: int) -> list[int]:
        """Those with whom a member shares masks, in ascending order."""
        if self.is_complete:
            return [other for other in self.members if other != member]
        assert self.degree is not None
        place, half = self._places[member], self.degree // 2
        steps = (step for step in range(-half, half + 1) if step)
        return sorted(self._order[(place + step) % len(self._order)] for step in steps)

    def holders(self, member: int) -> list[int]:
        """Those who hold shares of a member's secrets: its neighbours and itself."""
        return sorted((member, *self.neighbours(member)))

    def may_be_disconnected(self, survivors: Collection[int]) -> bool:
        """Whether fewer than a quarter of some k/2 consecutive members survive.

        If k/2 consecutive members are missing on either side, those in between share masks with nobody else, and the
        server could compute their sum apart from the others'. A quarter, so that a few colluding survivors do not hide
        such a gap.
        """
        if self.is_complete:
            return False
        assert self.degree is not None
        alive, half = np.isin(self._order, np.fromiter(survivors, np.int64)), self.degree // 2
        counts = np.cumsum(np.concatenate([[0], alive, alive[: half - 1]]))
        return bool((counts[half:] - counts[:-half]).min() < ceil(MIN_SURVIVING_SHARE * half))

    @cached_property
    def _order(self) -> list[int]:
        return [self.members[i] for i in _order(self.members, self.round)]

    @cached_property
    def _places(self) -> dict[int, int]:
        return {member: place for place, member in enumerate(self._order)}


@lru_cache(maxsize=8)
def masking_graph(members: tuple[int, ...], round: int, degree: int | None) -> MaskingGraph:
    """The graph of these members, who must be sorted; computed once for all parties in one process."""
    return MaskingGraph(members, round, degree)


def _order(members: Sequence[int], round: int) -> list[int]:
    """A permutation that depends only on the members and the round."""
    text = f"winnow ring {round} " + " ".join(map(str, members))
    seed = int.from_bytes(hashlib.sha256(text.encode()).digest(), "little")
    order: list[int] = np.random.Generator(np.random.PCG64(seed)).permutation(len(members)).tolist()
    return order


def ring_shares_needed(holders: int) -> int:
    """How many shares reconstruct a secret."""
    return ceil(RING_THRESHOLD * holders)


@lru_cache(maxsize=64)
def safe_degree(clients: int) -> int:
    """The smallest even k with the properties above, or the number of other clients."""
    others = clients - 1
    for degree in range(2, others, 2):
        if _is_safe(degree, clients):
            return degree
    return others


def _is_safe(degree: int, clients: int) -> bool:
    others, needed = clients - 1, ring_shares_needed(degree + 1)
    corrupt, staying = ceil(COLLUDING_SHARE * clients), others - ceil(DROPOUT_SHARE * clients)
    revealed = clients * _at_least(needed, others, corrupt, degree)
    stuck = clients * (1 - _at_least(needed, others, staying, degree))
    parted = clients**2 * (COLLUDING_SHARE + DROPOUT_SHARE) ** degree
    return revealed <= BREACH_PROBABILITY and parted <= BREACH_PROBABILITY and stuck <= RECOVERY_FAILURE_PROBABILITY


def _at_least(least: int, all_: int, marked: int, drawn: int) -> float:
    """The probability that at least so many of those drawn without replacement are marked."""
    most = min(drawn, marked)
    terms = (_log_choose(marked, i) + _log_choose(all_ - marked, drawn - i) for i in range(least, most + 1))
    total = _log_choose(all_, drawn)
    return min(1.0, sum(exp(term - total) for term in terms))


def _log_choose(n: int, k: int) -> float:
    return lgamma(n + 1) - lgamma(k + 1) - lgamma(n - k + 1) if 0 <= k <= n else -np.inf
