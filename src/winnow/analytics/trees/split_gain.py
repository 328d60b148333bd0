"""The best split of each node, from sums of gradients by bin: XGBoost's gain, weights and direction of missing values.

With sums G of gradients and H of second derivatives, a node's gain is T(G)²/(H + λ), where T takes up to α off the size
of G, and a split adds gain(left) + gain(right) − gain(node); a leaf's weight is −T(G)/(H + λ) (Chen and Guestrin, 2016,
equations 5 to 7 and algorithm 3). Equal gains are decided as XGBoost does: the first column, then missing values to the
right, then the first cut.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

Sums = NDArray[np.int64]
"""Of gradients, second derivatives and rows, in this order of the last axis; whole numbers of the fixed point."""
GRADIENT, HESSIAN, ROWS = range(3)
LEAST_GAIN = 1e-6
"""XGBoost's: less is rounding."""


@dataclass(frozen=True)
class BinLayout:
    """Bins of all columns, one column after another. Rows whose cell is missing are in none of a column's."""

    bins: tuple[int, ...]

    @property
    def total(self) -> int:
        return sum(self.bins)

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        return np.concatenate([[0], np.cumsum(self.bins)[:-1]]).astype(np.int64)

    @cached_property
    def column_of(self) -> NDArray[np.int64]:
        return np.repeat(np.arange(len(self.bins)), self.bins)

    @cached_property
    def order(self) -> NDArray[np.int64]:
        """Of candidates: those with missing values to the right, then those to the left, from the highest cut down."""
        return np.concatenate(
            [
                np.concatenate([place := np.arange(start, start + count), (self.total + place)[::-1]])
                for start, count in zip(self.starts, self.bins, strict=True)
            ]
        )


@dataclass(frozen=True, kw_only=True)
class SplitRules:
    """What regularises a tree, and how many rows a child has at least."""

    reg_lambda: float
    reg_alpha: float
    gamma: float
    min_child_weight: float
    minimum: int


@dataclass(frozen=True, kw_only=True)
class Splits:
    """The best split of each node; `gain` is 0 where there is none."""

    gain: NDArray[np.float32]
    column: NDArray[np.int64]
    cut: NDArray[np.int64]
    """Cells of this bin and those below go left."""
    missing_left: NDArray[np.bool_]
    left: Sums
    """Sums of the left child."""


def best_splits(
    sums: Sums,
    totals: Sums,
    layout: BinLayout,
    rules: SplitRules,
    unit: NDArray[np.float64],
    columns: NDArray[np.bool_] | None = None,
) -> Splits:
    """Of nodes with `sums` (nodes × bins × 3) and `totals` (nodes × 3); `unit` is what 1 stands for, by sum. With
    `columns`, only these are split.
    """
    running = np.cumsum(sums, axis=1)
    before = np.concatenate([np.zeros_like(running[:, :1]), running], axis=1)[:, layout.starts]
    below = running - before[:, layout.column_of]
    present = below[:, layout.starts + np.array(layout.bins) - 1]
    missing = (totals[:, None] - present)[:, layout.column_of]
    left = np.concatenate([below, below + missing], axis=1)
    right = totals[:, None] - left
    gains = _gain(left, rules, unit) + _gain(right, rules, unit) - _gain(totals, rules, unit)[:, None]
    allowed = _large_enough(left, rules, unit) & _large_enough(right, rules, unit)
    allowed[:, layout.total :] &= missing[..., ROWS] > 0
    if columns is not None:
        allowed &= np.tile(columns[layout.column_of], 2)
    ordered = np.where(allowed, gains, 0.0).astype(np.float32)[:, layout.order]
    first = np.argmax(ordered, axis=1)
    chosen, nodes = layout.order[first], np.arange(len(sums))
    gain = ordered[nodes, first]
    bin_ = chosen % layout.total
    column = layout.column_of[bin_]
    return Splits(
        gain=np.where((gain > LEAST_GAIN) & (gain >= rules.gamma), gain, np.float32(0)),
        column=column,
        cut=bin_ - layout.starts[column],
        missing_left=chosen >= layout.total,
        left=left[nodes, chosen],
    )


def leaf_weights(totals: Sums, rules: SplitRules, unit: NDArray[np.float64]) -> NDArray[np.float64]:
    """−T(G)/(H + λ); 0 where H is too small to tell."""
    gradient, hessian = totals[..., GRADIENT] * unit[GRADIENT], totals[..., HESSIAN] * unit[HESSIAN]
    weights = -_thresholded(gradient, rules.reg_alpha) / np.maximum(hessian + rules.reg_lambda, 1e-16)
    return np.where((hessian >= rules.min_child_weight) & (hessian > 0), weights, 0.0)


def _gain(sums: Sums, rules: SplitRules, unit: NDArray[np.float64]) -> NDArray[np.float64]:
    gradient, hessian = sums[..., GRADIENT] * unit[GRADIENT], sums[..., HESSIAN] * unit[HESSIAN]
    gain: NDArray[np.float64] = _thresholded(gradient, rules.reg_alpha) ** 2 / np.maximum(
        hessian + rules.reg_lambda, 1e-16
    )
    return gain


def _thresholded(gradient: NDArray[np.float64], alpha: float) -> NDArray[np.float64]:
    return gradient if alpha == 0 else np.sign(gradient) * np.maximum(np.abs(gradient) - alpha, 0.0)


def _large_enough(sums: Sums, rules: SplitRules, unit: NDArray[np.float64]) -> NDArray[np.bool_]:
    enough: NDArray[np.bool_] = sums[..., HESSIAN] * unit[HESSIAN] >= rules.min_child_weight
    return enough & (sums[..., ROWS] >= max(rules.minimum, 1))
