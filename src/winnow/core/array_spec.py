"""What arrays are like, told without reading them where a file's header says so."""

from collections.abc import Mapping
from typing import NamedTuple

from winnow.core.task import Arrays


class ArraySpec(NamedTuple):
    """The type of an array's numbers, by the name that NumPy and torch share, and its shape."""

    dtype: str
    shape: tuple[int, ...]


def spec_of(arrays: Arrays, name: str) -> ArraySpec:
    """What the array of this name is like. Arrays in a file are not read for it, however large they claim to be."""
    described = getattr(arrays, "dtype_and_shape", None)
    if described is not None and (known := described(name)) is not None:
        dtype, shape = known
        return ArraySpec(dtype.torch, tuple(shape))
    array = arrays[name]
    return ArraySpec(str(array.dtype).removeprefix("torch."), tuple(array.shape))


def is_byte_array(arrays: Arrays, name: str, most: int) -> bool:
    """Whether there is an array of this name that holds bytes, and no more than so many: then it may be read."""
    if not isinstance(arrays, Mapping) or name not in arrays:
        return False
    try:
        kind = spec_of(arrays, name)
    except AttributeError:  # what somebody sent is no array at all
        return False
    return kind.dtype == "uint8" and len(kind.shape) == 1 and kind.shape[0] <= most
