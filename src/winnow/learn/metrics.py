"""How models are scored: the metrics there are, which of them an experiment measures, and the measuring itself."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Literal, TypeAlias

import torch
from torch import Tensor

from winnow.core import ConfigError, ModelError, OwnCodeError, suggest
from winnow.core.untrusted_text import one_line
from winnow.data.preprocessing import IGNORED
from winnow.learn import metric_functions as functions

Function: TypeAlias = Callable[[Tensor, Tensor], Tensor | float]

RESERVED_NAMES = frozenset({"loss", "spread", "lowest_decile", "highest_decile"})
"""What is measured beside metrics, under these names."""

MAX_NAME = 64


@dataclass(frozen=True)
class Metric:
    """A score of a model. `function(outputs, targets)` gives one number for all samples; or, with `per_sample`, one a
    sample, whose mean is the score: this is computed batch by batch, and several holders of data can measure it apart.
    """

    name: str
    function: Function
    lower_is_better: bool = False
    per_sample: bool = False
    power: int = 1
    """The score is this root of the mean: 2 for the root of a mean square."""
    lowest: float = -math.inf
    highest: float = math.inf
    """Between which values the score lies; what a client reports must."""
    task: Literal["classification", "regression"] | None = None
    """What it is for; None: for both."""
    min_classes: int = 2
    in_units: bool = True
    """Whether values of a regression are compared in the units of the data, not scaled as the model learns them."""
    needs_two_classes: bool = False
    """Whether it is undefined (NaN) on samples of one class."""

    def pooled(self, values: Sequence[float], samples: Sequence[int]) -> float:
        """The score over all samples of several holders, given each one's."""
        assert self.per_sample
        mean = sum(n * value**self.power for value, n in zip(values, samples, strict=True)) / sum(samples)
        return self.root(mean)

    def root(self, mean: float) -> float:
        return mean if self.power == 1 else mean ** (1 / self.power)


_classification = partial(Metric, lowest=0.0, highest=1.0, task="classification")
_telling_apart = partial(_classification, needs_two_classes=True)
_regression = partial(Metric, lowest=0.0, task="regression")

METRICS: Mapping[str, Metric] = {
    metric.name: metric
    for metric in (
        _classification("accuracy", functions.accuracy, per_sample=True),
        _telling_apart("balanced-accuracy", functions.balanced_accuracy),
        _telling_apart("auc", partial(functions.of_ranking, "roc_auc_score")),
        _telling_apart("average-precision", partial(functions.of_ranking, "average_precision_score")),
        _telling_apart("f1", partial(functions.of_predictions, "f1_score")),
        _telling_apart("precision", partial(functions.of_predictions, "precision_score")),
        _telling_apart("recall", partial(functions.of_predictions, "recall_score")),
        _classification("top-3", partial(functions.top_k, 3), per_sample=True, min_classes=4),
        _classification("top-5", partial(functions.top_k, 5), per_sample=True, min_classes=6),
        _classification("log-loss", functions.log_loss, per_sample=True, lower_is_better=True, highest=math.inf),
        _telling_apart("normalised-entropy", functions.normalised_entropy, lower_is_better=True, highest=math.inf),
        _classification("brier", functions.brier, per_sample=True, lower_is_better=True, highest=2.0),
        _classification("calibration-error", functions.calibration_error, lower_is_better=True),
        _regression("r2", functions.r2, lowest=-math.inf, highest=1.0, in_units=False),
        _regression("mae", functions.absolute_error, per_sample=True, lower_is_better=True),
        _regression("rmse", functions.squared_error, per_sample=True, lower_is_better=True, power=2),
        _regression("mape", functions.absolute_percentage_error, per_sample=True, lower_is_better=True),
        _regression("relative-accuracy", functions.relative_accuracy, per_sample=True, highest=1.0, in_units=False),
    )
}
"""The first that fits a task is its default."""

DEFAULT_WHERE_CLIENTS_EVALUATE = {"classification": "accuracy", "regression": "rmse"}


def metrics_by_name(used: Iterable[Metric]) -> dict[str, Metric]:
    """All metrics there are; those `used` in a run are as the run uses them."""
    return {**METRICS, **{metric.name: metric for metric in used}}


# Which are measured ---------------------------------------------------------------------------------------------------


def own_metric(given: Metric | Callable[[Tensor, Tensor], float]) -> Metric:
    """A metric that was passed in Python: a function of (outputs, targets), of which more is better, or a Metric."""
    if not isinstance(given, Metric) and not callable(given):
        raise ConfigError(
            f"metric: {type(given).__name__} is not supported; pass a name, a function of (outputs, targets) "
            "or a winnow.Metric"
        )
    metric = given if isinstance(given, Metric) else Metric(getattr(given, "__name__", type(given).__name__), given)
    if metric.name in METRICS or metric.name in RESERVED_NAMES or not 0 < len(metric.name) <= MAX_NAME:
        raise ConfigError(
            f"metric: your own metric cannot be called {metric.name[:MAX_NAME]!r}; "
            "give it another name: winnow.Metric(name, function)"
        )
    return metric


