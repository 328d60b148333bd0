"""Random pruning inside the masks (section 4.2.2): all clients of a round send the same few coordinates, and sum them.

Which ones, a seed says that everybody has. It depends on nobody's data: the first follows from the model as it was
sent, and every other from the one before.
"""

import hashlib
from collections.abc import Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from winnow.core import derive, stream
from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.secagg.modular_vectors import ModularVector, VectorGroup
from winnow.privacy.secagg.scalar_quantisation import ScalarQuantisation
from winnow.privacy.secagg.update_encoding_interface import DecodedSum, Encoding, EncodingParameters
from winnow.privacy.secagg.update_layout import TensorSpec, UpdateLayout, UpdateValues

SEED, INNER = "mask", "inner"
"""The seed of the mask, and since when the inner code's parameters are in use."""

SEED_BITS = 48
"""A seed travels as a float64, which holds so many bits exactly."""


class RandomPruning(Encoding):
    """Of every tensor with two dimensions or more, a `fraction` of the coordinates is sent, by scalar quantisation.

    The other coordinates stand still in this round, and the sum is multiplied by 1/`fraction`, so that over all masks
    the mean is right (as in Konečný et al., 2016). A new mask is drawn every `refresh_every` rounds.
    """

    name: Literal["random-pruning"] = "random-pruning"
    fraction: float = Field(default=0.1, gt=0, le=1)
    refresh_every: int = Field(default=1, ge=1)
    quantisation: ScalarQuantisation = ScalarQuantisation()

    def first(self, layout: UpdateLayout, public: UpdateValues, round: int) -> EncodingParameters:
        seed = _drawn_from(public)
        inner = self.quantisation.first(self._few(layout), self._chosen(layout, public, seed), round)
        return _with_mask(inner, seed, round)

    def emulated(self, layout: UpdateLayout, update: UpdateValues, round: int) -> EncodingParameters:
        seed = _drawn_from(update)
        return _with_mask(
            self.quantisation.emulated(self._few(layout), self._chosen(layout, update, seed), round), seed, round
        )

    def refresh(
        self, layout: UpdateLayout, before: EncodingParameters, decoded: DecodedSum, round: int
    ) -> EncodingParameters:
        seed, inner = _without_mask(before)
        following = self.quantisation.refresh(self._few(layout), inner, decoded, round)
        if round - before.version < self.refresh_every:
            return _with_mask(following, seed, before.version)
        return _with_mask(following, derive(seed, "mask", round) % (1 << SEED_BITS), round)

    def group(self, layout: UpdateLayout, members: int) -> VectorGroup:
        return self.quantisation.group(self._few(layout), members)

    def encode(
        self,
        layout: UpdateLayout,
        values: UpdateValues,
        parameters: EncodingParameters,
        members: int,
        rng: np.random.Generator,
    ) -> ModularVector:
        seed, inner = _without_mask(parameters)
        return self.quantisation.encode(self._few(layout), self._chosen(layout, values, seed), inner, members, rng)

    def decode(
        self, layout: UpdateLayout, total: ModularVector, parameters: EncodingParameters, members: int, clients: int
    ) -> DecodedSum:
        seed, inner = _without_mask(parameters)
        few = self.quantisation.decode(self._few(layout), total, inner, members, clients)
        sums = [
            chosen if places is None else _spread(chosen, places, entry) * (entry.count / len(places))
            for chosen, places, entry in zip(few.sums, self._places(layout, seed), layout.entries, strict=True)
        ]
        return DecodedSum(sums=sums, clipped=few.clipped, overflowed=few.overflowed, statistics=few.statistics)

    def _few(self, layout: UpdateLayout) -> UpdateLayout:
        """What is left of an update: pruned tensors are rows of the coordinates that are sent."""
        return UpdateLayout(
            tuple(
                TensorSpec(entry.part, entry.name, (1, self._kept(entry)), entry.dtype) if is_pruned(entry) else entry
                for entry in layout.entries
            )
        )

    def _chosen(self, layout: UpdateLayout, values: UpdateValues, seed: int) -> UpdateValues:
        return [
            value if places is None else np.asarray(value).reshape(-1)[places][None]
            for value, places in zip(values, self._places(layout, seed), strict=True)
        ]

    def _places(self, layout: UpdateLayout, seed: int) -> Iterator[NDArray[np.int64] | None]:
        """The coordinates that are sent of each tensor; None: all of them."""
        for number, entry in enumerate(layout.entries):
            if is_pruned(entry):
                rng = stream(seed, "pruning", number)
                yield np.sort(rng.choice(entry.count, self._kept(entry), replace=False, shuffle=False))
            else:
                yield None

    def _kept(self, entry: TensorSpec) -> int:
        return max(1, round(self.fraction * entry.count))


def is_pruned(entry: TensorSpec) -> bool:
    """Weights are; biases, norms and counters are few, and matter."""
    return entry.is_real and len(entry.shape) > 1 and entry.count > 0


def _spread(chosen: NDArray[np.float64], places: NDArray[np.int64], entry: TensorSpec) -> NDArray[np.float64]:
    whole = np.zeros(entry.count)
    whole[places] = chosen.reshape(-1)
    return whole.reshape(entry.shape)


def _drawn_from(public: UpdateValues) -> int:
    """A seed that follows from what is public."""
    digest = hashlib.blake2b(b"".join(np.ascontiguousarray(each).tobytes() for each in public)).digest()
    return int.from_bytes(digest[: SEED_BITS // 8], "little")


def _with_mask(inner: EncodingParameters, seed: int, version: int) -> EncodingParameters:
    own = {SEED: np.array([float(seed)]), INNER: np.array([float(inner.version)])}
    return EncodingParameters(version=version, arrays={**inner.arrays, **own})


def _without_mask(parameters: EncodingParameters) -> tuple[int, EncodingParameters]:
    arrays = dict(parameters.arrays)
    seed, since = arrays.pop(SEED, np.zeros(0)), arrays.pop(INNER, np.zeros(0))
    if seed.shape != (1,) or since.shape != (1,) or not 0 <= seed[0] < 2.0**SEED_BITS:
        raise ProtocolError("the encoding parameters have no valid pruning seed")
    return int(seed[0]), EncodingParameters(version=int(since[0]), arrays=arrays)
