"""How good a model is, as contributions are measured: one number between 0 and 1 from the reference set."""

import numpy as np
import torch
from torch import Tensor

from winnow.learn.model_evaluator import ModelEvaluator
from winnow.learn.stack import ModelState

MAX_ROWS = 1_000
"""A contribution takes hundreds of evaluations; with so many rows each is precise to a point."""


class ReferenceUtility:
    """U(θ) = mean over reference rows of exp(−loss / s).

    For classes, s = 1: the loss is −log p, so this is the mean probability that the model gives to the right class. For
    numbers, s is the loss of their mean, so that a model that knows nothing has about the same utility in any unit.
    A bounded utility keeps one bad coalition (a client alone, with one class) from deciding about a whole estimate.
    """

    def __init__(self, evaluator: ModelEvaluator, x: Tensor, y: Tensor, rng: np.random.Generator) -> None:
        rows = np.sort(rng.permutation(len(x))[:MAX_ROWS])
        self._evaluator, self._x, self._y = evaluator, x[rows], y[rows]
        self._all = torch.arange(len(rows))

    @property
    def rows(self) -> int:
        """How many rows an evaluation takes."""
        return len(self._all)

    @torch.no_grad()
    def __call__(self, state: ModelState) -> float:
        outputs = self._evaluator.outputs(state, self._x, self._all)
        losses = self._evaluator.loss(outputs, self._y).double()
        return float(torch.exp(-losses / self._scale(outputs)).nan_to_num(nan=0.0, posinf=1.0).clamp(max=1.0).mean())

    def _scale(self, outputs: Tensor) -> float:
        if not self._y.is_floating_point():
            return 1.0
        mean = self._y.mean(0).expand_as(self._y).reshape(outputs.shape)
        scale = float(self._evaluator.loss(mean, self._y).mean())
        return scale if 0 < scale < np.inf else 1.0
