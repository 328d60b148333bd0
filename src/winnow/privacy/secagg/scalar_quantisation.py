"""Scalar quantisation inside the masks (section 4.2.1): b bits a weight, in a group with room for the sum.

Every tensor with two dimensions or more has a scale s and a zero point z that all clients share. A value g becomes
q = g/s + z, rounded up or down by chance so that its mean is right, and cut off at 0 and 2^b − 2. A sum of n clients is
decoded as s·(Σq − n·z). What is left (biases, norms, counters, the weight) is few, and goes in fixed point: 32 bits, or
52 for single numbers.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from winnow.core import ConfigError
from winnow.privacy.secagg.encoding import DecodedSum, Encoding, EncodingParameters
from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.secagg.modular_vectors import ModularVector, VectorGroup, vector_group
from winnow.privacy.secagg.update_layout import WEIGHT, TensorSpec, UpdateLayout, UpdateValues

MAX_CLIENTS = 1 << 12
"""So many can be added up in a round: single numbers have 52 bits of 64."""

FINE_STEP, FINE_BITS = 2.0**-24, 32
"""Vectors in fixed point: up to 128 in size, to eight digits."""
WIDE_STEP, WIDE_BITS = 2.0**-20, 52
"""Single numbers and counters: up to 2^31 in size."""
CHECK_BITS = 64

QUANTISED, FINE, WIDE, CHECKSUMS = range(4)
"""The stretches of a vector. The last two numbers of every quantised tensor are in FINE, its check sum in CHECKS."""

SCALE, ZERO = "scale", "zero"
CLIPPED, SPREAD = "clipped", "spread"
CLIPPED_TOLERANCE, MAX_RANGE_GROWTH, MIN_RANGE_SHRINK = 0.01, 2.0, 0.5
"""Where more than this share of a tensor's values was cut off, its range is doubled; it is never more than halved."""
MAX_RANGE_RATIO = 100.0
MIN_RANGE = 1e-12
MIN_SPREAD = 4.0


class _Code(NamedTuple):
    """A tensor's stretch, its step, its zero point, and its largest word."""

    stretch: int
    step: float
    zero: int
    top: int


