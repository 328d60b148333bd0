"""What arrays are like, told without reading them where a file's header says so."""

from typing import NamedTuple

from winnow.core.task import Arrays


class Kind(NamedTuple):
    """The type of an array's numbers, by the name that NumPy and torch share, and its shape."""

    dtype: str
    shape: tuple[int, ...]


def kind_of(arrays: Arrays, name: str) -> Kind:
    """What the array of this name is like. Arrays in a file are not read for it, however large they claim to be."""
    told = getattr(arrays, "told", None)
    if told is not None and (known := told(name)) is not None:
        dtype, shape = known
        return Kind(dtype.torch, tuple(shape))
    array = arrays[name]
    return Kind(str(array.dtype).removeprefix("torch."), tuple(array.shape))


def same_kind(arrays: Arrays, like: Arrays) -> str | None:
    """What is wrong with arrays that should have the names, types and shapes of others; None if nothing is."""
    if arrays.keys() != like.keys():
        return "has other arrays"
    for name in like:
        if kind_of(arrays, name) != kind_of(like, name):
            return f"has {name} with the wrong shape or type"
    return None
