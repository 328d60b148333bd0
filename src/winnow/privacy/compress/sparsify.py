"""Which changes of an update are sent: all of them, the largest, or some drawn at random."""

from abc import abstractmethod
from typing import Literal

import numpy as np
from pydantic import Field

from winnow.core import Choice, stream
from winnow.privacy.compress.bit_packing import Bytes, Indices, indices_bytes, read_indices, write_indices
from winnow.privacy.compress.errors import PacketError
from winnow.privacy.filters.update_vector import UpdateVector

SEED_BYTES = 8


class Sparsifier(Choice):
    """A choice of places, and how it is told."""

    @property
    def feeds_back(self) -> bool:
        """Whether a client adds what it did not send to its next update."""
        return False

    @abstractmethod
    def kept(self, count: int) -> int:
        """How many of so many changes are sent."""

    @abstractmethod
    def nbytes(self, count: int) -> int:
        """What it takes to tell which."""

    @abstractmethod
    def choose(self, changes: UpdateVector, rng: np.random.Generator) -> tuple[Bytes, Indices]:
        """What tells the places, and the places, ascending."""

    @abstractmethod
    def read(self, data: Bytes, count: int) -> Indices:
        """The places that were told."""

    def stretch(self, count: int) -> float:
        """What a sent change is multiplied with, so that the expectation is the change."""
        return 1.0

    @abstractmethod
    def privacy_text(self) -> str: ...


class KeepAll(Sparsifier):
    """Every change is sent."""

    name: Literal["all"] = "all"

    def kept(self, count: int) -> int:
        return count

    def nbytes(self, count: int) -> int:
        return 0

    def choose(self, changes: UpdateVector, rng: np.random.Generator) -> tuple[Bytes, Indices]:
        return np.empty(0, np.uint8), np.arange(len(changes))

    def read(self, data: Bytes, count: int) -> Indices:
        return np.arange(count)

    def privacy_text(self) -> str:
        return "every change of each update"


class _Some(Sparsifier):
    """A share of the changes, at least one."""

    fraction: float = Field(default=0.01, gt=0, le=1)
    error_feedback: bool = True

    @property
    def feeds_back(self) -> bool:
        return self.error_feedback

    def kept(self, count: int) -> int:
        return min(count, max(1, round(self.fraction * count)))


class TopK(_Some):
    """The largest changes (Aji and Heafield, 2017); the rest is fed back into the client's next update.

    Without feedback small changes would never arrive, however often they are made (Karimireddy et al., 2019).
    """

    name: Literal["top-k"] = "top-k"

    def nbytes(self, count: int) -> int:
        return indices_bytes(self.kept(count), count)

    def choose(self, changes: UpdateVector, rng: np.random.Generator) -> tuple[Bytes, Indices]:
        count, kept = len(changes), self.kept(len(changes))
        largest = np.argpartition(-np.abs(changes), kept - 1)[:kept] if count else np.empty(0, np.int64)
        places = np.sort(largest)
        return write_indices(places, count), places

    def read(self, data: Bytes, count: int) -> Indices:
        return read_indices(data, self.kept(count), count)

    def privacy_text(self) -> str:
        return f"the largest {100 * self.fraction:g} % of each update's changes, and which they are"


class RandomK(_Some):
    """Changes drawn at random, told by a seed, and stretched by d/k, which makes them unbiased.

    With feedback they are not stretched. That pays for clients that answer often: one that answers seldom keeps most of
    what it learnt until it is of no use.
    """

    name: Literal["random-k"] = "random-k"
    error_feedback: bool = False

    def nbytes(self, count: int) -> int:
        return SEED_BYTES

    def choose(self, changes: UpdateVector, rng: np.random.Generator) -> tuple[Bytes, Indices]:
        seed = rng.integers(0, 256, SEED_BYTES, np.uint8)
        return seed, self.read(seed, len(changes))

    def read(self, data: Bytes, count: int) -> Indices:
        if len(data) != SEED_BYTES:
            raise PacketError(f"a seed has {SEED_BYTES} bytes, not {len(data)}")
        seed = int.from_bytes(data.tobytes(), "little")
        return np.sort(stream(seed, "random-k").choice(count, self.kept(count), replace=False, shuffle=False))

    def stretch(self, count: int) -> float:
        return 1.0 if self.error_feedback or not count else count / self.kept(count)

    def privacy_text(self) -> str:
        return f"{100 * self.fraction:g} % of each update's changes, drawn at random"
