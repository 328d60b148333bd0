"""Scalar quantisation under the masks (section 4.2.1): b bits per weight, in a group that is large enough for the sum.

Every tensor with two dimensions or more has a scale s and a zero point z that all clients share. A value g becomes
q = g/s + z, stochastically rounded so that it is unbiased, and clipped to [0, 2^b − 2]. A sum of n clients decodes to
s·(Σq − n·z). The rest (biases, norms, counters, the weight) is small, and is sent in fixed point: 32 bits, or 52 for
single numbers.
"""

from collections.abc import Iterator
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from winnow.core import ConfigError
from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.secagg.modular_vectors import ModularVector, VectorGroup, vector_group
from winnow.privacy.secagg.update_encoding_interface import DecodedSum, Encoding, EncodingParameters
from winnow.privacy.secagg.update_layout import WEIGHT, TensorSpec, UpdateLayout, UpdateValues

MAX_CLIENTS = 1 << 12
"""The most clients in a sum: single numbers have 52 bits of 64."""

FINE_STEP, FINE_BITS = 2.0**-24, 32
"""One-dimensional tensors in fixed point: absolute values up to 128, to eight digits."""
WIDE_STEP, WIDE_BITS = 2.0**-20, 52
"""Single numbers and counters: absolute values up to 2^31."""
CHECK_BITS = 64

QUANTISED, FINE, WIDE, CHECKSUMS = range(4)
"""The segments of a vector. FINE ends with two statistics of every quantised tensor; CHECKSUMS has one word of each."""

SCALE, ZERO = "scale", "zero"
CLIPPED, SPREAD = "clipped", "spread"
CLIPPED_TOLERANCE, MAX_RANGE_GROWTH, MIN_RANGE_SHRINK = 0.01, 2.0, 0.5
"""If more than this share of a tensor's values was clipped, its range is doubled; it shrinks by at most half."""
MAX_RANGE_RATIO = 100.0
MIN_RANGE = 1e-12
MIN_SPREAD = 4.0


class _Code(NamedTuple):
    """A tensor's segment, step, zero point and largest word."""

    segment: int
    step: float
    zero: int
    top: int


