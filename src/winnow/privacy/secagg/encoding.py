"""How updates become words of a group, and sums of words sums of updates.

Any code will do whose decoding is linear: what it makes of a sum is the sum of what it makes of each. Its parameters
(scales, a seed for pruning) are the same for all clients of a round, and carry a version.
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
    """What all clients of a round encode with. The version is the round since which these have been in use."""

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
    """The sums of the clients' values, how many of the values had to be cut off (if that can be told), how many of the
    sums overflowed, and what the encoding has learnt for its next parameters.
    """

    sums: UpdateValues
    clipped: float | None
    overflowed: float
    learnt: Arrays


class Encoding(Choice):
    """A linear code."""

    unnamed = "scalar"

    @abstractmethod
    def first(self, form: UpdateLayout, public: UpdateValues, round: int) -> EncodingParameters:
        """Parameters for a first round, out of the values that everybody knows: the model as it was sent."""

    @abstractmethod
    def refresh(
        self, form: UpdateLayout, before: EncodingParameters, decoded: DecodedSum, round: int
    ) -> EncodingParameters:
        """The parameters of the round, given those of the last and what it came to; often the same."""

    def emulated(self, form: UpdateLayout, update: UpdateValues, round: int) -> EncodingParameters:
        """The parameters of a round, out of an update that the server has made of its own samples."""
        return self.first(form, update, round)

    def privacy_text(self) -> str:
        """Who learns what because of this code; empty if nothing is to be said."""
        return ""

    private: ClassVar[bool] = False
    """Whether sums have noise that hides a client. Then each client's weight, and what a sum is divided by, must not
    depend on who else came, and no losses leave.
    """

    needs_keeper: ClassVar[bool] = False
    """Whether it has assignments to codewords, which only a mask keeper can count."""

    def indexed(self, form: UpdateLayout) -> int:
        """How many of the first stretches hold assignments to codewords: those are counted by a keeper, not summed."""
        return 0

    @abstractmethod
    def space(self, form: UpdateLayout, members: int) -> VectorGroup:
        """The group in which sums over so many clients have room."""

    @abstractmethod
    def encode(
        self,
        form: UpdateLayout,
        values: UpdateValues,
        parameters: EncodingParameters,
        members: int,
        rng: np.random.Generator,
    ) -> ModularVector:
        """One client's words, to be added to those of all members. Where chance decides how values are rounded, the
        server must not foresee it: with a coarse scale it would know whose value made a sum go up.
        """

    @abstractmethod
    def decode(
        self, form: UpdateLayout, total: ModularVector, parameters: EncodingParameters, members: int, clients: int
    ) -> DecodedSum:
        """What the sum of so many clients' words stands for, in the group that was laid out for all members."""
