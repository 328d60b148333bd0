"""How a change is written: as a float of 32 or 16 bits, or rounded to a few levels, at random (QSGD) or to the nearest
between a tensor's smallest and largest.
"""

from abc import abstractmethod
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from winnow.core import Choice
from winnow.privacy.compress.bit_packing import Bytes, bit_width, pack_bits, packed_bytes, unpack_bits
from winnow.privacy.compress.errors import PacketError
from winnow.privacy.filters.update_vector import UpdateVector

MAX_FLOAT16 = 65504.0

TensorSizes: TypeAlias = NDArray[np.int64]
"""How many of a list of numbers belong to each tensor, in order."""


class Quantiser(Choice):
    """A way to write real numbers."""

    @abstractmethod
    def nbytes(self, count: int, tensors: int) -> int:
        """What so many numbers of so many tensors take, exactly."""

    @abstractmethod
    def write(self, values: UpdateVector, sizes: TensorSizes, rng: np.random.Generator) -> Bytes:
        """`sizes` says how many of the numbers belong to each tensor."""

    @abstractmethod
    def read(self, data: Bytes, sizes: TensorSizes) -> UpdateVector:
        """The numbers of these tensors; the data have the right length."""

    @abstractmethod
    def privacy_text(self) -> str: ...


class Float32(Quantiser):
    """As they are."""

    name: Literal["float32"] = "float32"

    def nbytes(self, count: int, tensors: int) -> int:
        return 4 * count

    def write(self, values: UpdateVector, sizes: TensorSizes, rng: np.random.Generator) -> Bytes:
        return _planes(values.astype("<f4"))

    def read(self, data: Bytes, sizes: TensorSizes) -> UpdateVector:
        return _from_planes(data, 4).view("<f4").astype(np.float32)

    def privacy_text(self) -> str:
        return "exactly"


class Float16(Quantiser):
    """Half precision: 11 binary digits; what is larger than 65504 is truncated to it."""

    name: Literal["float16"] = "float16"

    def nbytes(self, count: int, tensors: int) -> int:
        return 2 * count

    def write(self, values: UpdateVector, sizes: TensorSizes, rng: np.random.Generator) -> Bytes:
        return _planes(np.clip(values, -MAX_FLOAT16, MAX_FLOAT16).astype("<f2"))

    def read(self, data: Bytes, sizes: TensorSizes) -> UpdateVector:
        return _from_planes(data, 2).view("<f2").astype(np.float32)

    def privacy_text(self) -> str:
        return "to 11 binary digits"


class BFloat16(Quantiser):
    """The upper half of a float32: its range, with 8 binary digits, rounded to the nearest."""

    name: Literal["bfloat16"] = "bfloat16"

    def nbytes(self, count: int, tensors: int) -> int:
        return 2 * count

    def write(self, values: UpdateVector, sizes: TensorSizes, rng: np.random.Generator) -> Bytes:
        whole = values.astype("<f4").view("<u4").astype(np.uint64)
        even = (whole >> 16) & 1
        return _planes(((whole + 0x7FFF + even) >> 16).astype("<u2"))

    def read(self, data: Bytes, sizes: TensorSizes) -> UpdateVector:
        upper = _from_planes(data, 2).view("<u2").astype(np.uint32)
        return (upper << 16).view(np.float32)

    def privacy_text(self) -> str:
        return "to 8 binary digits"


