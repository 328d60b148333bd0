"""Worlds that know only how long a client takes to answer: the SRPFL paper's (section 5).

Whatever a client is asked to compute, training or a profile by itself, takes it the same time; what asks for no pass
over its samples takes none. Exchanging models costs a constant in every round, and nobody counts joules.
"""

from abc import abstractmethod
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from winnow.core import Work, stream
from winnow.fleet.fleet import CACHED_ROUNDS, DeviceCosts, Fleet
from winnow.fleet.settings import MNIST_SAMPLE_BITS, FleetSettings, NonNegative, Positive


class TimedFleetSettings(FleetSettings):
    """`communication` is the paper's C (C.T. in its figures): what a round of training costs beside the updates."""

    communication: NonNegative = 0.0


class ExponentialTimes(TimedFleetSettings):
    """Times from exponential distributions.

    Fixed: each client's time is drawn once from Exp(1). Dynamic: each client's rate λ is drawn once, uniform on
    [1/M, 1] for M clients, and its time anew in every round from Exp(λ). Clients with corrupted data are
    `corrupted_speed` times as quick.
    """

    name: Literal["exponential"] = "exponential"
    speeds: Literal["fixed", "dynamic"] = "fixed"
    corrupted_speed: Positive = 1.0

    def draw(
        self,
        clients: int,
        seed: int,
        *,
        sample_bits: float = MNIST_SAMPLE_BITS,
        corrupted: NDArray[np.bool_] | None = None,
    ) -> "TimedFleet":
        haste = np.ones(clients)
        if corrupted is not None:
            haste[corrupted] = self.corrupted_speed
        if self.speeds == "fixed":
            times = stream(seed, "fleet", "time").standard_exponential(clients) / haste
            return TableFleet(seed=seed, dropout=self.dropout, communication=self.communication, table=times[None])
        rates = haste * stream(seed, "fleet", "rate").uniform(1 / clients, 1.0, clients)
        return ResampledFleet(seed=seed, dropout=self.dropout, communication=self.communication, rates=rates)


@dataclass(frozen=True, kw_only=True)
class TimedFleet(Fleet):
    """Every client takes some seconds in a round."""

    communication: float = 0.0

    @abstractmethod
    def seconds(self, clients: NDArray[np.int64], round: int) -> NDArray[np.float64]:
        """How long these clients take for an update in a round, without communication."""

    def costs(self, clients: NDArray[np.int64], sizes: NDArray[np.int64], work: Work, round: int = 1) -> DeviceCosts:
        nothing = np.zeros(len(clients))
        busy = self.seconds(clients, round) if work.training_passes or work.profiling_passes else nothing
        trains = work.training_passes > 0
        return DeviceCosts(
            transfer_seconds=np.full(len(clients), self.communication) if trains else nothing,
            training_seconds=busy if trains else nothing,
            profiling_seconds=nothing if trains else busy,
            transfer_joules=nothing,
            training_joules=nothing,
            profiling_joules=nothing,
        )


@dataclass(frozen=True, kw_only=True)
class TableFleet(TimedFleet):
    """Times from a table with a row a round and a column a client; after its last row it begins again."""

    table: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.table[0])

    def seconds(self, clients: NDArray[np.int64], round: int) -> NDArray[np.float64]:
        row: NDArray[np.float64] = self.table[(round - 1) % len(self.table)]
        return row[clients]


@dataclass(frozen=True, kw_only=True)
class ResampledFleet(TimedFleet):
    """Times drawn anew in every round, for each client at its own rate."""

    rates: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.rates)

    def seconds(self, clients: NDArray[np.int64], round: int) -> NDArray[np.float64]:
        return _exponential_draws(self.seed, len(self), round)[clients] / self.rates[clients]


@lru_cache(CACHED_ROUNDS)
def _exponential_draws(seed: int, clients: int, round: int) -> NDArray[np.float64]:
    """One number from Exp(1) a client and round."""
    return stream(seed, "fleet", "time", round).standard_exponential(clients)