def chosen_metrics(
    asked: str | None,
    besides: Sequence[str],
    own: Sequence[Metric],
    classes: int | None,
    *,
    by_clients: bool,
    reference_at_clients: bool = False,
) -> tuple[Metric, ...]:
    """The metric that decides, the one asked for or the task's default, and those measured besides.

    Where clients evaluate (`by_clients`), the deciding one must be a mean over samples; where they hold the reference
    set, all must.
    """
    known = {**METRICS, **{metric.name: metric for metric in own}}
    kind = "regression" if classes is None else "classification"
    fitting = {name: metric for name, metric in known.items() if metric.task in (None, kind)}
    default = DEFAULT_WHERE_CLIENTS_EVALUATE[kind] if by_clients else next(iter(fitting))
    names = [asked or default, *besides]
    if len(set(names)) < len(names):
        raise ConfigError(f"metrics: {', '.join(names)} contains a duplicate; metrics adds to metric")
    for place, name in enumerate(names):
        key, pooled = ("metrics" if place else "metric"), reference_at_clients or (by_clients and not place)
        if name not in known:
            hint = suggest(name, fitting)
            raise ConfigError(f"{key}: {name!r} is unknown; {hint} (a function of your own is passed in Python)")
        choices = [name for name, metric in fitting.items() if metric.per_sample or not pooled]
        if name not in choices:
            where = " evaluated by clients (reference_clients, evaluation.by)" if pooled else ""
            raise ConfigError(f"{key}: {name!r} cannot be used for a {kind}{where}; choose {' or '.join(choices)}")
        if classes is not None and classes < known[name].min_classes:
            raise ConfigError(
                f"{key}: {name!r} needs {known[name].min_classes} classes or more; the data has {classes}"
            )
    return tuple(known[name] for name in names)


def in_original_units(metric: Metric, shift: Sequence[float], width: Sequence[float]) -> Metric:
    """The metric of values that a model learns as (value − shift) / width, one of each a target."""
    if not metric.in_units:
        return metric
    return replace(metric, function=partial(_restored, metric.function, tuple(shift), tuple(width)))


def _restored(
    function: Function, shift: Sequence[float], width: Sequence[float], outputs: Tensor, targets: Tensor
) -> Tensor | float:
    offset, factor = (torch.tensor(each, dtype=torch.float64, device=targets.device) for each in (shift, width))
    values = (each.reshape(targets.shape).double() * factor + offset for each in (outputs, targets))
    return function(*values)


# Measuring ------------------------------------------------------------------------------------------------------------


def by_position(outputs: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Sequences of classes [n, t] as one row a position, without those that do not count; others as they are."""
    if targets.is_floating_point() or targets.dim() == 1:
        return outputs, targets
    if targets.shape not in (outputs.shape, outputs.shape[:-1]):
        raise ModelError(
            f"sequences as targets need outputs [samples, positions, classes]; these are {tuple(outputs.shape)} for "
            f"targets {tuple(targets.shape)}"
        )
    counts = targets != IGNORED
    return outputs[counts], targets[counts]


class Measurement:
    """Scores outputs that arrive batch by batch. Only metrics that need all outputs at once have them kept."""

    def __init__(self, metrics: Sequence[Metric]) -> None:
        self._metrics = metrics
        self._sums = dict.fromkeys((metric.name for metric in metrics if metric.per_sample), 0.0)
        self._keeps = len(self._sums) < len(metrics)
        self._kept: list[tuple[Tensor, Tensor]] = []
        self._rows = 0

    def add(self, outputs: Tensor, targets: Tensor) -> None:
        outputs, targets = by_position(outputs, targets)
        self._rows += len(targets)
        for metric in self._metrics:
            if metric.per_sample:
                self._sums[metric.name] += float(per_sample(metric, outputs, targets).sum(dtype=torch.float64))
        if self._keeps:
            self._kept.append((outputs.cpu(), targets.cpu()))

    def scores(self) -> dict[str, float]:
        """NaN where there is nothing to score, or where a metric is undefined."""
        if not self._rows:
            return {metric.name: math.nan for metric in self._metrics}
        kept = tuple(torch.cat(each) for each in zip(*self._kept, strict=True))
        return {
            metric.name: metric.root(self._sums[metric.name] / self._rows)
            if metric.per_sample
            else over_all(metric, *kept)
            for metric in self._metrics
        }


def per_sample(metric: Metric, outputs: Tensor, targets: Tensor) -> Tensor:
    """One value a row."""
    values = _called(metric, outputs, targets)
    if not isinstance(values, Tensor) or values.shape != targets.shape[:1]:
        raise ConfigError(f"metric {metric.name!r} must return one number a sample, as a tensor; or drop per_sample")
    return values


def over_all(metric: Metric, outputs: Tensor, targets: Tensor) -> float:
    """One number for all rows, on the CPU; NaN where the model's outputs or the number are not finite."""
    if not len(targets) or not bool(outputs.isfinite().all()):
        return math.nan
    if metric.needs_two_classes and bool((targets == targets[0]).all()):
        return math.nan
    value = _called(metric, outputs, targets)
    try:
        number = float(value)
    except (TypeError, ValueError, RuntimeError):
        raise ConfigError(
            f"metric {metric.name!r} returned {type(value).__name__}; it must return one number"
        ) from None
    return number if math.isfinite(number) else math.nan


def _called(metric: Metric, outputs: Tensor, targets: Tensor) -> Tensor | float:
    if metric.name in METRICS:  # also as `in_original_units` has it; its failure is no fault of a user
        return metric.function(outputs, targets)
    try:
        return metric.function(outputs, targets)
    except Exception as error:
        shapes = f"outputs {tuple(outputs.shape)} and targets {tuple(targets.shape)}"
        place = f"metric {metric.name!r} failed on {shapes}: {type(error).__name__}"
        raise OwnCodeError(place, one_line(str(error))) from error
