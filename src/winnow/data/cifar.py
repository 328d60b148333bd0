"""CIFAR-10 in both of its official layouts: binary records, and Python pickles read without trusting them."""

import pickle
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.core import DataError
from winnow.data.file_formats import read_bytes

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32
BINARY = (*(f"data_batch_{part}.bin" for part in range(1, 6)), "test_batch.bin")
PICKLED = (*(f"data_batch_{part}" for part in range(1, 6)), "test_batch")

ALLOWED_GLOBALS = {
    ("numpy", "ndarray"),
    ("numpy", "dtype"),
    ("numpy.core.multiarray", "_reconstruct"),
    ("numpy._core.multiarray", "_reconstruct"),
    ("numpy.core.numeric", "_frombuffer"),
    ("numpy._core.numeric", "_frombuffer"),
    ("_codecs", "encode"),
}
"""All that a pickled array of numbers needs. Anything else in the file is refused before it can run."""


class _ArraysOnly(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) not in ALLOWED_GLOBALS:
            raise pickle.UnpicklingError(f"it refers to {module}.{name}, which is not allowed")
        return super().find_class(module.replace("numpy.core", "numpy._core"), name)


def read_binary(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images [n, 3, 32, 32] and labels of a file of records: one byte of label, 3,072 bytes of image."""
    content = np.frombuffer(read_bytes(path), dtype=np.uint8)
    if content.size == 0 or content.size % (PIXELS + 1):
        raise DataError(f"{path} is truncated or damaged; download it again")
    records = content.reshape(-1, PIXELS + 1)
    return records[:, 1:].reshape(-1, *SHAPE), records[:, 0].astype(np.int64)


def read_pickled(path: Path) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    """Images [n, 3, 32, 32] and labels of a pickled batch."""
    batch = _unpickle(BytesIO(read_bytes(path)), path)
    try:
        fields = {key.decode() if isinstance(key, bytes) else key: value for key, value in batch.items()}
        images = np.asarray(fields["data"], dtype=np.uint8).reshape(-1, *SHAPE)
        return images, np.asarray(fields["labels"], dtype=np.int64)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise DataError(f"{path} is not a CIFAR-10 batch of images and labels; download it again") from error


def _unpickle(file: BytesIO, path: Path) -> Any:
    try:
        return _ArraysOnly(file, encoding="bytes").load()
    except pickle.UnpicklingError as error:
        raise DataError(f"{path} is not a plain CIFAR-10 batch: {error}; download it again") from error
    except (EOFError, ValueError, TypeError, IndexError, KeyError, AttributeError, ImportError) as error:
        raise DataError(f"{path} is truncated or damaged; download it again") from error
