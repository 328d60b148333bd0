"""Activations and gradients as they travel between owners."""

from math import prod

import msgspec
import numpy as np
import torch
from torch import Tensor

from winnow.core.message_decoding import UnreadableError, from_msgpack

MAX_BYTES = 64 * 2**20
"""Of one batch at the cut."""


class CutMessage(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """Numbers of a batch: one row a sample, float32."""

    shape: tuple[int, ...]
    values: bytes


def encode_cut(values: Tensor) -> bytes:
    held = values.detach().to(torch.float32).contiguous()
    return msgspec.msgpack.encode(CutMessage(shape=tuple(held.shape), values=held.numpy().tobytes()))


def decode_cut(message: bytes, rows: int, shape: tuple[int, ...] | None = None) -> Tensor:
    """The numbers of another owner's message: finite, of so many rows, and of this shape if it is known."""
    if len(message) > MAX_BYTES:
        raise UnreadableError(f"a batch at the cut has {len(message)} bytes; {MAX_BYTES} are the most")
    told = from_msgpack(message, CutMessage)
    if not told.shape or told.shape[0] != rows or min(told.shape) < 0 or prod(told.shape) * 4 != len(told.values):
        raise UnreadableError(f"the numbers at the cut are not those of {rows} rows")
    if shape is not None and told.shape != shape:
        raise UnreadableError("the gradient at the cut does not have the shape of what was sent")
    return checked_cut(array_of_bytes(told.values, told.shape), rows, shape)


def array_of_bytes(values: bytes, shape: tuple[int, ...]) -> Tensor:
    """Finite numbers of this shape."""
    if prod(shape) * 4 != len(values):
        raise UnreadableError(f"there are {len(values)} bytes for numbers of shape {shape}")
    array = torch.from_numpy(np.frombuffer(values, np.float32).reshape(shape).copy())
    if not bool(torch.isfinite(array).all()):
        raise UnreadableError("the numbers of another owner are not finite")
    return array


def checked_cut(values: Tensor, rows: int, shape: tuple[int, ...] | None = None) -> Tensor:
    """Numbers at the cut that came as an array."""
    if values.dtype != torch.float32 or values.dim() < 1 or len(values) != rows or values.nbytes > MAX_BYTES:
        raise UnreadableError(f"the numbers at the cut are not those of {rows} rows")
    if shape is not None and tuple(values.shape) != shape:
        raise UnreadableError("the gradient at the cut does not have the shape of what was sent")
    if not bool(torch.isfinite(values).all()):
        raise UnreadableError("the numbers at the cut are not finite")
    return values