class ScalarQuantisation(Encoding):
    """`bits` is b. The group has b + `margin` bits; by default enough for any sum, so that nothing can overflow.

    A tensor's range is `spread` times the root mean square of the clients' values, as the last sum told; by default
    2^(b/2 − 1.5) and at least 4, for with more bits one can afford to cut off less. Before the first sum, the largest
    of the model's own values stands for 4 root mean squares. Ranges are renewed every `refresh_every` rounds, and at
    once where much was cut off.
    """

    name: Literal["scalar"] = "scalar"
    bits: int = Field(default=8, ge=2, le=32)
    margin: int | None = Field(default=None, ge=0, le=32)
    spread: float | None = Field(default=None, gt=0)
    refresh_every: int = Field(default=1, ge=1)

    def first(self, form: UpdateLayout, public: UpdateValues, round: int) -> EncodingParameters:
        sizes = [_largest(value) for entry, value in zip(form.entries, public, strict=True) if _is_quantised(entry)]
        return self._parameters(np.array([size or 1.0 for size in sizes]) * self._reach / MIN_SPREAD, round)

    def emulated(self, form: UpdateLayout, update: UpdateValues, round: int) -> EncodingParameters:
        sizes = [
            np.sqrt(np.mean(np.square(value))) if np.any(value) else MIN_RANGE
            for entry, value in zip(form.entries, update, strict=True)
            if _is_quantised(entry)
        ]
        return self._parameters(np.array(sizes, np.float64) * self._reach * MAX_RANGE_GROWTH, round)

    def refresh(
        self, form: UpdateLayout, before: EncodingParameters, decoded: DecodedSum, round: int
    ) -> EncodingParameters:
        """The range that the root mean square calls for, but no less than half of the last: clients differ."""
        clipped, called_for = decoded.learnt[CLIPPED], np.sqrt(np.maximum(decoded.learnt[SPREAD], 0))
        ranges = before.arrays[SCALE] * self._zero
        factors = np.where(
            clipped > CLIPPED_TOLERANCE,
            MAX_RANGE_GROWTH,
            np.where(called_for > 0, np.maximum(called_for, MIN_RANGE_SHRINK), 1.0),
        )
        if round - before.version < self.refresh_every and not (clipped > CLIPPED_TOLERANCE).any():
            return before
        return self._parameters(np.maximum(factors * ranges, MIN_RANGE), round)

    def space(self, form: UpdateLayout, members: int) -> VectorGroup:
        if members > MAX_CLIENTS:
            raise ConfigError(f"collect: at most {MAX_CLIENTS:,} clients can be added up in a round; select fewer")
        room = max(1, members - 1).bit_length()
        margin = room if self.margin is None else self.margin
        counts = [sum(entry.count for entry in form.entries if _stretch(entry) == which) for which in range(3)]
        tensors = sum(map(_is_quantised, form.entries))
        return vector_group(
            [
                (counts[QUANTISED], self.bits + margin),
                (counts[FINE] + 2 * tensors, FINE_BITS + room),
                (counts[WIDE], WIDE_BITS + room),
                (tensors, CHECK_BITS),
            ]
        )

    def encode(
        self,
        form: UpdateLayout,
        values: UpdateValues,
        parameters: EncodingParameters,
        members: int,
        rng: np.random.Generator,
    ) -> ModularVector:
        vector, at = self.space(form, members).zeros(), [0, 0, 0, 0]
        notes = []
        for value, code in zip(values, self._codes(form, parameters), strict=True):
            chance = rng.random(value.size, np.float32) if code.stretch == QUANTISED else 0.5
            words, clipped = _quantise(value.reshape(-1), code, chance)
            _put(vector, at, code.stretch, words)
            if code.stretch == QUANTISED:
                centred = words - code.zero
                notes += [clipped, self._called_for(centred)]
                _put(vector, at, CHECKSUMS, np.array([centred.sum()]).astype(np.uint64))
        fine = _Code(FINE, FINE_STEP, 1 << (FINE_BITS - 1), (1 << FINE_BITS) - 1)
        _put(vector, at, FINE, _quantise(np.array(notes), fine, 0.5)[0])
        return vector

    def decode(
        self, form: UpdateLayout, total: ModularVector, parameters: EncodingParameters, members: int, clients: int
    ) -> DecodedSum:
        space, at = self.space(form, members), [0, 0, 0, 0]
        sums, overflowed, quantised = [], 0, 0
        for entry, code in zip(form.entries, self._codes(form, parameters), strict=True):
            words = _take(total, at, code.stretch, entry.count)
            centred = _centred(words, clients * code.zero, space.stretches[code.stretch].bits)
            if code.stretch == QUANTISED:
                (check,) = _take(total, at, CHECKSUMS, 1)
                overflowed += _overflows(centred, check, space.stretches[QUANTISED].bits)
                quantised += entry.count
            sums.append((code.step * centred).reshape(entry.shape))
        notes = FINE_STEP * _centred(
            total[FINE][at[FINE] :], clients * (1 << (FINE_BITS - 1)), space.stretches[FINE].bits
        )
        clipped, spread = notes.reshape(-1, 2).T / clients
        counts = [entry.count for entry in form.entries if _is_quantised(entry)]
        return DecodedSum(
            sums=sums,
            clipped=float(np.average(clipped, weights=counts)) if quantised else 0.0,
            overflowed=overflowed / quantised if quantised else 0.0,
            learnt={CLIPPED: clipped, SPREAD: spread},
        )

    def _called_for(self, centred: NDArray[np.int64]) -> float:
        """The square of the range that one client's values call for, as a share of the square of the present one."""
        share = np.mean(np.square(centred, dtype=np.float64)) if len(centred) else 0.0
        return float(min(share * (self._reach / self._zero) ** 2, MAX_RANGE_RATIO))

    @property
    def _reach(self) -> float:
        return max(MIN_SPREAD, 2.0 ** (self.bits / 2 - 1.5)) if self.spread is None else self.spread

    @property
    def _zero(self) -> int:
        """z: as many words stand below it as above, and 0 is exact."""
        return (1 << (self.bits - 1)) - 1

    def _parameters(self, ranges: NDArray[np.float64], round: int) -> EncodingParameters:
        zeros = np.full(len(ranges), float(self._zero))
        return EncodingParameters(version=round, arrays={SCALE: ranges / self._zero, ZERO: zeros})

    def _codes(self, form: UpdateLayout, parameters: EncodingParameters) -> list[_Code]:
        tensors = sum(map(_is_quantised, form.entries))
        scales, zeros = (parameters.arrays.get(name, np.zeros(0)) for name in (SCALE, ZERO))
        fits = {*parameters.arrays} == {SCALE, ZERO} and scales.shape == zeros.shape == (tensors,)
        if not fits or not (np.isfinite(scales) & (scales > 0) & (zeros == self._zero)).all():
            raise ProtocolError(f"the encoding's parameters do not fit an update with {tensors} tensors to quantise")
        shared = iter(zip(scales.tolist(), zeros.astype(np.int64).tolist(), strict=True))
        return [self._code(entry, shared) for entry in form.entries]

    def _code(self, entry: TensorSpec, shared: Iterator[tuple[float, int]]) -> _Code:
        which = _stretch(entry)
        if which == QUANTISED:
            scale, zero = next(shared)
            return _Code(QUANTISED, scale, zero, 2 * self._zero)
        step, bits = (FINE_STEP, FINE_BITS) if which == FINE else (WIDE_STEP, WIDE_BITS)
        return _Code(which, step, 1 << (bits - 1), (1 << bits) - 1)


