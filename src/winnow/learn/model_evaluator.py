"""One forward pass that scores a model on data and, on the way, profiles a layer.

Evaluation and profiling share the pass: the reference profile of a version costs nothing beyond its evaluation.
"""

from collections.abc import Iterator, Sequence
from copy import deepcopy
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor, nn

from winnow.core import ModelError
from winnow.learn.metric_functions import is_single, predicted_classes
from winnow.learn.metrics import Measurement, Metric, by_position
from winnow.learn.profile_by_class import ClassProfile, ProfileClasses
from winnow.learn.profiled_layer import fuse_outputs
from winnow.learn.representation_profile import Profile, StreamingMoments
from winnow.learn.stack import Execution, Loss, ModelState, Precision, autocast_context, model_state

BATCH_VALUES = 200_000
"""Feature values that a forward pass takes at a time: few enough to stay in a processor's cache (255 MNIST images)."""

DEVICE_BATCH_VALUES = 4_000_000
"""The same for a CUDA device, which idles while small passes are launched: 8,000 photographs took ten times as long."""

COMPILED_ROWS = 8192
"""Samples that compiled code is given at a time: enough for all cores, and their outputs take little memory."""


def batch_size(x: Tensor) -> int:
    """Samples of this kind that a forward pass takes at a time."""
    values = DEVICE_BATCH_VALUES if x.is_cuda else BATCH_VALUES
    return max(32, min(4096, values // max(1, x[:1].numel())))


@dataclass(frozen=True, kw_only=True)
class DataSetEvaluation:
    """What one pass over some samples shows."""

    metrics: dict[str, float]
    """The metrics asked for, in their order, and the mean loss."""
    profile: Profile | ClassProfile | None
    confusion: Tensor | None = None
    """How many samples of each class (rows) were taken for each class (columns)."""


class ModelEvaluator:
    """A model in evaluation mode, used to evaluate any of its versions on data."""

    def __init__(self, module: nn.Module, loss: Loss, layer: str | None, execution: Execution | None = None) -> None:
        self._module = deepcopy(module).eval()
        self.loss = loss
        self._precision: Precision = execution.precision if execution is not None else "float32"
        self._forward_pass = execution.forward_pass(layer) if execution is not None else None
        self._layer = self._module.get_submodule(layer) if layer is not None else None

    @property
    def watches_layer(self) -> bool:
        """Whether passes show the outputs of a layer."""
        return self._layer is not None

    def profile_elements(self, x: Tensor) -> int:
        """How many elements a profile of data like these has."""
        first = torch.zeros(1, dtype=torch.int64)
        return len(self.profiles(model_state(self._module), x[:1], first, first, 1)[0])

    @torch.no_grad()
    def evaluate(
        self,
        state: ModelState,
        x: Tensor,
        y: Tensor,
        metrics: Sequence[Metric],
        confusion_classes: int = 0,
        profile_classes: ProfileClasses | None = None,
    ) -> DataSetEvaluation:
        """Score and profile one data set, by class if classes are given; with `confusion_classes` also count which
        class is taken for which.
        """
        group = torch.zeros(len(x), dtype=torch.int64) if profile_classes is None else profile_classes.of(y)
        moments = StreamingMoments(1 if profile_classes is None else profile_classes.count)
        measured, loss = Measurement(metrics), torch.zeros((), device=x.device)
        confusion = torch.zeros(confusion_classes, confusion_classes, dtype=torch.int64)
        for place, outputs, seen in self.passes(state, x, None, to_end=True):
            measured.add(outputs, y[place])
            loss += self.loss(outputs, y[place]).sum()
            if self._layer is not None:
                moments.add(seen, group[place])
            if confusion_classes:
                confusion += confusion_counts(*by_position(outputs, y[place]), confusion_classes)
        profile: Profile | ClassProfile | None = None
        if self._layer is not None:
            profile = (moments.profiles() if profile_classes is None else profile_classes.told(moments))[0]
        return DataSetEvaluation(
            metrics={**measured.scores(), "loss": float(loss) / len(y)},
            profile=profile,
            confusion=confusion if confusion_classes else None,
        )

    @torch.no_grad()
    def outputs(self, state: ModelState, x: Tensor, rows: Tensor) -> Tensor:
        """The model's outputs for these rows of x."""
        return torch.cat([outputs for _, outputs, _ in self.passes(state, x, rows, to_end=True)])

    @torch.no_grad()
    def profiles(self, state: ModelState, x: Tensor, rows: Tensor, owner: Tensor, owners: int) -> list[Profile]:
        """One profile for each of several owners' rows of x."""
        return self.moments(state, x, rows, owner, owners).profiles()

    @torch.no_grad()
    def moments(self, state: ModelState, x: Tensor, rows: Tensor, group: Tensor, groups: int) -> StreamingMoments:
        """The moments of the profiled layer's output over several groups of rows of x.

        A pass ends at that layer: what comes after it is not needed.
        """
        moments = StreamingMoments(groups)
        for place, _, seen in self.passes(state, x, rows, to_end=False):
            moments.add(seen, group[place])
        return moments

    @torch.no_grad()
    def losses(
        self, state: ModelState, x: Tensor, y: Tensor, rows: Tensor, owner: Tensor, owners: int
    ) -> tuple[Tensor, Tensor]:
        """For each of several owners' rows, the mean loss of its samples and the root of their mean squared loss."""
        sums, squares = torch.zeros(2, owners, dtype=torch.float64).unbind()
        for place, outputs, _ in self.passes(state, x, rows, to_end=True):
            losses = self.loss(outputs, y[rows[place].to(y.device)]).double().cpu()
            sums.index_add_(0, owner[place], losses)
            squares.index_add_(0, owner[place], losses.square())
        samples = torch.bincount(owner, minlength=owners)
        return sums / samples, (squares / samples).sqrt()

    def passes(
        self, state: ModelState, x: Tensor, rows: Tensor | None, *, to_end: bool
    ) -> Iterator[tuple[slice, Tensor, Tensor]]:
        """For one batch of rows after another (all of x if none are given): which, outputs, and the layer's outputs."""
        size = batch_size(x) if self._forward_pass is None else COMPILED_ROWS
        places = [slice(first, first + size) for first in range(0, len(x) if rows is None else len(rows), size)]
        if self._forward_pass is not None:
            chosen = torch.arange(len(x)) if rows is None else rows
            yield from ((place, *self._forward_pass(state, x, chosen[place], to_end)) for place in places)
            return
        self._module.load_state_dict(state)
        for place in places:
            batch = x[place] if rows is None else x[rows[place].to(x.device)]
            yield place, *self._plain_pass(batch, to_end=to_end)

    def _plain_pass(self, x: Tensor, *, to_end: bool) -> tuple[Tensor, Tensor]:
        outputs = x.new_empty(0)
        with (
            _LayerCapture(self._layer, samples=len(x), and_stop=not to_end) as watch,
            autocast_context(self._precision, x.device),
        ):
            outputs = self._module(x)
        outputs = outputs.to(torch.promote_types(outputs.dtype, torch.float32))
        return outputs, x.new_empty(0) if self._layer is None else watch.seen()


def confusion_counts(outputs: Tensor, targets: Tensor, classes: int) -> Tensor:
    """How many samples of each class (rows) were taken for each (columns). Outputs beyond the classes do not count."""
    cells = targets * classes + predicted_classes(outputs if is_single(outputs) else outputs[:, :classes])
    return torch.bincount(cells, minlength=classes * classes).reshape(classes, classes).cpu()


class _LayerReached(BaseException):  # no error; and no `except Exception` of a user's may catch it
    """The profiled layer has been run; nothing after it matters."""


class _LayerCapture:
    """Captures the fused outputs of a layer, the first time it is used in a pass."""

    def __init__(self, layer: nn.Module | None, *, samples: int, and_stop: bool = False) -> None:
        self._layer, self._samples, self._and_stop = layer, samples, and_stop
        self._output: Tensor | None = None

    def __enter__(self) -> Self:
        self._hook = self._layer.register_forward_hook(self._catch) if self._layer is not None else None
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> bool:
        if self._hook is not None:
            self._hook.remove()
        return isinstance(error, _LayerReached)

    def _catch(self, layer: nn.Module, inputs: object, output: object) -> None:
        if self._output is None:
            fused = fuse_outputs(output, layer)
            if len(fused) != self._samples:
                raise ModelError(
                    f"select.layer: the layer outputs {len(fused)} rows for {self._samples} samples; "
                    "choose a layer that outputs one row per sample"
                )
            # What follows may overwrite the output: an activation in place would turn it into another quantity.
            self._output = fused if self._and_stop else fused.clone()
        if self._and_stop:
            raise _LayerReached

    def seen(self) -> Tensor:
        if self._output is None:
            raise ModelError("select.layer: the forward pass does not use this layer; choose another layer")
        return self._output
