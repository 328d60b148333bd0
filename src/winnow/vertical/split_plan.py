"""What is trained in split learning: whose modules, how, and in which order the rows come."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn, optim

from winnow.core import ConfigError
from winnow.core.random_streams import stream
from winnow.learn.metrics import Metric
from winnow.vertical.cut_protection import UNPROTECTED, CutProtection

LossFunction: TypeAlias = Callable[[Tensor, Tensor], Tensor]
"""Of outputs and targets: one loss a sample."""

SCORED_ROWS = 1024
"""Rows that are scored at once."""


@dataclass(frozen=True, kw_only=True, eq=False)
class SplitPlan:
    """Every owner of features has a bottom; what they make of a row meets in `top`, at the owner of the labels.

    With `middle` it meets at the server instead, and `top` is what follows the middle (the U shape).
    """

    kind: ClassVar[str] = "split-learning"
    words: ClassVar[tuple[str, str]] = ("bottom", "top")
    """What modules of the first and second kind are called."""
    setting_names: ClassVar[tuple[str, ...]] = (
        "optimiser", "learning_rate", "momentum", "weight_decay", "epochs", "batch_size", "test", "pipeline", "minimum",
        "seed",
    )  # fmt: skip

    bottoms: Mapping[str, nn.Module]
    top: nn.Module
    labels: str
    middle: nn.Module | None = None
    metric: Metric
    loss: LossFunction | None = None
    optimiser: Literal["sgd", "adam"] = "sgd"
    learning_rate: float = 0.1
    momentum: float = 0.0
    weight_decay: float = 0.0
    epochs: int = 5
    batch_size: int = 64
    test: float = 0.1
    pipeline: Literal[1, 2] = 1
    """Batches in flight. With 2 owners of features and of labels work at the same time, and bottoms learn from the
    gradient of the last batch but one.
    """
    minimum: int = 100
    """Owners with fewer keys in common do not begin."""
    protection: CutProtection = UNPROTECTED
    seed: int = 0

    def __post_init__(self) -> None:
        for name, value in (("epochs", self.epochs), ("batch_size", self.batch_size), ("minimum", self.minimum)):
            if value < 1:
                raise ConfigError(f"{name} is {value}; it must be at least 1")
        if not 0 < self.test < 1:
            raise ConfigError(f"test is {self.test:g}; it must be a share of the rows between 0 and 1, such as 0.1")
        if self.learning_rate <= 0:
            raise ConfigError(f"learning_rate is {self.learning_rate:g}; it must be greater than 0")
        if not self.bottoms:
            raise ConfigError("bottoms: name at least one owner of features with its module")
        if len(self.owners) < 2 and self.middle is None:
            raise ConfigError(f"{self.labels} has features and labels; split learning needs a second owner or a middle")
        if self.pipeline not in (1, 2):
            raise ConfigError(f"pipeline is {self.pipeline}; it must be 1 or 2")

    @property
    def title(self) -> str:
        return self.kind.replace("-", " ")

    @property
    def rounds(self) -> int:
        """The common keys are a round as well."""
        return self.epochs + 1

    @property
    def owners(self) -> tuple[str, ...]:
        """The owner of the labels first."""
        return (self.labels, *(name for name in self.bottoms if name != self.labels))

    @property
    def senders(self) -> tuple[str, ...]:
        """Owners whose activations travel: all with a bottom, but the owner of labels sends none to itself."""
        return tuple(name for name in self.bottoms if name != self.labels or self.middle is not None)

    def optimise(self, module: nn.Module) -> optim.Optimizer | None:
        """The optimiser of one party's own parameters; None if it has none to train."""
        parameters = [each for each in module.parameters() if each.requires_grad]
        if not parameters:
            return None
        if self.optimiser == "adam":
            return optim.Adam(parameters, lr=self.learning_rate, weight_decay=self.weight_decay)
        return optim.SGD(parameters, lr=self.learning_rate, momentum=self.momentum, weight_decay=self.weight_decay)

    def rows(self, count: int) -> "RowOrder":
        """Which of the common rows train and test, known to all parties."""
        shuffled = stream(self.seed, "split learning", "test").permutation(count)
        tested = max(1, round(self.test * count))
        return RowOrder(plan=self, trained=np.sort(shuffled[tested:]), tested=np.sort(shuffled[:tested]))


@dataclass(frozen=True, kw_only=True, eq=False)
class RowOrder:
    """The rows of every step. All parties derive it from the seed, so that nobody can ask for a row twice."""

    plan: SplitPlan
    trained: NDArray[np.int64]
    tested: NDArray[np.int64]

    @property
    def steps(self) -> int:
        """Of an epoch; the last batch may be smaller."""
        return -(-len(self.trained) // self.plan.batch_size)

    @property
    def scored_batches(self) -> int:
        return -(-len(self.tested) // SCORED_ROWS)

    def of_epoch(self, epoch: int) -> NDArray[np.int64]:
        return stream(self.plan.seed, "split learning", "epoch", epoch).permutation(self.trained)

    def of_step(self, shuffled: NDArray[np.int64], step: int) -> NDArray[np.int64]:
        size = self.plan.batch_size
        return shuffled[step * size : (step + 1) * size]

    def scored(self, batch: int) -> NDArray[np.int64]:
        return self.tested[batch * SCORED_ROWS : (batch + 1) * SCORED_ROWS]
