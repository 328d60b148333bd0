"""What trees minimise: gradients g and second derivatives h of each row, as XGBoost's objectives have them."""

from abc import ABC, abstractmethod
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]
FRACTION_BITS = 24
"""Behind the point of a gradient: sums of whole numbers are exact, and the same in any order."""
LOSS_BITS = 20
SMALLEST_HESSIAN = 1e-16
MAX_LOSS = 64.0
"""Of a row: what it adds to the learning curve is bounded."""


class TreeObjective(ABC):
    """Margins and gradients have a column for each tree of a round."""

    name: str
    metric: str
    trees: int = 1
    counts_hessian: bool = False
    """Whether every second derivative is 1: then rows are counted once."""
    gradient_unit: float = 1.0
    """What gradients are measured in: they are a few of it at most."""

    @abstractmethod
    def derivatives(self, margins: Numbers, target: Numbers) -> tuple[Numbers, Numbers]: ...

    @abstractmethod
    def losses(self, margins: Numbers, target: Numbers) -> Numbers: ...

    @abstractmethod
    def base_margins(self, base: float) -> Numbers:
        """From the mean of the target."""

    @abstractmethod
    def predictions(self, margins: Numbers) -> Numbers:
        """What the model says of each row: of two classes the probability of the second, of several that of each."""

    def metric_value(self, total: float, rows: int) -> float:
        return total / rows


@dataclass(frozen=True)
class Logistic(TreeObjective):
    """g = p − y, h = p(1 − p), with p = 1/(1 + e^−margin)."""

    name = "binary:logistic"
    metric = "logloss"

    def derivatives(self, margins: Numbers, target: Numbers) -> tuple[Numbers, Numbers]:
        p = self.predictions(margins)
        return p - target[:, None], np.maximum(p * (1 - p), SMALLEST_HESSIAN)

    def predictions(self, margins: Numbers) -> Numbers:
        p: Numbers = 1 / (1 + np.exp(-margins))
        return p

    def losses(self, margins: Numbers, target: Numbers) -> Numbers:
        signed: Numbers = np.where(target > 0, -margins[:, 0], margins[:, 0])
        return np.logaddexp(0, signed)

    def base_margins(self, base: float) -> Numbers:
        return np.array([np.log(base / (1 - base))])


@dataclass(frozen=True)
class Softmax(TreeObjective):
    """g = p_k − [y = k], h = 2p_k(1 − p_k), with p = softmax(margins)."""

    classes: int

    name = "multi:softprob"
    metric = "mlogloss"

    @property
    def trees(self) -> int:  # type: ignore[override]
        return self.classes

    def derivatives(self, margins: Numbers, target: Numbers) -> tuple[Numbers, Numbers]:
        p = self.predictions(margins)
        hit = target[:, None] == np.arange(self.classes)
        return p - hit, np.maximum(2 * p * (1 - p), SMALLEST_HESSIAN)

    def predictions(self, margins: Numbers) -> Numbers:
        p: Numbers = np.exp(margins - margins.max(axis=1, keepdims=True))
        p /= p.sum(axis=1, keepdims=True)
        return p

    def losses(self, margins: Numbers, target: Numbers) -> Numbers:
        largest = margins.max(axis=1)
        total = np.log(np.exp(margins - largest[:, None]).sum(axis=1))
        losses: Numbers = total + largest - margins[np.arange(len(margins)), target.astype(np.int64)]
        return losses

    def base_margins(self, base: float) -> Numbers:
        return np.zeros(self.classes)


@dataclass(frozen=True)
class SquaredError(TreeObjective):
    """g = margin − y, h = 1."""

    spread: float
    """A power of two, at least the width of the target's bounds."""

    name = "reg:squarederror"
    metric = "rmse"
    counts_hessian = True

    @property
    def gradient_unit(self) -> float:  # type: ignore[override]
        return self.spread

    def derivatives(self, margins: Numbers, target: Numbers) -> tuple[Numbers, Numbers]:
        return margins - target[:, None], np.ones_like(margins)

    def predictions(self, margins: Numbers) -> Numbers:
        return margins

    def losses(self, margins: Numbers, target: Numbers) -> Numbers:
        return ((margins[:, 0] - target) / self.spread) ** 2

    def base_margins(self, base: float) -> Numbers:
        return np.array([base])

    def metric_value(self, total: float, rows: int) -> float:
        return float(np.sqrt(total / rows) * self.spread)


def objective_for(classes: int, low: float, high: float) -> TreeObjective:
    """Of two classes, of several, or (none) of a number between its bounds."""
    if classes == 2:
        return Logistic()
    return Softmax(classes) if classes else SquaredError(2.0 ** np.ceil(np.log2(high - low)))
