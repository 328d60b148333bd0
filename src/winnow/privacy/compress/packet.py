"""A compressed part of an update, as it crosses: bytes with a header, which the server reads strictly.

    magic "WNUP" | version | whether the body is entropy-coded | number of changes | digest of the settings
    a bit for each variable: whether it changed at all
    body: whole-number buffers as they are, the places that were kept, their changes

All but the first two lines follows from the settings, which both sides have, so that a reader knows the length of
everything before it looks at anything.
"""

import hashlib
import struct
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

from winnow.core import Arrays
from winnow.privacy.compress.bit_packing import Bytes, Indices, pack_bits, packed_bytes, unpack_bits
from winnow.privacy.compress.errors import PacketError
from winnow.privacy.compress.quantise import Quantiser, TensorSizes
from winnow.privacy.compress.sparsify import Sparsifier
from winnow.privacy.compress.zstandard_coding import compress_bytes, decompress_bytes
from winnow.privacy.filters.update_vector import UpdateVector, float_names, tensor_sizes

MAGIC, VERSION = b"WNUP", 1
HEADER = struct.Struct("<4sBBQ8s")


@dataclass(frozen=True, kw_only=True)
class Packet:
    """A packet, and which changes are in it."""

    data: Bytes
    sent: NDArray[np.bool_]


@dataclass(frozen=True, kw_only=True)
class PacketFormat:
    """Everything that both sides must agree upon."""

    sparsify: Sparsifier
    quantise: Quantiser
    level: int | None
    """Of zstandard; None: no entropy coding."""

    @property
    def digest(self) -> bytes:
        said = f"{self.sparsify.model_dump_json()}{self.quantise.model_dump_json()}{self.level is not None}"
        return hashlib.blake2b(said.encode(), digest_size=8).digest()

    def nbytes(self, update: Arrays, like: Arrays) -> int:
        """What a packet that tells of some of a part's variables weighs; entropy coding may make it less."""
        sizes = tensor_sizes(update)
        body = self._body_bytes(int(sizes.sum()), len(sizes), like)
        return HEADER.size + packed_bytes(len(float_names(like)), 1) + body

    def write(self, changes: UpdateVector, buffers: Arrays, like: Arrays, rng: np.random.Generator) -> Packet:
        """A packet of these changes of a part; `like` has its names and shapes."""
        sizes = tensor_sizes(like)
        present = _changed(changes, sizes)
        chosen = np.repeat(present, sizes)
        some = changes[chosen]
        index, places = self.sparsify.choose(some, rng)
        stretched = (some[places] * np.float32(self.sparsify.stretch(len(some)))).astype(np.float32)
        numbers = self.quantise.write(stretched, _sizes_of(places, sizes[present]), rng)
        body = np.concatenate([_raw(buffers, like), index, numbers])
        sent = np.zeros(len(changes), bool)
        sent[np.flatnonzero(chosen)[places]] = True
        return Packet(data=self._enclosed(body, present, len(some)), sent=sent)

    def read(self, data: Bytes, like: Arrays) -> tuple[UpdateVector, Arrays]:
        """The changes and the buffers of a part with these names and shapes."""
        sizes = tensor_sizes(like)
        end = HEADER.size + packed_bytes(len(sizes), 1)
        if data.ndim != 1 or data.dtype != np.uint8 or len(data) < end:
            raise PacketError("it is shorter than a header, or not made of bytes")
        coded, count = self._head(data[: HEADER.size].tobytes())
        present = unpack_bits(data[HEADER.size : end], len(sizes), 1).astype(bool)
        if count != sizes[present].sum():
            raise PacketError("the header's number of changes does not match its variables")
        length = self._body_bytes(count, int(present.sum()), like)
        body = decompress_bytes(data[end:], length) if coded else data[end:]
        if len(body) != length:
            raise PacketError(f"the body has {len(body)} bytes instead of {length}")
        raw, index, numbers = np.split(body, np.cumsum([_raw_bytes(like), self.sparsify.nbytes(count)]))
        places = self.sparsify.read(index, count)
        some = np.zeros(count, np.float32)
        some[places] = self.quantise.read(numbers, _sizes_of(places, sizes[present]))
        changes = np.zeros(int(sizes.sum()), np.float32)
        changes[np.repeat(present, sizes)] = some
        return changes, _from_raw(raw, like)

    def _body_bytes(self, count: int, tensors: int, like: Arrays) -> int:
        numbers = self.quantise.nbytes(self.sparsify.kept(count), tensors)
        return _raw_bytes(like) + self.sparsify.nbytes(count) + numbers

    def _enclosed(self, body: Bytes, present: NDArray[np.bool_], count: int) -> Bytes:
        squeezed = body if self.level is None else compress_bytes(body, self.level)
        coded = len(squeezed) < len(body)
        head = HEADER.pack(MAGIC, VERSION, coded, count, self.digest)
        return np.concatenate(
            [np.frombuffer(head, np.uint8), pack_bits(present.view(np.uint8), 1), squeezed if coded else body]
        )

    def _head(self, head: bytes) -> tuple[bool, int]:
        magic, version, coded, count, digest = HEADER.unpack(head)
        if magic != MAGIC:
            raise PacketError("it is not an update packet")
        if version != VERSION:
            raise PacketError(f"it has version {version} of the format, and {VERSION} is spoken here")
        if digest != self.digest:
            raise PacketError("it was made with different settings")
        if coded > (self.level is not None):
            raise PacketError("it is entropy-coded, but entropy coding is off")
        return bool(coded), count


def _sizes_of(places: Indices, sizes: TensorSizes) -> TensorSizes:
    """How many of these ascending places are in each of the tensors of these sizes."""
    return np.diff(np.searchsorted(places, np.cumsum(sizes)), prepend=0)


def _changed(changes: UpdateVector, sizes: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Which variables changed at all."""
    starts = np.cumsum(sizes) - sizes
    filled = sizes > 0
    present = np.zeros(len(sizes), bool)
    if filled.any():
        present[filled] = np.logical_or.reduceat(changes != 0, starts[filled])
    return present


def _whole(like: Arrays) -> list[str]:
    return sorted(name for name, tensor in like.items() if not tensor.is_floating_point())


def _raw_bytes(like: Arrays) -> int:
    return sum(like[name].nbytes for name in _whole(like))


def _raw(buffers: Arrays, like: Arrays) -> Bytes:
    pieces = [buffers[name].reshape(-1).contiguous().cpu().view(torch.uint8).numpy() for name in _whole(like)]
    return np.concatenate(pieces) if pieces else np.empty(0, np.uint8)


def _from_raw(data: Bytes, like: Arrays) -> Arrays:
    names = _whole(like)
    ends = np.cumsum([like[name].nbytes for name in names])
    pieces = np.split(data, ends[:-1]) if names else []
    return {
        name: torch.from_numpy(piece.copy()).view(like[name].dtype).view(like[name].shape).to(like[name].device)
        for name, piece in zip(names, pieces, strict=True)
    }
