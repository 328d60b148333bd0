"""The idx format of MNIST and its relatives, plain or gzipped."""

from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.core import DataError
from winnow.data.file_io import read_bytes

DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}


def read_idx(path: Path) -> NDArray[Any]:
    """The array in an idx file: a type, the dimensions, then the values, all big-endian."""
    content = read_bytes(path)
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in DTYPES:
        raise DataError(f"{path} is not an idx file; fetch it again")
    header = 4 + 4 * content[3]
    shape = np.frombuffer(content, ">u4", count=content[3], offset=4) if len(content) >= header else np.zeros(0)
    dtype = np.dtype(DTYPES[content[2]])
    if len(content) != header + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize:
        raise DataError(f"{path} is cut short or damaged; fetch it again")
    values = np.frombuffer(content, dtype, offset=header).reshape(shape.astype(np.int64))
    return values.astype(dtype.newbyteorder("="), copy=False)