class QSGD(Quantiser):
    """The unbiased quantiser of QSGD (Alistarh et al., 2017, section 3.1), in buckets with a norm each.

    v_i ↦ ‖v‖·sgn(v_i)·ξ_i/s, where ξ_i is one of the two whole numbers around s·|v_i|/‖v‖, drawn so that E[ξ_i] is just
    that. The norm is the bucket's largest size or its Euclidean one; either keeps the expectation.
    """

    name: Literal["qsgd"] = "qsgd"
    levels: int = Field(default=7, ge=1, le=32767)
    bucket: int = Field(default=512, ge=1, le=2**30)
    norm: Literal["largest", "euclidean"] = "largest"

    def nbytes(self, count: int, tensors: int) -> int:
        return 4 * self._buckets(count) + packed_bytes(count, self._width)

    def write(self, values: UpdateVector, sizes: TensorSizes, rng: np.random.Generator) -> Bytes:
        norms = self._norms(values)
        scale = self._spread(norms, len(values))
        share = np.divide(np.abs(values), scale, out=np.zeros(len(values)), where=scale > 0)
        steps = np.minimum(np.floor(self.levels * share + rng.random(len(values))), self.levels)
        symbols = (np.sign(values) * steps).astype(np.int64) + self.levels
        return np.concatenate([norms.astype("<f4").view(np.uint8), pack_bits(symbols, self._width)])

    def read(self, data: Bytes, sizes: TensorSizes) -> UpdateVector:
        count = int(sizes.sum())
        end = 4 * self._buckets(count)
        norms = np.frombuffer(data[:end].tobytes(), "<f4").astype(np.float32)
        symbols = unpack_bits(data[end:], count, self._width)
        if not (np.isfinite(norms).all() and (norms >= 0).all()):
            raise PacketError("a bucket's norm is negative or not finite")
        if (symbols > 2 * self.levels).any():
            raise PacketError(f"a level is beyond {self.levels}")
        values: UpdateVector = (self._spread(norms, count) * ((symbols - self.levels) / self.levels)).astype(np.float32)
        return values

    def privacy_text(self) -> str:
        return f"rounded at random to {2 * self.levels + 1} levels, so that the mean over clients is unbiased"

    @property
    def _width(self) -> int:
        return bit_width(2 * self.levels)

    def _buckets(self, count: int) -> int:
        return -(-count // self.bucket)

    def _norms(self, values: UpdateVector) -> NDArray[np.float32]:
        """No smaller than the truth: a float32 that was rounded down would leave a value beyond the last level."""
        starts = np.arange(0, len(values), self.bucket)
        sizes = np.abs(values.astype(np.float64))
        if not len(values):
            return np.empty(0, np.float32)
        if self.norm == "largest":
            return np.maximum.reduceat(sizes, starts).astype(np.float32)
        norms = np.sqrt(np.add.reduceat(sizes**2, starts)).astype(np.float32)
        return np.where(norms > 0, np.nextafter(norms, np.float32(np.inf)), norms)

    def _spread(self, norms: NDArray[np.float32], count: int) -> NDArray[np.float64]:
        return np.repeat(norms.astype(np.float64), self.bucket)[:count]


class MinMax(Quantiser):
    """Evenly spaced levels between each tensor's smallest and largest change, rounded to the nearest.

    As in the code of FedAQ's authors. It is biased, against the paper's assumption of an unbiased quantiser.
    """

    name: Literal["min-max"] = "min-max"
    bits: int = Field(default=8, ge=1, le=16)

    def nbytes(self, count: int, tensors: int) -> int:
        return 8 * tensors + packed_bytes(count, self.bits)

    def write(self, values: UpdateVector, sizes: TensorSizes, rng: np.random.Generator) -> Bytes:
        ranges = np.zeros((2, len(sizes)), "<f4")
        filled, starts = sizes > 0, np.cumsum(sizes) - sizes
        if filled.any():
            ranges[0, filled] = np.minimum.reduceat(values, starts[filled])
            ranges[1, filled] = np.maximum.reduceat(values, starts[filled])
        low, step = self._levels(ranges, sizes)
        share = np.divide(values - low, step, out=np.zeros(len(values)), where=step > 0)
        return np.concatenate(
            [ranges.view(np.uint8).reshape(-1), pack_bits(np.rint(share).astype(np.int64), self.bits)]
        )

    def read(self, data: Bytes, sizes: TensorSizes) -> UpdateVector:
        end = 8 * len(sizes)
        ranges = np.frombuffer(data[:end].tobytes(), "<f4").reshape(2, len(sizes))
        if not (np.isfinite(ranges).all() and (ranges[0] <= ranges[1]).all()):
            raise PacketError("a tensor's range is reversed or not finite")
        low, step = self._levels(ranges, sizes)
        values: UpdateVector = (low + step * unpack_bits(data[end:], int(sizes.sum()), self.bits)).astype(np.float32)
        return values

    def privacy_text(self) -> str:
        return f"rounded to the nearest of {2**self.bits} levels between each tensor's smallest and largest"

    def _levels(self, ranges: NDArray[np.float32], sizes: TensorSizes) -> tuple[NDArray[np.float64], ...]:
        """For each number the lowest level, and the distance between levels."""
        low, high = ranges.astype(np.float64)
        return np.repeat(low, sizes), np.repeat((high - low) / (2**self.bits - 1), sizes)


def _planes(values: NDArray[np.generic]) -> Bytes:
    """First bytes of all numbers, then the second ones, and so on: exponents stand together, and code well."""
    return np.ascontiguousarray(values.view(np.uint8).reshape(len(values), values.itemsize).T).reshape(-1)


def _from_planes(data: Bytes, width: int) -> Bytes:
    return np.ascontiguousarray(data.reshape(width, len(data) // width).T).reshape(-1)
