"""How good models are, as contributions are measured: one number between 0 and 1 from the reference set."""

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from winnow.learn.stack import Execution, ModelState

MAX_ROWS = 1_000
"""A contribution takes hundreds of evaluations; with so many rows each is precise to a point."""
BLOCK_VALUES = 2**22
"""So many values of samples, over all models, go through a stacked pass at a time."""


class ReferenceUtility:
    """U(θ) = mean over reference rows of exp(−loss / s), for many models at once.

    For classes, s = 1: the loss is −log p, so this is the mean probability that the model gives to the right class. For
    numbers, s is the loss of their mean, so that a model that knows nothing has about the same utility in any unit.
    A bounded utility keeps one bad coalition (a client alone, with one class) from deciding about a whole estimate.
    """

    def __init__(self, execution: Execution, x: Tensor, y: Tensor, rng: np.random.Generator) -> None:
        rows = np.sort(rng.permutation(len(x))[:MAX_ROWS])
        self._execution, self._x, self._y = execution, x[rows], y[rows]

    @property
    def rows(self) -> int:
        """How many rows an evaluation takes."""
        return len(self._y)

    @torch.no_grad()
    def __call__(self, states: ModelState) -> NDArray[np.float64]:
        """Of models stacked [M, ...]."""
        at_once = max(1, BLOCK_VALUES // max(1, self._x.numel()))
        models = len(next(iter(states.values())))
        blocks = [slice(first, first + at_once) for first in range(0, models, at_once)]
        return np.concatenate([self._of({name: t[block] for name, t in states.items()}) for block in blocks])

    def _of(self, states: ModelState) -> NDArray[np.float64]:
        models = len(next(iter(states.values())))
        outputs = self._execution.outputs(states, self._x.expand(models, *self._x.shape)).flatten(0, 1)
        targets = self._y.expand(models, *self._y.shape).flatten(0, 1)
        losses = self._execution.loss(outputs, targets).double() / self._scale(outputs)
        utilities: NDArray[np.float64] = _bounded(torch.exp(-losses)).view(models, -1).mean(1).cpu().numpy()
        return utilities

    def _scale(self, outputs: Tensor) -> float:
        if not self._y.is_floating_point():
            return 1.0
        mean = self._y.mean(0).expand_as(self._y).reshape(-1, *outputs.shape[1:])
        scale = float(self._execution.loss(mean, self._y).mean())
        return scale if 0 < scale < np.inf else 1.0


def _bounded(values: Tensor) -> Tensor:
    """A model that has diverged is worth nothing; one better than perfect, by a loss of one's own, is perfect."""
    return values.nan_to_num(nan=0.0).clamp(max=1.0)
