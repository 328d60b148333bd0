"""The kinds of numbers that arrays on the wire may hold, by safetensors' names for them."""

from dataclasses import dataclass
from typing import Any

from winnow.deploy.wire.errors import WireError


@dataclass(frozen=True, kw_only=True)
class Dtype:
    """`numpy` is None where NumPy has no such kind."""

    name: str
    bytes: int
    torch: str
    numpy: str | None


DTYPES = {
    dtype.name: dtype
    for dtype in (
        Dtype(name="F64", bytes=8, torch="float64", numpy="<f8"),
        Dtype(name="F32", bytes=4, torch="float32", numpy="<f4"),
        Dtype(name="F16", bytes=2, torch="float16", numpy="<f2"),
        Dtype(name="BF16", bytes=2, torch="bfloat16", numpy=None),
        Dtype(name="I64", bytes=8, torch="int64", numpy="<i8"),
        Dtype(name="I32", bytes=4, torch="int32", numpy="<i4"),
        Dtype(name="I16", bytes=2, torch="int16", numpy="<i2"),
        Dtype(name="I8", bytes=1, torch="int8", numpy="|i1"),
        Dtype(name="U64", bytes=8, torch="uint64", numpy="<u8"),
        Dtype(name="U32", bytes=4, torch="uint32", numpy="<u4"),
        Dtype(name="U16", bytes=2, torch="uint16", numpy="<u2"),
        Dtype(name="U8", bytes=1, torch="uint8", numpy="|u1"),
        Dtype(name="BOOL", bytes=1, torch="bool", numpy="|b1"),
    )
}

_BY_TORCH = {dtype.torch: dtype for dtype in DTYPES.values()}
_BY_NUMPY = {dtype.numpy: dtype for dtype in DTYPES.values() if dtype.numpy}


def is_tensor(array: Any) -> bool:
    """Told by its module: torch is not imported for it."""
    return type(array).__module__.partition(".")[0] == "torch"


def dtype_of(array: Any) -> Dtype:
    """The kind of a torch tensor or a NumPy array."""
    if is_tensor(array):
        found = _BY_TORCH.get(str(array.dtype).removeprefix("torch."))
    else:
        found = _BY_NUMPY.get(array.dtype.newbyteorder("<").str)
    if found is None:
        raise WireError(f"arrays of {array.dtype} cannot be sent; supported: {', '.join(_BY_TORCH)}")
    return found


def raw_bytes(array: Any) -> memoryview:
    """The array's memory, little-endian and row by row; copied only where it does not lie like that."""
    import numpy as np  # noqa: PLC0415 - a site's agent never looks into arrays

    if is_tensor(array):
        import torch  # noqa: PLC0415

        if not array.numel():
            return memoryview(b"")  # torch cannot look at no numbers as bytes
        array = array.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy()
    else:
        array = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8)
    return memoryview(array)


def are_booleans(memory: memoryview) -> bool:
    """Whether all bytes are 0 or 1: what else a stranger may send in their place has no defined meaning."""
    import numpy as np  # noqa: PLC0415

    return not memory or bool(np.frombuffer(memory, dtype=np.uint8).max() <= 1)