class ScalarQuantisation(Encoding):
    """`bits` is b. The group has b + `margin` bits; by default enough for any sum, so that nothing can overflow.

    A tensor's range is `spread` times the root mean square of the clients' values in the last sum; by default
    2^(b/2 − 1.5) and at least 4, since more bits allow clipping fewer values. Before the first sum, the model's largest
    value is taken for 4 root mean squares. Ranges are updated every `refresh_every` rounds, and at once where many
    values were clipped.
    """

    name: Literal["scalar"] = "scalar"
    bits: int = Field(default=8, ge=2, le=32)
    margin: int | None = Field(default=None, ge=0, le=32)
    spread: float | None = Field(default=None, gt=0)
    refresh_every: int = Field(default=1, ge=1)

    def first(self, layout: UpdateLayout, public: UpdateValues, round: int) -> EncodingParameters:
        sizes = [_largest(value) for entry, value in zip(layout.entries, public, strict=True) if _is_quantised(entry)]
        return self._parameters(np.array([size or 1.0 for size in sizes]) * self._spread_factor / MIN_SPREAD, round)

    def emulated(self, layout: UpdateLayout, update: UpdateValues, round: int) -> EncodingParameters:
        sizes = [
            np.sqrt(np.mean(np.square(value))) if np.any(value) else MIN_RANGE
            for entry, value in zip(layout.entries, update, strict=True)
            if _is_quantised(entry)
        ]
        return self._parameters(np.array(sizes, np.float64) * self._spread_factor * MAX_RANGE_GROWTH, round)

    def refresh(
        self, layout: UpdateLayout, before: EncodingParameters, decoded: DecodedSum, round: int
    ) -> EncodingParameters:
        """The range that fits the root mean square, but at least half of the last one: clients differ."""
        clipped, ratio = decoded.statistics[CLIPPED], np.sqrt(np.maximum(decoded.statistics[SPREAD], 0))
        ranges = before.arrays[SCALE] * self._zero
        factors = np.where(
            clipped > CLIPPED_TOLERANCE,
            MAX_RANGE_GROWTH,
            np.where(ratio > 0, np.maximum(ratio, MIN_RANGE_SHRINK), 1.0),
        )
        if round - before.version < self.refresh_every and not (clipped > CLIPPED_TOLERANCE).any():
            return before
        return self._parameters(np.maximum(factors * ranges, MIN_RANGE), round)

    def group(self, layout: UpdateLayout, members: int) -> VectorGroup:
        if members > MAX_CLIENTS:
            raise ConfigError(f"collect: at most {MAX_CLIENTS:,} clients can be added up in a round; select fewer")
        room = max(1, members - 1).bit_length()
        margin = room if self.margin is None else self.margin
        counts = [sum(entry.count for entry in layout.entries if _segment_of(entry) == which) for which in range(3)]
        tensors = sum(map(_is_quantised, layout.entries))
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
        layout: UpdateLayout,
        values: UpdateValues,
        parameters: EncodingParameters,
        members: int,
        rng: np.random.Generator,
    ) -> ModularVector:
        vector, at = self.group(layout, members).zeros(), [0, 0, 0, 0]
        statistics = []
        for value, code in zip(values, self._codes(layout, parameters), strict=True):
            rounding = rng.random(value.size, np.float32) if code.segment == QUANTISED else 0.5
            words, clipped = _quantise(value.reshape(-1), code, rounding)
            _write_words(vector, at, code.segment, words)
            if code.segment == QUANTISED:
                centred = words - code.zero
                statistics += [clipped, self._squared_range_ratio(centred)]
                _write_words(vector, at, CHECKSUMS, np.array([centred.sum()]).astype(np.uint64))
        fine = _Code(FINE, FINE_STEP, 1 << (FINE_BITS - 1), (1 << FINE_BITS) - 1)
        _write_words(vector, at, FINE, _quantise(np.array(statistics), fine, 0.5)[0])
        return vector

    def decode(
        self, layout: UpdateLayout, total: ModularVector, parameters: EncodingParameters, members: int, clients: int
    ) -> DecodedSum:
        group, at = self.group(layout, members), [0, 0, 0, 0]
        sums, overflowed, quantised = [], 0, 0
        for entry, code in zip(layout.entries, self._codes(layout, parameters), strict=True):
            words = _read_words(total, at, code.segment, entry.count)
            centred = _centred(words, clients * code.zero, group.segments[code.segment].bits)
            if code.segment == QUANTISED:
                (check,) = _read_words(total, at, CHECKSUMS, 1)
                overflowed += _overflows(centred, check, group.segments[QUANTISED].bits)
                quantised += entry.count
            sums.append((code.step * centred).reshape(entry.shape))
        statistics = FINE_STEP * _centred(
            total[FINE][at[FINE] :], clients * (1 << (FINE_BITS - 1)), group.segments[FINE].bits
        )
        clipped, spread = statistics.reshape(-1, 2).T / clients
        counts = [entry.count for entry in layout.entries if _is_quantised(entry)]
        return DecodedSum(
            sums=sums,
            clipped=float(np.average(clipped, weights=counts)) if quantised else 0.0,
            overflowed=overflowed / quantised if quantised else 0.0,
            statistics={CLIPPED: clipped, SPREAD: spread},
        )

    def _squared_range_ratio(self, centred: NDArray[np.int64]) -> float:
        """The square of the range that fits one client's values, relative to the square of the present one."""
        share = np.mean(np.square(centred, dtype=np.float64)) if len(centred) else 0.0
        return float(min(share * (self._spread_factor / self._zero) ** 2, MAX_RANGE_RATIO))

    @property
    def _spread_factor(self) -> float:
        return max(MIN_SPREAD, 2.0 ** (self.bits / 2 - 1.5)) if self.spread is None else self.spread

    @property
    def _zero(self) -> int:
        """z: as many words are below it as above, and 0 is exact."""
        return (1 << (self.bits - 1)) - 1

    def _parameters(self, ranges: NDArray[np.float64], round: int) -> EncodingParameters:
        zeros = np.full(len(ranges), float(self._zero))
        return EncodingParameters(version=round, arrays={SCALE: ranges / self._zero, ZERO: zeros})

    def _codes(self, layout: UpdateLayout, parameters: EncodingParameters) -> list[_Code]:
        tensors = sum(map(_is_quantised, layout.entries))
        scales, zeros = (parameters.arrays.get(name, np.zeros(0)) for name in (SCALE, ZERO))
        fits = {*parameters.arrays} == {SCALE, ZERO} and scales.shape == zeros.shape == (tensors,)
        if not fits or not (np.isfinite(scales) & (scales > 0) & (zeros == self._zero)).all():
            raise ProtocolError(f"the encoding's parameters do not fit an update with {tensors} tensors to quantise")
        shared = iter(zip(scales.tolist(), zeros.astype(np.int64).tolist(), strict=True))
        return [self._code(entry, shared) for entry in layout.entries]

    def _code(self, entry: TensorSpec, shared: Iterator[tuple[float, int]]) -> _Code:
        which = _segment_of(entry)
        if which == QUANTISED:
            scale, zero = next(shared)
            return _Code(QUANTISED, scale, zero, 2 * self._zero)
        step, bits = (FINE_STEP, FINE_BITS) if which == FINE else (WIDE_STEP, WIDE_BITS)
        return _Code(which, step, 1 << (bits - 1), (1 << bits) - 1)