def _stretch(entry: TensorSpec) -> int:
    if entry.part == WEIGHT:
        return FINE
    if not entry.is_real or not entry.shape:
        return WIDE
    return QUANTISED if len(entry.shape) > 1 else FINE


def _is_quantised(entry: TensorSpec) -> bool:
    return _stretch(entry) == QUANTISED


def _quantise(
    values: NDArray[np.float64], code: _Code, chance: "NDArray[np.float32] | float"
) -> tuple[NDArray[np.int64], float]:
    """Words, and the share of the values that had to be cut off."""
    words = np.floor(values / code.step + chance) + code.zero
    inside = np.clip(words, 0, code.top)
    clipped = float(np.mean(inside != words)) if len(words) else 0.0
    return inside.astype(np.int64), clipped


def _centred(words: NDArray[np.unsignedinteger], zero: int, bits: int) -> NDArray[np.int64]:
    """Σq − n·z as the number nearest to zero that is the same modulo 2^p."""
    shifted = (words.astype(np.uint64) - np.uint64(zero % (1 << 64))) << np.uint64(64 - bits)
    return shifted.view(np.int64) >> np.int64(64 - bits)


def _overflows(centred: NDArray[np.int64], check: np.unsignedinteger, bits: int) -> int:
    """How many of the sums went over the top, less those that went below: each makes a difference of 2^p."""
    difference = np.array([check], np.uint64).view(np.int64)[0] - centred.sum()
    return int(abs(int(difference)) >> bits) + bool(int(difference) % (1 << bits))


def _put(vector: ModularVector, at: list[int], stretch: int, words: "NDArray[np.generic]") -> None:
    vector[stretch][at[stretch] : at[stretch] + len(words)] = words
    at[stretch] += len(words)


def _take(total: ModularVector, at: list[int], stretch: int, count: int) -> "NDArray[np.unsignedinteger]":
    words = total[stretch][at[stretch] : at[stretch] + count]
    at[stretch] += count
    return words


def _largest(value: "NDArray[np.generic]") -> float:
    return float(np.abs(value).max(initial=0.0))
