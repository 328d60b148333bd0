"""scikit-learn estimators as models: their coefficients are a module's parameters, so that all else treats them alike.

Those with `partial_fit` train by it. The others would fit each client's data completely, from scratch and only if these
have all classes; instead the same model is trained by the steps of `local`, like any other.
"""

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from winnow.core import ModelError, derive
from winnow.core.errors import first_line
from winnow.learn.stack.user_training_functions import OwnBatches, OwnLoop, TrainContext

Floats: TypeAlias = NDArray[np.float64]

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "logistic": nn.Sigmoid,
    "identity": nn.Identity,
}


class _Linear(nn.Module):
    """The coefficients of a linear estimator and, for its learning rate, the number of samples that it has seen."""

    seen: Tensor

    def __init__(self, features: int, outputs: int, *, bias: bool) -> None:
        super().__init__()
        self.linear = nn.Linear(features, outputs, bias=bias)
        for parameter in self.linear.parameters():
            nn.init.zeros_(parameter)
        self.register_buffer("seen", torch.ones(()))

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.linear(x.flatten(1))
        return outputs


@dataclass(frozen=True)
class _PartialFit:
    """A client's round: `partial_fit` on one batch after another, from the model's coefficients."""

    estimator: Any
    labels: tuple[int, ...] | None

    def __call__(self, model: nn.Module, batches: OwnBatches, context: TrainContext) -> None:
        assert isinstance(model, _Linear)
        own = _fitted_like(self.estimator, model.linear.in_features, self.labels, 1)
        own.set_params(random_state=int(torch.randint(2**31 - 1, ())))
        _write_linear(own, model.linear)
        own.t_ = float(model.seen)
        for batch in batches:
            assert isinstance(batch.x, Tensor)
            x, y = batch.x.flatten(1).cpu().double().numpy(), batch.y.cpu().numpy()
            try:
                own.partial_fit(x, y if self.labels is not None else y.reshape(-1))
            except ValueError:  # values that are not finite, in the samples or by overflow: then nor is the update
                nn.init.constant_(model.linear.weight, torch.nan)
                return
        model.linear.weight.data.copy_(torch.from_numpy(np.atleast_2d(own.coef_)))
        if model.linear.bias is not None:
            model.linear.bias.data.copy_(torch.from_numpy(np.atleast_1d(own.intercept_)))
        model.seen.fill_(own.t_)


def is_estimator(value: object) -> bool:
    return hasattr(value, "get_params") and hasattr(value, "fit") and not isinstance(value, type)


def estimator_model(
    estimator: Any, sample_shape: tuple[int, ...], outputs: int, *, classification: bool, seed: int
) -> tuple[nn.Module, OwnLoop | None]:
    """The module that stands for an estimator, and how it is trained if not by the steps of `local`."""
    kind, features = type(estimator).__name__, prod(sample_shape)
    if kind == "Pipeline":
        raise ModelError("model: pass the last step of the pipeline alone; columns are scaled and encoded by [data]")
    if kind not in ESTIMATORS or not type(estimator).__module__.startswith("sklearn."):
        raise ModelError(f"model: {kind} cannot be averaged by its coefficients; use one of {', '.join(ESTIMATORS)}")
    if kind.endswith(("Classifier", "Perceptron", "LogisticRegression")) != classification:
        wanted, given = ("classes", "numbers") if not classification else ("numbers", "classes")
        raise ModelError(f"model: {kind} predicts {wanted}, but the targets are {given}; use another estimator or task")
    if kind == "SGDRegressor" and outputs > 1:
        raise ModelError(f"model: {kind} predicts one number, but there are {outputs} targets; use LinearRegression")
    if estimator.get_params().get("loss") == "poisson":
        raise ModelError(f"model: {kind} with loss='poisson' has no counterpart here; use loss='squared_error'")
    labels = tuple(range(outputs)) if classification else None
    _fitted_like(estimator, features, labels, outputs)  # refuses settings that it would only refuse after the run
    width = 1 if classification and outputs == 2 else outputs
    with torch.random.fork_rng([]):
        torch.manual_seed(derive(seed, "model") % 2**63)
        if kind in NETWORKS:
            return _network(estimator, features, width), None
        line = _Linear(features, width, bias=estimator.get_params()["fit_intercept"])
    if kind not in PARTIAL:
        return nn.Sequential(nn.Flatten(), line.linear), None
    if estimator.get_params().get("average") or estimator.get_params().get("early_stopping"):
        raise ModelError(f"model: {kind} cannot be trained in parts with average or early_stopping; turn them off")
    notice = f"clients train by {kind}.partial_fit, one after another; of [local] epochs, steps and batch_size count"
    return line, OwnLoop(_PartialFit(estimator, labels), notice)


