"""Metrics against scikit-learn on the raw outputs, where they are undefined, and which of them a run may use."""

import math
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics as sklearn
from torch import Tensor

from winnow.core import ConfigError, ModelError, OwnCodeError
from winnow.learn.metrics import (
    METRICS,
    Measurement,
    Metric,
    chosen_metrics,
    in_original_units,
    own_metric,
    per_sample,
)

RNG = np.random.default_rng(0)
N = 500


def measured(name: str | Metric, outputs: Any, targets: Any, batch: int = 128) -> float:
    """The score of outputs that arrive in batches."""
    metric = METRICS[name] if isinstance(name, str) else name
    outputs, targets = torch.as_tensor(outputs), torch.as_tensor(targets)
    found = Measurement([metric])
    for first in range(0, len(targets), batch):
        found.add(outputs[first : first + batch], targets[first : first + batch])
    return found.scores()[metric.name]


def softmax(logits: np.ndarray) -> np.ndarray:
    powers = np.exp(logits.astype(np.float64))
    return powers / powers.sum(axis=1, keepdims=True)


# Against scikit-learn -------------------------------------------------------------------------------------------------


def classification(classes: int) -> tuple[np.ndarray, np.ndarray]:
    y = RNG.integers(0, classes, N)
    return (RNG.normal(size=(N, classes)) + 1.5 * np.eye(classes)[y]).astype(np.float32), y


def expected_of_classes(y: np.ndarray, p: np.ndarray) -> dict[str, float]:
    """All scores that are defined for two classes or more, by scikit-learn alone."""
    chosen, two = p.argmax(axis=1), p.shape[1] == 2
    average = "binary" if two else "macro"
    found = {
        "accuracy": sklearn.accuracy_score(y, chosen),
        "balanced-accuracy": sklearn.balanced_accuracy_score(y, chosen),
        "auc": sklearn.roc_auc_score(y, p[:, 1] if two else p, multi_class="ovr", average="macro"),
        "average-precision": sklearn.average_precision_score(y, p[:, 1] if two else p),
        "f1": sklearn.f1_score(y, chosen, average=average),
        "precision": sklearn.precision_score(y, chosen, average=average),
        "recall": sklearn.recall_score(y, chosen, average=average),
        "log-loss": sklearn.log_loss(y, p),
        "brier": sklearn.brier_score_loss(y, p[:, 1])
        if two
        else float(np.mean(np.sum((p - np.eye(p.shape[1])[y]) ** 2, axis=1))),
    }
    for k in (3, 5):
        if p.shape[1] > k:
            found[f"top-{k}"] = sklearn.top_k_accuracy_score(y, p, k=k)
    return found


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_classification(classes: int) -> None:
    outputs, y = classification(classes)
    for name, value in expected_of_classes(y, softmax(outputs)).items():
        assert measured(name, outputs, y) == pytest.approx(value, rel=1e-6), name


@pytest.mark.parametrize("shape", [(N,), (N, 1)])
def test_one_logit_is_two_classes(shape: tuple[int, ...]) -> None:
    y = RNG.integers(0, 2, N)
    logits = (RNG.normal(size=N) + y).astype(np.float32)
    p = 1 / (1 + np.exp(-logits.astype(np.float64)))
    for name, value in expected_of_classes(y, np.stack([1 - p, p], axis=1)).items():
        assert measured(name, logits.reshape(shape), y) == pytest.approx(value, rel=1e-6), name


@pytest.mark.parametrize("targets", [1, 3])
@pytest.mark.parametrize("flat", [True, False])
def test_regression(targets: int, flat: bool) -> None:
    y = RNG.normal(5, 2, size=(N, targets)).astype(np.float32)
    p = (y + RNG.normal(size=y.shape)).astype(np.float32)
    expected = {
        "r2": sklearn.r2_score(y, p),
        "mae": sklearn.mean_absolute_error(y, p),
        "rmse": sklearn.mean_squared_error(y, p) ** 0.5,
        "mape": sklearn.mean_absolute_percentage_error(y, p),
        "relative-accuracy": float(np.mean(np.clip(1 - np.abs(y - p) / np.maximum(np.maximum(y, p), 1e-8), 0, 1))),
    }
    for name, value in expected.items():
        outputs = p.reshape(-1) if flat and targets == 1 else p
        assert measured(name, outputs, y) == pytest.approx(value, rel=1e-5), name


