"""Values on their way between processes: a small head, and beside it the arrays, which are copied as they are.

Objects that the other side has already (the tasks of a cohort) travel as numbers and come back as what they were.
"""

import pickle
from collections.abc import Sequence
from io import BytesIO
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

Bytes: TypeAlias = NDArray[np.uint8]


class PickledValue(NamedTuple):
    """What `pack` made: the pickled head, and the contents of the arrays in the order in which the head names them."""

    head: bytes
    contents: list[Bytes]


class OutOfBandPickler(pickle.Pickler):
    """Sets the contents of arrays aside."""

    def __init__(self, head: BytesIO, known: Sequence[object] = ()) -> None:
        self.contents: list[Bytes] = []
        self._places = {id(each): place for place, each in enumerate(known)}
        super().__init__(head, protocol=5, buffer_callback=self._set_aside)

    def persistent_id(self, value: object) -> int | None:
        return self._places.get(id(value))

    def reducer_override(self, value: object) -> Any:
        return reduce_tensor(value) if type(value) is Tensor else NotImplemented

    def _set_aside(self, buffer: pickle.PickleBuffer) -> None:
        self.contents.append(np.frombuffer(buffer.raw(), np.uint8))


def pack(value: object, known: Sequence[object] = ()) -> PickledValue:
    """A value ready to travel; arrays are not copied."""
    head = BytesIO()
    packer = OutOfBandPickler(head, known)
    packer.dump(value)
    return PickledValue(head.getvalue(), packer.contents)


def unpack(parcel: PickledValue, known: Sequence[object] = ()) -> Any:
    """The value again; its arrays live in the parcel's contents."""

    class _Unpacker(pickle.Unpickler):
        def persistent_load(self, place: Any) -> object:
            return known[place]

    return _Unpacker(BytesIO(parcel.head), buffers=parcel.contents).load()


def reduce_tensor(tensor: Tensor) -> tuple[Any, ...]:
    """How a tensor is packed: its contents as they are, for torch's own way would copy them into the head."""
    contents: Bytes = tensor.detach().reshape(-1).contiguous().view(torch.uint8).numpy()
    return _unpack_tensor, (pickle.PickleBuffer(contents.data), tensor.dtype, tuple(tensor.shape))


def _unpack_tensor(contents: Bytes, dtype: torch.dtype, shape: tuple[int, ...]) -> Tensor:
    if not len(contents):
        return torch.empty(shape, dtype=dtype)
    return torch.frombuffer(contents, dtype=dtype).reshape(shape)
