"""How much sooner SRPFL arrives than FedRep in the linear case: theorem 4.6, and a measurement of the same."""

from dataclasses import dataclass
from itertools import chain, repeat
from math import ceil, log, sqrt

import numpy as np

from winnow.papers.srpfl.linear_case import ConvergenceHistory, LinearCase, run_linear_case

TARGET_FACTOR = 1.2
"""ĉ of equation 11: the target is so many times FedRep's floor; below √2 it takes all N clients."""
FEDREP_ROUNDS = 120
"""Rounds of FedRep, of which the last third gives its floor."""


def expected_round_time(clients: int, count: int) -> float:
    """E[T_n] of N exponential times of mean one: Σ 1/i over N − n < i ≤ N."""
    return float((1 / np.arange(clients - count + 1, clients + 1)).sum())


def floor(case: LinearCase, count: int) -> float:
    """The distance at which `count` participants are expected to settle.

    Outside the span of B* a round multiplies the representation by about 1 − η and adds (η/mn) Σ Xᵀz wᵀ, whose entries
    have variance η²σ²/(mn). In balance they have ησ²/((2 − η)mn); the norm of such a (d − k) × k matrix is about
    √(d − k) + √k standard deviations. Like the floor of equation 10 it falls with √n.
    """
    spread = case.noise * sqrt(case.rate / ((2 - case.rate) * case.samples * count))
    return spread * (sqrt(case.dimension - case.rank) + sqrt(case.rank))


def doubling_stages(case: LinearCase) -> list[tuple[int, int]]:
    """(participants, rounds) of every stage but the last, which goes on with everybody.

    A stage of n ends where 2n participants would gain more a second (equation 223): at the distance
    f_n (1 + (1 − 1/√2) E[T_n] / (E[T_2n] − E[T_n])). How many rounds that takes follows from the contraction
    (equation 10), by a factor of 1 − η towards the floor f_n, beginning at a distance of one.
    """
    found, before, count = list[tuple[int, int]](), 1.0, case.first_stage_clients
    while count < case.clients:
        now = expected_round_time(case.clients, count)
        doubled = expected_round_time(case.clients, min(2 * count, case.clients))
        settled = floor(case, count)
        after = settled * (1 + (1 - sqrt(0.5)) * now / (doubled - now))
        if before > after:
            rounds = ceil(log((before - settled) / (after - settled)) / -log(1 - case.rate))
            found.append((count, rounds))
            before = after
        count = min(2 * count, case.clients)
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class SpeedupMeasurement:
    """Both algorithms on one problem; SRPFL's path ends at the target."""

    fedrep: ConvergenceHistory
    srpfl: ConvergenceHistory
    floor: float

    @property
    def target(self) -> float:
        return TARGET_FACTOR * self.floor

    @property
    def ratio(self) -> float | None:
        """SRPFL's time to the target over FedRep's."""
        ours, theirs = self.srpfl.first_round_below(self.target), self.fedrep.first_round_below(self.target)
        if ours is None or not theirs:
            return None
        return float(self.srpfl.seconds[ours] / self.fedrep.seconds[theirs])


def measure(case: LinearCase, seed: int, rounds: int = FEDREP_ROUNDS) -> SpeedupMeasurement:
    """FedRep until it has settled, then SRPFL from the same start until a target of 1.2 times that floor."""
    fedrep = run_linear_case(case, seed, repeat(case.clients, rounds))
    settled = float(fedrep.distances[-(rounds // 3 or 1) :].mean())
    doubling = chain.from_iterable(repeat(count, length) for count, length in doubling_stages(case))
    participants = chain(doubling, repeat(case.clients, rounds))
    return SpeedupMeasurement(
        fedrep=fedrep, srpfl=run_linear_case(case, seed, participants, until=TARGET_FACTOR * settled), floor=settled
    )


def speedup_bound(clients: int, communication: float = 0.0) -> float:
    """The upper bound on the ratio of expected times in theorem 4.6 (equation 248), C = c/λ being `communication`."""
    excess = log(1 / (TARGET_FACTOR - 1))
    return (6 * (communication + 1) + 4 * excess) / (log(clients) + 2 * excess)