@pytest.mark.parametrize("classes", [2, 4])
def test_calibration_error_is_the_textbook_s(classes: int) -> None:
    outputs, y = classification(classes)
    p = softmax(outputs)
    confidence, right = p.max(axis=1), p.argmax(axis=1) == y
    expected = 0.0
    for place in range(15):
        inside = (confidence > place / 15) & (confidence <= (place + 1) / 15)
        if inside.any():
            expected += inside.mean() * abs(right[inside].mean() - confidence[inside].mean())
    assert measured("calibration-error", outputs, y) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("classes", [2, 4])
def test_normalised_entropy_is_the_log_loss_over_that_of_the_class_shares(classes: int) -> None:
    outputs, y = classification(classes)
    shares = np.bincount(y) / len(y)
    base = sklearn.log_loss(y, np.tile(shares, (len(y), 1)))
    assert measured("normalised-entropy", outputs, y) == pytest.approx(sklearn.log_loss(y, softmax(outputs)) / base)
    assert measured("normalised-entropy", np.log(np.tile(shares, (len(y), 1))), y) == pytest.approx(1.0)


def test_a_class_without_samples_is_left_out_of_the_mean() -> None:
    outputs, y = classification(4)
    kept = y != 2
    outputs, y = outputs[kept], y[kept]
    p = softmax(outputs)
    by_class = [sklearn.roc_auc_score(y == k, p[:, k]) for k in (0, 1, 3)]
    assert measured("auc", outputs, y) == pytest.approx(np.mean(by_class))


def test_positions_of_sequences_count_one_by_one() -> None:
    outputs, y = RNG.normal(size=(40, 6, 3)).astype(np.float32), RNG.integers(0, 3, (40, 6))
    y[RNG.random(y.shape) < 0.3] = -100
    counts = y != -100
    for name, value in expected_of_classes(y[counts], softmax(outputs[counts])).items():
        assert measured(name, outputs, y, batch=7) == pytest.approx(value, rel=1e-6), name
    with pytest.raises(ModelError, match="sequences as targets need outputs"):
        measured("accuracy", outputs.swapaxes(1, 2), y)


def test_values_are_compared_in_the_units_of_the_data() -> None:
    y, p = RNG.normal(size=(N, 2)), RNG.normal(size=(N, 2))
    shift, width = np.array([100.0, -3.0]), np.array([20.0, 0.5])
    raw_y, raw_p = y * width + shift, p * width + shift
    expected = {"mae": sklearn.mean_absolute_error, "mape": sklearn.mean_absolute_percentage_error}
    for name, by in expected.items():
        metric = in_original_units(METRICS[name], shift.tolist(), width.tolist())
        assert measured(metric, p, y) == pytest.approx(by(raw_y, raw_p), rel=1e-6), name
    assert in_original_units(METRICS["r2"], [1.0], [2.0]) is METRICS["r2"], "it has no unit"


# Undefined ------------------------------------------------------------------------------------------------------------

TELL_APART = ("auc", "average-precision", "balanced-accuracy", "f1", "normalised-entropy", "precision", "recall")


@pytest.mark.parametrize("name", TELL_APART)
@pytest.mark.parametrize("classes", [2, 3])
def test_one_class_alone_is_not_told_apart(name: str, classes: int) -> None:
    outputs = RNG.normal(size=(20, classes))
    assert math.isnan(measured(name, outputs, np.ones(20, np.int64)))
    for other in ("accuracy", "log-loss", "brier", "calibration-error"):
        assert math.isfinite(measured(other, outputs, np.ones(20, np.int64)))


@pytest.mark.parametrize("name", [name for name, metric in METRICS.items() if not metric.per_sample])
def test_a_model_that_diverged_has_no_score(name: str) -> None:
    two = METRICS[name].task == "classification"
    outputs = np.full((20, 2 if two else 1), np.nan)
    targets = np.arange(20) % 2 if two else np.arange(20.0)[:, None]
    assert math.isnan(measured(name, outputs, targets))


@pytest.mark.parametrize("targets", [np.ones((9, 1)), np.ones((1, 1))])
def test_r2_of_targets_that_do_not_vary(targets: np.ndarray) -> None:
    assert math.isnan(measured("r2", RNG.normal(size=targets.shape), targets))


def test_nothing_to_score() -> None:
    assert all(math.isnan(value) for value in Measurement([METRICS["accuracy"], METRICS["auc"]]).scores().values())