def _segment_of(entry: TensorSpec) -> int:
    if entry.part == WEIGHT:
        return FINE
    if not entry.is_real or not entry.shape:
        return WIDE
    return QUANTISED if len(entry.shape) > 1 else FINE


def _is_quantised(entry: TensorSpec) -> bool:
    return _segment_of(entry) == QUANTISED


def _quantise(
    values: NDArray[np.float64], code: _Code, rounding: "NDArray[np.float32] | float"
) -> tuple[NDArray[np.int64], float]:
    """Words, and the share of the values that were clipped."""
    words = np.floor(values / code.step + rounding) + code.zero
    inside = np.clip(words, 0, code.top)
    clipped = float(np.mean(inside != words)) if len(words) else 0.0
    return inside.astype(np.int64), clipped


def _centred(words: NDArray[np.unsignedinteger], zero: int, bits: int) -> NDArray[np.int64]:
    """Σq − n·z as the number nearest to zero that is the same modulo 2^p."""
    shifted = (words.astype(np.uint64) - np.uint64(zero % (1 << 64))) << np.uint64(64 - bits)
    return shifted.view(np.int64) >> np.int64(64 - bits)


def _overflows(centred: NDArray[np.int64], check: np.unsignedinteger, bits: int) -> int:
    """How many sums overflowed minus how many underflowed: each changes the check sum by 2^p."""
    difference = np.array([check], np.uint64).view(np.int64)[0] - centred.sum()
    return int(abs(int(difference)) >> bits) + bool(int(difference) % (1 << bits))


def _write_words(vector: ModularVector, at: list[int], segment: int, words: "NDArray[np.generic]") -> None:
    vector[segment][at[segment] : at[segment] + len(words)] = words
    at[segment] += len(words)


def _read_words(total: ModularVector, at: list[int], segment: int, count: int) -> "NDArray[np.unsignedinteger]":
    words = total[segment][at[segment] : at[segment] + count]
    at[segment] += count
    return words


def _largest(value: "NDArray[np.generic]") -> float:
    return float(np.abs(value).max(initial=0.0))
