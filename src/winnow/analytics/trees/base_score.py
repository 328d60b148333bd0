"""Where boosting begins: counts of rows, and the mean of the target, as whole numbers that owners can add up."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.trees.tree_columns import TreeTarget
from winnow.analytics.trees.tree_objectives import FRACTION_BITS
from winnow.core import ConfigError


def class_counts(target: TreeTarget, cells: NDArray[np.float64], aside: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Rows of each class to grow on (of a number, all of them), and those held out."""
    kinds = max(len(target.classes), 1)
    kept = cells[~np.isnan(cells) & ~aside]
    classes = kept.astype(np.int64) if target.classes else np.zeros(len(kept), np.int64)
    return np.append(np.bincount(classes, minlength=kinds), np.count_nonzero(~np.isnan(cells) & aside))


def scaled_total(target: TreeTarget, cells: NDArray[np.float64], aside: NDArray[np.bool_]) -> int:
    """Σ of a number, in fractions of its range."""
    kept = cells[~np.isnan(cells) & ~aside]
    scaled = (kept - target.low) / (target.high - target.low)
    return int(np.rint(scaled * (1 << FRACTION_BITS)).sum())


def start_value(target: TreeTarget, counts: Sequence[int], total: int) -> float:
    """Of two classes the share of the second, of several 0.5, of a number its mean; a float32."""
    rows = sum(counts[:-1])
    base = counts[1] / rows if len(target.classes) == 2 else 0.5
    if not target.classes:
        base = target.low + total / rows / (1 << FRACTION_BITS) * (target.high - target.low)
    return float(np.float32(base))


def refuse_few(target: TreeTarget, enough: Sequence[bool], minimum: int, where: str = "in all") -> None:
    """ConfigError if there are too few rows of a class, or held out."""
    if all(enough):
        return
    short, kinds = list(enough).index(False), max(len(target.classes), 1)
    what = f" where {target.name} is {target.classes[short]}" if short < kinds and target.classes else ""
    held = " held out" if short == kinds else ""
    raise ConfigError(f"fewer than {minimum} rows{held}{what} {where}; that is too few for trees")