# Pooling --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [name for name, metric in METRICS.items() if metric.per_sample])
def test_scores_of_several_holders_pool_exactly(name: str) -> None:
    if METRICS[name].task == "classification":
        outputs, y = classification(7)
    else:
        y = RNG.normal(5, 2, size=(N, 2)).astype(np.float32)
        outputs = (y + RNG.normal(size=y.shape)).astype(np.float32)
    ends = [0, 20, 300, N]
    parts = [slice(*pair) for pair in pairwise(ends)]
    apart = [measured(name, outputs[part], y[part]) for part in parts]
    sizes = [part.stop - part.start for part in parts]
    assert METRICS[name].pooled(apart, sizes) == pytest.approx(measured(name, outputs, y), rel=1e-6)


# Which are used -------------------------------------------------------------------------------------------------------


def chosen(asked: str | None, *besides: str, classes: int | None = 3, **given: Any) -> list[str]:
    own = given.pop("own", ())
    found = chosen_metrics(asked, besides, own, classes, **{"by_clients": False, **given})
    return [metric.name for metric in found]


def test_defaults() -> None:
    assert chosen(None) == ["accuracy"]
    assert chosen(None, classes=None) == ["r2"]
    assert chosen(None, classes=None, by_clients=True) == ["rmse"]
    assert chosen("auc", "f1", "log-loss") == ["auc", "f1", "log-loss"]
    assert chosen("accuracy", "auc", by_clients=True) == ["accuracy", "auc"], "only the one that decides is a mean"


@pytest.mark.parametrize(
    ("call", "line"),
    [
        (
            lambda: chosen("r2"),
            "metric: 'r2' cannot be used for a classification; choose accuracy or bal",
        ),
        (lambda: chosen("auc", classes=None), "metric: 'auc' cannot be used for a regression; choose r2 or mae"),
        (
            lambda: chosen("auc", by_clients=True),
            "evaluated by clients .*; choose accuracy or top-3 or top-5",
        ),
        (lambda: chosen(None, "f1", by_clients=True, reference_at_clients=True), "metrics: 'f1' cannot be used for a"),
        (lambda: chosen("acuracy"), "metric: 'acuracy' is unknown; did you mean 'accuracy'"),
        (lambda: chosen("top-5"), "metric: 'top-5' needs 6 classes or more; the data has 3"),
        (lambda: chosen("auc", "auc"), "metrics: auc, auc contains a duplicate"),
        (lambda: own_metric(3), "metric: int is not supported; pass a name, a function"),  # type: ignore[arg-type]
        (lambda: own_metric(Metric("auc", float)), "metric: your own metric cannot be called 'auc'"),  # type: ignore[arg-type]
        (lambda: own_metric(Metric("loss", float)), "metric: your own metric cannot be called 'loss'"),  # type: ignore[arg-type]
    ],
)
def test_a_metric_that_does_not_fit_is_one_line(call: Any, line: str) -> None:
    with pytest.raises(ConfigError, match=line) as caught:
        call()
    assert "\n" not in str(caught.value)


def test_a_failing_built_in_metric_is_not_called_the_users() -> None:
    outputs, y = torch.zeros(20, 3), torch.zeros(20, 1)
    for metric in (METRICS["rmse"], in_original_units(METRICS["rmse"], [5.0], [2.0])):
        with pytest.raises(RuntimeError, match="shape"):
            per_sample(metric, outputs, y)


def mean_output(outputs: Tensor, targets: Tensor) -> float:
    return float(outputs.mean())


def test_a_function_is_a_metric_of_its_name() -> None:
    metric = own_metric(mean_output)
    assert (metric.name, metric.lower_is_better, metric.per_sample) == ("mean_output", False, False)
    outputs, y = classification(3)
    assert measured(metric, outputs, y) == pytest.approx(float(outputs.mean()), rel=1e-5)
    assert chosen("mean_output", own=[metric]) == ["mean_output"]


@pytest.mark.parametrize(
    ("function", "error", "line"),
    [
        (lambda o, t: o, ConfigError, "metric 'mine' returned Tensor; it must return one number"),
        (lambda o, t: None, ConfigError, "metric 'mine' returned NoneType; it must return one number"),
        (lambda o, t: o[999], OwnCodeError, "metric 'mine' failed on outputs .20, 3. and targets .20,.: IndexError"),
    ],
)
def test_a_function_that_fails_is_one_line(function: Any, error: type[Exception], line: str) -> None:
    with pytest.raises(error, match=line):
        measured(Metric("mine", function), RNG.normal(size=(20, 3)), np.arange(20) % 3)
    with pytest.raises(ConfigError, match="must return one number a sample"):
        measured(Metric("mine", lambda o, t: o, per_sample=True), RNG.normal(size=(20, 3)), np.arange(20) % 3)
