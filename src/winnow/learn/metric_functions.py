"""What metrics compute: means over samples in torch, batch by batch; the others by scikit-learn, over all samples.

Outputs of a classification are logits: one column a class, or a single one that is positive for class 1.
"""

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional

CALIBRATION_BINS = 15
SMALLEST_TARGET = float(np.finfo(np.float64).eps)
"""What relative errors divide by at least, as in scikit-learn."""


def is_single(outputs: Tensor) -> bool:
    """Whether one output decides between two classes."""
    return outputs.dim() == 1 or outputs.shape[1] == 1


def predicted_classes(outputs: Tensor) -> Tensor:
    """The class of the largest output; a single one says 1 if it is above 0."""
    return (outputs.flatten() > 0).long() if is_single(outputs) else outputs.argmax(dim=1)


def class_probabilities(outputs: Tensor) -> Tensor:
    """One column a class. Outputs that are log-probabilities stay what they are."""
    if is_single(outputs):
        positive = outputs.double().flatten().sigmoid()
        return torch.stack([1 - positive, positive], dim=1)
    return outputs.double().softmax(dim=1)


# Means over samples: one value a sample -------------------------------------------------------------------------------


def accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    return (predicted_classes(outputs) == targets).float()


def top_k(k: int, outputs: Tensor, targets: Tensor) -> Tensor:
    """Whether the class is among those of the k largest outputs."""
    return (outputs.topk(k, dim=1).indices == targets[:, None]).any(dim=1).float()


def log_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    if is_single(outputs):
        return functional.binary_cross_entropy_with_logits(
            outputs.double().flatten(), targets.double(), reduction="none"
        )
    return functional.cross_entropy(outputs.double(), targets, reduction="none")


def brier(outputs: Tensor, targets: Tensor) -> Tensor:
    """The squared error of the probabilities, summed over classes; of two classes, that of one."""
    found = class_probabilities(outputs)
    errors = functional.mse_loss(found, functional.one_hot(targets, found.shape[1]).double(), reduction="none")
    return errors.sum(dim=1) / (2 if found.shape[1] == 2 else 1)


def _per_sample(values: Tensor) -> Tensor:
    return values.reshape(len(values), -1).mean(dim=1)


def absolute_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return _per_sample(functional.l1_loss(outputs.reshape(targets.shape).double(), targets.double(), reduction="none"))


def squared_error(outputs: Tensor, targets: Tensor) -> Tensor:
    return _per_sample(functional.mse_loss(outputs.reshape(targets.shape).double(), targets.double(), reduction="none"))


def absolute_percentage_error(outputs: Tensor, targets: Tensor) -> Tensor:
    """|y − ŷ| / |y|: a share, not per cent, as in scikit-learn."""
    targets = targets.double()
    errors = (outputs.reshape(targets.shape).double() - targets).abs()
    return _per_sample(errors / targets.abs().clamp_min(SMALLEST_TARGET))


def relative_accuracy(outputs: Tensor, targets: Tensor) -> Tensor:
    """1 − |y − ŷ| / max(y, ŷ), clamped to [0, 1] and averaged over the targets; for targets that are not negative."""
    outputs = outputs.reshape(targets.shape)
    largest = torch.maximum(outputs, targets).clamp_min(1e-8)
    return _per_sample((1 - (targets - outputs).abs() / largest).clamp(0, 1))


# Over all samples -----------------------------------------------------------------------------------------------------


@contextmanager
def _scikit_learn() -> Iterator[Any]:
    """scikit-learn's metrics, which take a second to import, without its checks and warnings: both were made before."""
    from sklearn import config_context, metrics  # noqa: PLC0415
    from sklearn.exceptions import UndefinedMetricWarning  # noqa: PLC0415

    with config_context(assume_finite=True, skip_parameter_validation=True), warnings.catch_warnings():
        warnings.simplefilter("ignore", UndefinedMetricWarning)
        warnings.filterwarnings("ignore", message="y_pred contains classes not in y_true")
        yield metrics


def of_ranking(name: str, outputs: Tensor, targets: Tensor) -> float:
    """A metric of how well probabilities rank samples: of class 1 of two, or the mean over classes against the rest."""
    found = class_probabilities(outputs).numpy()
    if found.shape[1] == 2:
        truth, found = (targets == 1).numpy(), found[:, 1]
    else:
        truth = functional.one_hot(targets, found.shape[1]).numpy()
        present = truth.any(axis=0)
        truth, found = truth[:, present], found[:, present]
    with _scikit_learn() as metrics:
        return float(getattr(metrics, name)(truth, found))


def balanced_accuracy(outputs: Tensor, targets: Tensor) -> float:
    with _scikit_learn() as metrics:
        return float(metrics.balanced_accuracy_score(targets.numpy(), predicted_classes(outputs).numpy()))


def normalised_entropy(outputs: Tensor, targets: Tensor) -> float:
    """The mean log loss over the entropy of how often classes occur: 1 is as good as knowing these shares alone (He et
    al., 2014, section 2).
    """
    shares = torch.bincount(targets).double() / len(targets)
    return float(log_loss(outputs, targets).mean() / torch.special.entr(shares).sum())


def of_predictions(name: str, outputs: Tensor, targets: Tensor) -> float:
    """A metric of the predicted classes: of class 1 of two, or the mean over classes."""
    truth, found = targets.numpy(), predicted_classes(outputs).numpy()
    average = "binary" if is_single(outputs) or outputs.shape[1] == 2 else "macro"
    with _scikit_learn() as metrics:
        return float(getattr(metrics, name)(truth, found, average=average, zero_division=0.0))


def calibration_error(outputs: Tensor, targets: Tensor) -> float:
    """|share of right predictions − mean confidence| in equal bins of the confidence, weighted by their samples."""
    from sklearn.calibration import calibration_curve  # noqa: PLC0415 - importing scikit-learn takes a second

    confidence: NDArray[np.float64] = class_probabilities(outputs).amax(dim=1).clamp_max(1.0).numpy()
    right = (predicted_classes(outputs) == targets).long().numpy()
    share, mean = calibration_curve(right, confidence, n_bins=CALIBRATION_BINS, pos_label=1)
    edges = np.linspace(0, 1, CALIBRATION_BINS + 1)[1:-1]
    samples = np.bincount(np.searchsorted(edges, confidence), minlength=CALIBRATION_BINS)
    return float(np.average(np.abs(share - mean), weights=samples[samples > 0]))


def r2(outputs: Tensor, targets: Tensor) -> float:
    """R² = 1 − MSE / Var(y), averaged over the targets; NaN where a target does not vary."""
    if len(targets) < 2:
        return float("nan")
    with _scikit_learn() as metrics, np.errstate(divide="ignore", invalid="ignore"):
        return float(metrics.r2_score(targets.numpy(), outputs.reshape(targets.shape).numpy(), force_finite=False))
