"""Cells with discrete Gaussian noise, in one sum.

One unit's rows (sites take at most `rows` of them) move a block of counts by `rows`, and one of moments (Σu, Σu²) by
rows·√(¼ + 1/16), as |u| ≤ ½. Blocks are scaled to the same length before they are joined to one vector, so that each
gets an equal part of ρ.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import sqrt
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.program import Noise, Program, Sum
from winnow.analytics.stats.noisy_answer import NoisyCells
from winnow.analytics.stats.suppression import Key
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.core import ConfigError

if TYPE_CHECKING:
    from winnow.analytics.tables.owner_table import OwnerTable

MOMENTS_LENGTH = sqrt(1 / 4 + 1 / 16)
"""How long (u, u²) is at most."""
BLOCK_LENGTH = float(1 << 20)
"""How far one unit moves a block, in steps of the noisy vector: many, so that rounding costs little."""


@dataclass(frozen=True, kw_only=True)
class Block:
    """Cells that are told of one column: by category or moment (rows) and group (columns)."""

    key: Key
    shape: tuple[int, int]
    local: Callable[["OwnerTable"], NDArray[Any]]
    length: float
    """How far one row moves them."""


def rows_a_unit(declaration: TableDeclaration) -> int:
    """How many rows of one unit count at most."""
    if declaration.unit is not None and declaration.rows is None:
        raise ConfigError(f"noise needs a limit for the rows of each '{declaration.unit}'; declare rows")
    return declaration.rows or 1


def open_blocks(blocks: Sequence[Block], rows: int, rho: float, owners: int) -> Program[dict[Key, NoisyCells]]:
    scales = np.concatenate([np.full(np.prod(each.shape), BLOCK_LENGTH / (rows * each.length)) for each in blocks])

    def local(table: "OwnerTable") -> NDArray[np.int64]:
        cells = np.concatenate([each.local(table).reshape(-1) for each in blocks])
        whole: NDArray[np.int64] = np.rint(cells * scales).astype(np.int64)
        return whole

    sensitivity = BLOCK_LENGTH * sqrt(len(blocks)) + sqrt(len(scales))  # the sums are rounded
    noise = Noise(rho=rho, sensitivity=sensitivity)
    opened = yield Sum(label="noisy cells", local=local, length=len(scales), noise=noise)
    values = opened.astype(np.float64) / scales
    errors = noise.deviation(owners) / scales
    cells, at = dict[Key, NoisyCells](), 0
    for block in blocks:
        until = at + int(np.prod(block.shape))
        cells[block.key] = NoisyCells(values[at:until].reshape(block.shape), errors[at:until].reshape(block.shape))
        at = until
    return cells