def estimator_notice(estimator: Any) -> str:
    """What of an estimator is not used, if anything."""
    kind = type(estimator).__name__
    if estimator is None or kind in PARTIAL:
        return ""
    return f"clients train {kind} by the steps of [local]; its own solver and penalty are not used"


def fitted_estimator(estimator: Any, module: nn.Module, labels: Sequence[Any] | None) -> Any:
    """The estimator with the module's coefficients; it predicts as the module does. `labels` are those of classes."""
    layers = [layer for layer in module.modules() if isinstance(layer, nn.Linear)]
    fitted = _fitted_like(estimator, layers[0].in_features, labels, layers[-1].out_features)
    if type(estimator).__name__ in NETWORKS:
        fitted.coefs_ = [_array(layer.weight).T.copy() for layer in layers]
        fitted.intercepts_ = [_array(layer.bias) for layer in layers]
        return fitted
    _write_linear(fitted, layers[0])
    return fitted


def _network(estimator: Any, features: int, outputs: int) -> nn.Module:
    """The layers of scikit-learn's MLP; the activation after the last one belongs to the loss."""
    settings, layers = estimator.get_params(), list[nn.Module]([nn.Flatten()])
    for hidden in np.atleast_1d(settings["hidden_layer_sizes"]).tolist():
        layers += [nn.Linear(features, hidden), ACTIVATIONS[settings["activation"]]()]
        features = hidden
    return nn.Sequential(*layers, nn.Linear(features, outputs))


def _fitted_like(estimator: Any, features: int, labels: Sequence[Any] | None, outputs: int) -> Any:
    """A fitted copy, by a sample of each class: whatever a fitted estimator has besides coefficients is there."""
    from sklearn.base import clone  # noqa: PLC0415 - a second to import

    fitted = clone(estimator)
    short = {"max_iter": 1, "early_stopping": False, "verbose": 0} if hasattr(estimator, "max_iter") else {}
    fitted.set_params(**{name: value for name, value in short.items() if hasattr(estimator, name)})
    count = 2 if labels is None else len(labels)
    y = np.zeros((count, outputs) if outputs > 1 else count) if labels is None else np.asarray(labels)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of one step nobody expects that it converges
            fitted.fit(np.zeros((count, features)), y)
    except Exception as error:
        raise ModelError(f"model: {type(estimator).__name__} cannot be used: {first_line(error)}") from error
    return fitted.set_params(**clone(estimator).get_params())


def _write_linear(fitted: Any, linear: nn.Linear) -> None:
    """In place: some estimators keep a second reference to their coefficients."""
    fitted.coef_[...] = _array(linear.weight).reshape(fitted.coef_.shape)
    bias = np.zeros(linear.out_features) if linear.bias is None else _array(linear.bias)
    if np.ndim(fitted.intercept_):
        fitted.intercept_[...] = bias
    else:
        fitted.intercept_ = float(bias[0])


def _array(tensor: Tensor) -> Floats:
    return tensor.detach().cpu().double().numpy()


PARTIAL = ("SGDClassifier", "SGDRegressor", "Perceptron")
NETWORKS = ("MLPClassifier", "MLPRegressor")
ESTIMATORS = (*PARTIAL, "LogisticRegression", "LinearRegression", "Ridge", *NETWORKS)
