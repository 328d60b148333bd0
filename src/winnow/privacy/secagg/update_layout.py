"""The layout of an update: its parts, and their tensors' names, shapes and types. Also updates as lists of arrays."""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, TypeAlias

import numpy as np
import torch
from msgspec import Struct
from numpy.typing import NDArray

from winnow.core import Arrays, Payload
from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.secagg.session_terms import read_message, write_message

UpdateValues: TypeAlias = Sequence[NDArray[Any]]
"""One array per entry of a layout."""

MODEL = "model"
WEIGHT = "weight"
MAX_TENSORS = 100_000
DTYPES = frozenset({"float16", "bfloat16", "float32", "float64", "bool", "uint8", "int8", "int16", "int32", "int64"})


class TensorSpec(Struct, frozen=True):
    """A tensor: the part of the update that it belongs to, its name, shape and type."""

    part: str
    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def count(self) -> int:
        return prod(self.shape)

    @property
    def is_real(self) -> bool:
        return self.dtype.startswith(("float", "bfloat"))


class UpdateLayout(Struct, frozen=True):
    """The tensors of an update in order; the last entry is the client's weight."""

    entries: tuple[TensorSpec, ...]

    @classmethod
    def of(cls, parts: Payload) -> "UpdateLayout":
        entries = [
            TensorSpec(part, name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch."))
            for part, named in parts.items()
            for name, tensor in named.items()
        ]
        return cls((*entries, TensorSpec(WEIGHT, WEIGHT, (), "float32")))

    @classmethod
    def read(cls, data: bytes) -> "UpdateLayout":
        layout = read_message(data, UpdateLayout)
        entries = layout.entries
        if len(entries) > MAX_TENSORS or any(min(e.shape, default=0) < 0 or e.dtype not in DTYPES for e in entries):
            raise ProtocolError("the update has invalid shapes or types")
        return layout

    def write(self) -> bytes:
        return write_message(self)

    @property
    def parts(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(entry.part for entry in self.entries if entry.part != WEIGHT))

    def part(self, name: str) -> tuple[TensorSpec, ...]:
        return tuple(entry for entry in self.entries if entry.part == name)


def sorted_parts(parts: Payload) -> dict[str, Arrays]:
    """The parts with their tensors sorted by name, so that the order is the same in every round."""
    return {part: dict(sorted(named.items())) for part, named in parts.items()}


def weighted_update(parts: Payload, model: Arrays, weight: float) -> list[NDArray[np.float64]]:
    """w·(θ_k − θ) for the model, every other part as it is, and w: one client's term of the sum."""
    values = []
    for part, named in parts.items():
        for name, tensor in named.items():
            own = _numbers(tensor)
            values.append(weight * (own - _numbers(model[name])) if part == MODEL else own)
    return [*values, np.array(weight)]


def public_update(layout: UpdateLayout, public: Payload) -> list[NDArray[np.float64]]:
    """Public values in the place of an update: the model as it was sent, and zeros where nothing was sent."""
    values = []
    for entry in layout.entries:
        known = public.get(entry.part, {}).get(entry.name)
        values.append(np.zeros(entry.shape) if known is None else _numbers(known))
    return values


def mean_update(
    layout: UpdateLayout, sums: UpdateValues, model: Arrays, clients: int
) -> tuple[dict[str, dict[str, torch.Tensor]], float]:
    """The weighted mean model, the unweighted means of other parts, and the sum of the weights."""
    weight = float(sums[-1])
    parts: dict[str, dict[str, torch.Tensor]] = {part: {} for part in layout.parts}
    for entry, total in zip(layout.entries, sums, strict=True):
        if entry.part == MODEL:
            parts[MODEL][entry.name] = _like(model[entry.name], _numbers(model[entry.name]) + total / weight)
        elif entry.part != WEIGHT:
            like = torch.empty((), dtype=getattr(torch, entry.dtype), device=next(iter(model.values())).device)
            parts[entry.part][entry.name] = _like(like, total / clients)
    return parts, weight


def layout_mismatch(layout: UpdateLayout, expected: Mapping[str, Arrays], reply_parts: Sequence[str]) -> str | None:
    """What is wrong with an update of this layout; None if nothing is."""
    for part in reply_parts:
        if part not in layout.parts:
            return f"the update has no part {part!r}"
    for part in layout.parts:
        if part not in reply_parts:
            return f"the update has a part {part!r} that nobody asked for"
    model = sum(tensor.numel() for tensor in expected[MODEL].values())
    if sum(entry.count for entry in layout.entries if entry.part not in expected) > model + MAX_TENSORS:
        return "the update is much larger than the model"
    for part, like in expected.items():
        if part in layout.parts and _by_name(layout.part(part)) != _by_name(UpdateLayout.of({part: like}).part(part)):
            return f"the update's part {part!r} has other tensors, shapes or types than the model"
    return None


def _by_name(entries: Sequence[TensorSpec]) -> list[TensorSpec]:
    """Sorted, because a model read from a file may have its tensors in another order than one that was built."""
    return sorted(entries, key=lambda entry: entry.name)


def _numbers(tensor: torch.Tensor) -> NDArray[np.float64]:
    return tensor.detach().to("cpu", torch.float64).numpy()


def _like(tensor: torch.Tensor, values: NDArray[np.float64]) -> torch.Tensor:
    found = torch.as_tensor(values)
    found = found if tensor.is_floating_point() else found.round()
    return found.to(tensor.device, tensor.dtype)
