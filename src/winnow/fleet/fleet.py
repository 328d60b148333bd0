"""What work costs clients, and which of them vanish over it. A fleet is a few arrays, never an object a client."""

from abc import ABC, abstractmethod
from dataclasses import dataclass, fields
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from winnow.core import NO_WORK, Cost, Work, stream

CACHED_ROUNDS = 4
"""Rounds whose numbers are kept: tasks of one round may come in several parcels, and some outlast their round."""


@dataclass(frozen=True, kw_only=True, slots=True)
class DeviceCosts:
    """What the same work costs each of K devices, by what it is spent on; every array has K entries."""

    transfer_seconds: NDArray[np.float64]
    training_seconds: NDArray[np.float64]
    profiling_seconds: NDArray[np.float64]
    transfer_joules: NDArray[np.float64]
    training_joules: NDArray[np.float64]
    profiling_joules: NDArray[np.float64]

    @property
    def seconds(self) -> NDArray[np.float64]:
        """How long each device is busy: what equation 27 of the FedProf paper takes the maximum of."""
        return self.transfer_seconds + self.training_seconds + self.profiling_seconds

    @property
    def joules(self) -> NDArray[np.float64]:
        """The energy each device uses (its equation 28)."""
        return self.transfer_joules + self.training_joules + self.profiling_joules

    def rows(self, work: Work = NO_WORK) -> list[Cost]:
        """The cost to each device by itself, with the bytes that the work has each of them send and receive."""
        spent = [getattr(self, field.name).tolist() for field in fields(self)]
        moved = (work.upload_bytes + work.profile_bytes, work.download_bytes)
        columns = [*spent, *([count] * len(self) for count in moved)]
        return [Cost(*values) for values in zip(*columns, strict=True)]

    def __len__(self) -> int:
        return len(self.transfer_seconds)


@dataclass(frozen=True, kw_only=True)
class Fleet(ABC):
    """The clients of a simulated world, as far as time and energy go."""

    seed: int = 0
    dropout: float = 0.0

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def costs(self, clients: NDArray[np.int64], sizes: NDArray[np.int64], work: Work, round: int = 1) -> DeviceCosts:
        """What `work` costs these clients, which hold `sizes` samples each, in a round.

        A task that is repeated, by a resumed run for example, costs what it cost before.
        """

    def dropouts(self, clients: NDArray[np.int64], round: int) -> NDArray[np.bool_]:
        """Which of these clients vanish while they train in a round: each with probability `dropout`."""
        if self.dropout == 0:
            return np.zeros(len(clients), bool)
        result: NDArray[np.bool_] = _uniform_draws(self.seed, len(self), round)[clients] < self.dropout
        return result


@lru_cache(CACHED_ROUNDS)
def _uniform_draws(seed: int, clients: int, round: int) -> NDArray[np.float64]:
    """One number in [0, 1) a client and round."""
    return stream(seed, "fleet", "dropout", round).random(clients)
