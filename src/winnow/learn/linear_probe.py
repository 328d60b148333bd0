"""A linear probe: how well a linear classifier tells classes apart by the features of a model.

It is fitted anew to every version, at the server: its coefficients are the last dense layer of the model that is kept
as the best, and no client ever gets them.
"""

import math
from collections.abc import Sequence
from copy import deepcopy

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from winnow.core import ConfigError
from winnow.learn.evaluation import Evaluation, ServerEvaluator
from winnow.learn.extended_model import head_path
from winnow.learn.metrics import Measurement, Metric
from winnow.learn.model_evaluator import batch_size
from winnow.learn.representation_profile import SendTasks
from winnow.learn.stack import Loss, ModelState

MAX_ITERATIONS = 200
PENALTY = 1.0
"""λ of λ/2·‖W‖² beside the summed log loss, for features of variance 1: scikit-learn's default."""
UNSEEN = -30.0
"""The logit of a class of which the probe has no sample."""

Features = NDArray[np.float64]
Head = tuple[Features, Features]
"""W [classes, features] and b [classes]."""


def fit_linear_classifier(features: Features, labels: NDArray[np.int64], classes: int) -> Head:
    """Logistic regression on standardised features, written for the features as they are."""
    from sklearn.linear_model import LogisticRegression  # noqa: PLC0415 - importing scikit-learn takes a second
    from threadpoolctl import threadpool_limits  # noqa: PLC0415 - comes with scikit-learn

    weight, bias = np.zeros((classes, features.shape[1])), np.full(classes, UNSEEN)
    known = np.unique(labels)
    if len(known) == 1:
        bias[known] = 0.0
        return weight, bias
    mean, width = features.mean(0), np.maximum(features.std(0), 1e-6)
    with threadpool_limits(limits=1):  # threads that wait for each other cost more than so small a fit
        fitted = LogisticRegression(C=1 / PENALTY, max_iter=MAX_ITERATIONS).fit((features - mean) / width, labels)
    slopes, offsets = fitted.coef_ / width, fitted.intercept_ - (fitted.coef_ / width) @ mean
    if len(known) == 2:  # one column of logits: how much more the second is likely than the first
        slopes, offsets = np.stack([0 * slopes[0], slopes[0]]), np.array([0.0, offsets[0]])
    weight[known], bias[known] = slopes, offsets
    return weight, bias


class ProbingEvaluator:
    """Scores a version by a linear probe of its features, on the reference set and the test set.

    The probe is fitted to the server's own labelled samples (`rows`), or else to the reference set; then that set is
    scored half by half, each by a probe of the other half.
    """

    def __init__(
        self,
        module: nn.Module,
        loss: Loss,
        metrics: Sequence[Metric],
        classes: int,
        reference: ServerEvaluator,
        others: Sequence[ServerEvaluator],
        rows: tuple[Tensor, Tensor] | None,
    ) -> None:
        path = head_path(module, classes)
        if path is None:
            raise ConfigError(f"evaluation.probe: the model has no dense layer with {classes} outputs to fit anew")
        self._path, self._module = path, deepcopy(module).eval()
        self._loss, self._metrics, self._classes = loss, metrics, classes
        self._reference, self._others, self._rows = reference, others, rows

    def evaluate(self, state: ModelState, version: int, round: int, send_tasks: SendTasks) -> Evaluation:
        reference = self._reference
        profile = reference.evaluate(state, version, round, send_tasks).profile if reference.profiles else None
        held = {each.name: (self._features(state, each.x), each.y) for each in (reference, *self._others)}
        whole = held[reference.name] if self._rows is None else (self._features(state, self._rows[0]), self._rows[1])
        if not all(np.isfinite(features).all() for features, _ in (whole, *held.values())):
            unknown = {metric.name: math.nan for metric in self._metrics} | {"loss": math.nan}
            return Evaluation(metrics=dict.fromkeys(held, unknown), profile=profile)
        head = self._fit(*whole)
        logits = {name: _logits(features, head) for name, (features, _) in held.items()}
        if self._rows is None:
            logits[reference.name] = self._cross_fitted(*whole)
        metrics = {name: self._scores(logits[name], held[name][1]) for name in held}
        return Evaluation(metrics=metrics, profile=profile, fitted=self._as_state(head, state))

    def _fit(self, features: Features, labels: Tensor) -> Head:
        return fit_linear_classifier(features, labels.cpu().numpy(), self._classes)

    def _cross_fitted(self, features: Features, labels: Tensor) -> Features:
        """Logits of each half of the samples by a probe of the other."""
        logits = np.zeros((len(features), self._classes))
        halves = [np.arange(first, len(features), 2) for first in (0, 1)]
        for one, other in (halves, halves[::-1]):
            if len(one) and len(other):
                logits[one] = _logits(features[one], self._fit(features[other], labels[torch.from_numpy(other)]))
        return logits

    def _scores(self, logits: Features, targets: Tensor) -> dict[str, float]:
        outputs = torch.from_numpy(logits).float().to(targets.device)
        measured = Measurement(self._metrics)
        measured.add(outputs, targets)
        return {**measured.scores(), "loss": float(self._loss(outputs, targets).mean())}

    def _as_state(self, head: Head, state: ModelState) -> ModelState:
        names = [f"{self._path}.{part}".lstrip(".") for part in ("weight", "bias")]
        return {
            name: torch.from_numpy(values).to(state[name])
            for name, values in zip(names, head, strict=True)
            if name in state
        }

    @torch.no_grad()
    def _features(self, state: ModelState, x: Tensor) -> Features:
        """What the last dense layer reads."""
        self._module.load_state_dict(state)
        seen: list[Tensor] = []
        layer = self._module.get_submodule(self._path)
        hook = layer.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0].flatten(1)))
        try:
            for rows in torch.split(x, batch_size(x)):
                self._module(rows)
        finally:
            hook.remove()
        return torch.cat(seen).double().cpu().numpy()


def _logits(features: Features, head: Head) -> Features:
    weight, bias = head
    logits: Features = features @ weight.T + bias
    return logits
