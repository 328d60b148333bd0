"""How updates are encoded as vectors of a group, and sums of vectors decoded to sums of updates.

Decoding must be linear: the decoded sum is the sum of what each vector stands for. An encoding's parameters (scales, a
seed for pruning) are the same for all clients of a round, and have a version.
"""

from abc import abstractmethod
from dataclasses import dataclass, field
from typing import ClassVar

import numpy as np

from winnow.core import Arrays, Choice
from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.secagg.modular_vectors import ModularVector, VectorGroup
from winnow.privacy.secagg.update_layout import UpdateLayout, UpdateValues

VERSION = "version"


@dataclass(frozen=True, kw_only=True)
class EncodingParameters:
    """What all clients of a round encode with. The version is the round in which they were first used."""

    version: int
    arrays: Arrays = field(default_factory=dict)

    def as_arrays(self) -> dict[str, "np.ndarray[tuple[int, ...], np.dtype[np.float64]]"]:
        """For a task's payload and for a checkpoint."""
        return {VERSION: np.array([float(self.version)]), **self.arrays}

    @classmethod
    def of(cls, arrays: Arrays) -> "EncodingParameters":
        named = {name: np.asarray(array, np.float64) for name, array in arrays.items()}
        version = named.pop(VERSION, np.zeros(0))
        if version.shape != (1,) or not np.isfinite(version[0]):
            raise ProtocolError("the encoding parameters have no version")
        return cls(version=int(version[0]), arrays=named)


@dataclass(frozen=True, kw_only=True)
class DecodedSum:
    """The sums of the clients' values, the share of values that were clipped (if known), the share of sums that
    overflowed, and statistics for the encoding's next parameters.
    """

    sums: UpdateValues
    clipped: float | None
    overflowed: float
    statistics: Arrays


class Encoding(Choice):
    """A linear encoding."""

    unnamed = "scalar"

    @abstractmethod
    def first(self, layout: UpdateLayout, public: UpdateValues, round: int) -> EncodingParameters:
        """Parameters for the first round, from public values: the model as it was sent."""

    @abstractmethod
    def refresh(
        self, layout: UpdateLayout, before: EncodingParameters, decoded: DecodedSum, round: int
    ) -> EncodingParameters:
        """The parameters of the round, given those of the last round and its decoded sum; often the same."""

    def emulated(self, layout: UpdateLayout, update: UpdateValues, round: int) -> EncodingParameters:
        """The parameters of a round, from an update that the server has computed on its own samples."""
        return self.first(layout, update, round)

    def privacy_text(self) -> str:
        """Who learns what because of this encoding; empty if there is nothing to add."""
        return ""

    private: ClassVar[bool] = False
    """Whether sums contain noise that hides a client. Then each client's weight and the divisor of a sum must not
    depend on who else took part, and no losses are sent.
    """

    needs_keeper: ClassVar[bool] = False
    """Whether vectors contain codeword assignments, which only a mask keeper can count."""

    def indexed(self, layout: UpdateLayout) -> int:
        """How many of the first segments contain codeword assignments: a keeper counts those, they are not summed."""
        return 0

    @abstractmethod
    def group(self, layout: UpdateLayout, members: int) -> VectorGroup:
        """A group that is large enough for sums over so many clients."""

    @abstractmethod
    def encode(
        self,
        layout: UpdateLayout,
        values: UpdateValues,
        parameters: EncodingParameters,
        members: int,
        rng: np.random.Generator,
    ) -> ModularVector:
        """One client's vector, to be added to those of all members. The server must not be able to predict random
        rounding: with a coarse scale it would know whose value increased a sum.
        """

    @abstractmethod
    def decode(
        self, layout: UpdateLayout, total: ModularVector, parameters: EncodingParameters, members: int, clients: int
    ) -> DecodedSum:
        """The sum of the clients' values, from the sum of their vectors in the group for all members."""
