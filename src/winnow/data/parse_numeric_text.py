"""Numbers in a text file, whatever stands around them."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from winnow.data.file_formats import read_bytes


def read_numbers(path: Path) -> NDArray[np.float64]:
    """All numbers of the lines that hold nothing else: headers and prose are passed over."""
    lines = read_bytes(path).decode("utf-8", errors="replace").splitlines()
    return np.array([number for line in lines for number in _numbers(line)], dtype=np.float64)


def _numbers(line: str) -> list[float]:
    try:
        return [float(cell) for cell in line.replace(",", " ").split()]
    except ValueError:
        return []
