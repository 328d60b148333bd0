"""How the files of the known sets are read."""

from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.core import DataError
from winnow.data import cifar
from winnow.data.file_formats import plain_or_gzipped, read_bytes
from winnow.data.parse_numeric_text import read_numbers
from winnow.data.tables import CsvTable, check_columns
from winnow.data.types import RawDataSet

IDX_DTYPES = {0x08: ">u1", 0x09: ">i1", 0x0B: ">i2", 0x0C: ">i4", 0x0D: ">f4", 0x0E: ">f8"}
GAS_TURBINE_FILES = tuple(f"gt_{year}.csv" for year in range(2011, 2016))
GAS_TURBINE_TARGETS = ("CO", "NOX")
BOSTON_LAYOUTS = (("boston_house_prices.csv",), ("boston.txt",))
QMNIST_LABELS = "qmnist-train-labels-idx2-int"
MNIST_FILES = tuple(f"{split}-{part}-ubyte" for split in ("train", "t10k") for part in ("images-idx3", "labels-idx1"))
EMNIST_FILES = tuple(
    f"emnist-digits-{split}-{part}-ubyte" for split in ("train", "test") for part in ("images-idx3", "labels-idx1")
)


def read_digits(_: Path) -> RawDataSet:
    """Read scikit-learn's file without the package: importing it takes a second and loads pandas, too."""
    package = find_spec("sklearn")
    assert package is not None
    assert package.submodule_search_locations is not None
    folder = Path(package.submodule_search_locations[0])
    rows = np.loadtxt(folder / "datasets" / "data" / "digits.csv.gz", delimiter=",")
    return RawDataSet(x=rows[:, :-1].reshape(-1, 1, 8, 8), y=rows[:, -1].astype(np.int64), classes=10)


def read_gas_turbine(folder: Path) -> RawDataSet:
    tables = [CsvTable(plain_or_gzipped(folder, name)) for name in GAS_TURBINE_FILES]
    for table in tables:
        check_columns(table, GAS_TURBINE_TARGETS, "a target")
    inputs = [name for name in tables[0].columns if name not in GAS_TURBINE_TARGETS]
    return RawDataSet(
        x=np.concatenate([table.numbers(inputs) for table in tables]),
        y=np.concatenate([table.numbers(GAS_TURBINE_TARGETS) for table in tables]),
        classes=None,
    )


def read_boston(folder: Path) -> RawDataSet:
    """Both the CSV and StatLib's original, which breaks each record over two lines, hold 506 × 14 numbers."""
    path = next(file for (name,) in BOSTON_LAYOUTS if (file := plain_or_gzipped(folder, name)).is_file())
    numbers = read_numbers(path)
    if numbers.size != 506 * 14:
        raise DataError(f"{path} holds {numbers.size} numbers instead of 506 × 14; download it again")
    table = numbers.reshape(506, 14)
    return RawDataSet(x=table[:, :13], y=table[:, 13:], classes=None)


def read_mnist(folder: Path) -> RawDataSet:
    raw = _read_idx_pair(folder, "train", "t10k", transposed=False)
    writers = plain_or_gzipped(folder, QMNIST_LABELS)
    if not writers.is_file():
        return raw
    owners = np.full(len(raw.y), -1, dtype=np.int64)
    of_train = read_idx(writers)[:, 2]
    owners[: len(of_train)] = of_train
    return RawDataSet(x=raw.x, y=raw.y, classes=raw.classes, owners=owners, test_rows=raw.test_rows)


def read_emnist_digits(folder: Path) -> RawDataSet:
    return _read_idx_pair(folder, "emnist-digits-train", "emnist-digits-test", transposed=True)


def _read_idx_pair(folder: Path, train: str, test: str, *, transposed: bool) -> RawDataSet:
    """Images and labels of both splits. EMNIST stores its images with rows and columns exchanged."""
    images = [read_idx(plain_or_gzipped(folder, f"{split}-images-idx3-ubyte")) for split in (train, test)]
    labels = [read_idx(plain_or_gzipped(folder, f"{split}-labels-idx1-ubyte")) for split in (train, test)]
    x = np.concatenate(images)[:, None]
    y = np.concatenate(labels).astype(np.int64)
    return RawDataSet(
        x=x.swapaxes(2, 3) if transposed else x, y=y, classes=10, test_rows=np.arange(len(images[0]), len(x))
    )


def read_cifar10(folder: Path) -> RawDataSet:
    binary = all(plain_or_gzipped(folder, name).is_file() for name in cifar.BINARY)
    names, read = (cifar.BINARY, cifar.read_binary) if binary else (cifar.PICKLED, cifar.read_pickled)
    parts = [read(plain_or_gzipped(folder, name)) for name in names]
    x = np.concatenate([images for images, _ in parts])
    y = np.concatenate([labels for _, labels in parts])
    return RawDataSet(x=x, y=y, classes=10, test_rows=np.arange(len(x) - len(parts[-1][0]), len(x)))


def read_idx(path: Path) -> NDArray[Any]:
    """The array in an idx file, as MNIST has it: a type, the dimensions, then the values, all big-endian."""
    content = read_bytes(path)
    if len(content) < 4 or content[:2] != b"\0\0" or content[2] not in IDX_DTYPES:
        raise DataError(f"{path} is not an idx file; download it again")
    header = 4 + 4 * content[3]
    shape = np.frombuffer(content, ">u4", count=content[3], offset=4) if len(content) >= header else np.zeros(0)
    dtype = np.dtype(IDX_DTYPES[content[2]])
    if len(content) != header + int(np.prod(shape, dtype=np.int64)) * dtype.itemsize:
        raise DataError(f"{path} is truncated or damaged; download it again")
    values = np.frombuffer(content, dtype, offset=header).reshape(shape.astype(np.int64))
    return values.astype(dtype.newbyteorder("="), copy=False)
