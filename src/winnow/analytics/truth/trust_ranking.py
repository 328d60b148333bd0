"""Who is trusted more than whom, and nothing else: a ranking from comparisons in shares.

The comparisons are those of a sort. Which come next, and what all of them open, follows from the ranking itself, so
nobody learns more than the ranking.
"""

from collections.abc import Generator, Mapping, Sequence
from itertools import combinations
from typing import TypeAlias

import numpy as np

from winnow.analytics.program import Compare, Local, Program
from winnow.analytics.truth.truth_methods import METHODS

Pair: TypeAlias = tuple[int, int]
"""Places of two participants, the smaller one first."""
SMALL_GROUP = 16
"""In groups up to this size all are compared with all at once; larger ones are parted by one of their members."""
TRUST_BITS = 24
"""Behind the point: trusts that differ by less are tied, and of a tie the one with the smaller place comes first."""
MAX_TRUST = max(method.largest_trust for method in METHODS.values())
COMPARED_BITS = 32
NO_TRUST = -1.0
"""Of a participant without answers, which comes last."""


def trust_as_integer(trust: float) -> int:
    """What a participant compares by."""
    return round(min(max(trust, -MAX_TRUST), MAX_TRUST) * (1 << TRUST_BITS))


def sort_by_comparisons(count: int) -> Generator[tuple[Pair, ...], Sequence[bool], list[int]]:
    """Yields pairs, and receives of each whether the first is trusted as much as the second or more; the places in the
    end, the most trusted first.
    """
    groups = [list(range(count))]
    while pairs := tuple(pair for group in groups for pair in _pairs(group)):
        ahead = yield pairs
        first_ahead = dict(zip(pairs, ahead, strict=True))
        groups = [part for group in groups for part in _parted(group, first_ahead)]
    return [place for group in groups for place in group]


def rank_owners(count: int, trust: Local) -> Program[list[int]]:
    """The owners' places, the most trusted first, in steps of a program."""
    sort = sort_by_comparisons(count)
    ahead: list[bool] | None = None
    while True:
        try:
            pairs = next(sort) if ahead is None else sort.send(ahead)
        except StopIteration as stop:
            order: list[int] = stop.value
            return order
        opened = yield Compare(
            label="ranking", local=trust, thresholds=np.zeros(len(pairs), np.int64), bits=COMPARED_BITS, pairs=pairs
        )
        ahead = opened.tolist()


def _pairs(group: Sequence[int]) -> list[Pair]:
    """What has to be compared to part a group, which is in the order of places."""
    if len(group) <= SMALL_GROUP:
        return list(combinations(group, 2))
    pivot = _pivot(group)
    return [(min(place, pivot), max(place, pivot)) for place in group if place != pivot]


def _parted(group: Sequence[int], first_ahead: Mapping[Pair, bool]) -> list[list[int]]:
    def is_ahead(place: int, other: int) -> bool:
        return first_ahead[place, other] if place < other else not first_ahead[other, place]

    if len(group) <= SMALL_GROUP:
        ahead_of = {place: sum(is_ahead(place, other) for other in group if other != place) for place in group}
        return [[place] for place in sorted(group, key=lambda place: -ahead_of[place])]
    pivot = _pivot(group)
    others = {place: is_ahead(place, pivot) for place in group if place != pivot}
    ahead = [place for place, before in others.items() if before]
    behind = [place for place, before in others.items() if not before]
    return [part for part in (ahead, [pivot], behind) if part]


def _pivot(group: Sequence[int]) -> int:
    return group[len(group) // 2]
