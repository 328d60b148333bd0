"""The owner of the labels: the top, the loss, and the gradients that go back."""

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call

from winnow.core import ConfigError, DataError
from winnow.core.message_decoding import UnreadableError
from winnow.learn.metric_functions import is_single
from winnow.learn.metrics import Metric
from winnow.learn.stack.per_sample_losses import LOSSES, Loss, as_loss
from winnow.vertical.keyed_rows import KeyedRows
from winnow.vertical.label_inference import LabelInference
from winnow.vertical.private_gradients import private_gradients
from winnow.vertical.split_plan import SplitPlan
from winnow.vertical.trained_module import TrainedModule

TOP, BOTTOM = "top.", "bottom."


class LabelParty:
    """Learns from activations of a batch, and answers with their gradients."""

    def __init__(self, plan: SplitPlan, rows: KeyedRows) -> None:
        if rows.y is None:
            raise DataError(f"{plan.labels} has no labels")
        self._plan, self._rows, self._y = plan, rows, rows.y
        self._top = TrainedModule(plan.top, plan, f"{plan.labels} (top)")
        own = plan.bottoms.get(plan.labels) if plan.middle is None else None
        self._bottom = None if own is None else TrainedModule(own, plan, plan.labels)
        self._loss = None if plan.loss is None else as_loss(plan.loss)
        self.metric = _fitting_metric(plan.metric, rows)
        self._losses: list[float] = []
        self._inference: LabelInference | None = None
        self._scored: list[tuple[Tensor, Tensor]] = []

    def start_epoch(self, epoch: int) -> None:
        """Forget what the last epoch noted."""
        self._losses, self._scored = [], []
        classes = self._rows.classes
        self._inference = None if classes is None or self._y.dim() != 1 else LabelInference(classes)

    def learn(
        self, activations: Mapping[str, Tensor], batch: np.ndarray, noise: np.random.Generator
    ) -> dict[str, Tensor]:
        """Take a step; gives the gradient for each sender's activations."""
        y = self._y[torch.from_numpy(batch)]
        inputs = self._inputs(activations, batch)
        if self._plan.protection.noise:
            losses, slopes = self._private_step(tuple(inputs.values()), y, noise)
        else:
            losses, slopes = self._plain_step(tuple(inputs.values()), y)
        leaving = dict(zip(inputs, slopes, strict=True))
        if not self._plan.protection.noise:
            leaving.update({name: self._plan.protection.leaving(leaving[name], noise) for name in activations})
        if self._bottom is not None:
            self._bottom.backward(leaving.pop(self._plan.labels))
        self._note(losses, torch.cat([leaving[name].flatten(1) for name in activations], dim=1), y)
        return leaving

    def _note(self, losses: Tensor, leaving: Tensor, y: Tensor) -> None:
        """Keep what the epoch will tell; a step that broke the modules ends it."""
        if not bool(torch.isfinite(losses).all() and torch.isfinite(leaving).all()):
            raise UnreadableError("the loss of a batch is not finite; a smaller learning_rate may help")
        self._losses.append(float(losses.mean()))
        if self._inference is not None:
            self._inference.add(leaving, y)

    def score(self, activations: Mapping[str, Tensor], batch: np.ndarray) -> None:
        """Outputs of rows that nobody trains on."""
        inputs = dict(activations)
        if self._bottom is not None:
            inputs[self._plan.labels] = self._bottom.outputs(self._x(batch))
        outputs = self._top.outputs(*self._in_order(inputs).values())
        self._scored.append((outputs, self._y[torch.from_numpy(batch)]))

    def metrics(self) -> dict[str, float]:
        """Of the epoch. With noise, nothing is told of the labels that are trained on."""
        outputs, y = (torch.cat(parts) for parts in zip(*self._scored, strict=True))
        scores = {"score": _measured(self.metric, outputs, y)}
        if not self._plan.protection.noise:
            scores["loss"] = float(np.mean(self._losses))
        if self._inference is not None:
            scores.update(self._inference.scores())
        return scores

    def outputs(self, activations: Mapping[str, Tensor], x: Tensor | None) -> Tensor:
        """For rows of a prediction."""
        inputs = dict(activations)
        if self._bottom is not None and x is not None:
            inputs[self._plan.labels] = self._bottom.outputs(x)
        return self._top.outputs(*self._in_order(inputs).values())

    def modules(self) -> dict[str, nn.Module]:
        found: dict[str, nn.Module] = {"top": self._top.module}
        if self._bottom is not None:
            found[self._plan.labels] = self._bottom.module
        return found

    def arrays(self) -> dict[str, Tensor]:
        held = {f"{TOP}{name}": value for name, value in self._top.arrays().items()}
        if self._bottom is not None:
            held.update({f"{BOTTOM}{name}": value for name, value in self._bottom.arrays().items()})
        return held

    def restore(self, arrays: Mapping[str, Tensor]) -> None:
        for prefix, module in ((TOP, self._top), (BOTTOM, self._bottom)):
            if module is not None:
                module.restore({k.removeprefix(prefix): v for k, v in arrays.items() if k.startswith(prefix)})

    # Steps ------------------------------------------------------------------------------------------------------------

    def _inputs(self, activations: Mapping[str, Tensor], batch: np.ndarray) -> dict[str, Tensor]:
        inputs = dict(activations)
        if self._bottom is not None:
            inputs[self._plan.labels] = self._bottom.forward(self._x(batch))
        return self._in_order(inputs)

    def _in_order(self, inputs: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """As the plan names bottoms; of a middle there is one input."""
        return dict(inputs) if self._plan.middle is not None else {name: inputs[name] for name in self._plan.bottoms}

    def _x(self, batch: np.ndarray) -> Tensor:
        assert self._rows.x is not None
        return self._rows.x[torch.from_numpy(batch)]

    def _loss_for(self, outputs: Tensor) -> Loss:
        if self._loss is None:
            classification = "bce" if is_single(outputs) else "cross-entropy"
            self._loss = LOSSES["mse" if self._rows.classes is None else classification]
        return self._loss

    def _plain_step(self, inputs: tuple[Tensor, ...], y: Tensor) -> tuple[Tensor, tuple[Tensor, ...]]:
        outputs = self._top.forward(*inputs)
        loss = self._loss_for(outputs)
        loss.check(outputs, y)
        losses, slope = loss.losses_and_gradients(outputs, y)
        return losses, self._top.backward(slope / len(y))

    def _private_step(
        self, inputs: tuple[Tensor, ...], y: Tensor, noise: np.random.Generator
    ) -> tuple[Tensor, tuple[Tensor, ...]]:
        """Per-sample gradients of the top's parameters and of the cut, clipped together, with noise on both."""
        module = self._top.module
        trained = {name: value for name, value in module.named_parameters() if value.requires_grad}
        loss = self._loss_for(self._top.outputs(*inputs))

        def of_sample(parameters: Mapping[str, Tensor], cut: tuple[Tensor, ...], own: tuple[Tensor, ...]) -> Tensor:
            return loss(functional_call(module, dict(parameters), cut), *own)

        losses, of_parameters, slopes = private_gradients(
            of_sample, trained, inputs, (y,), self._plan.protection, noise
        )
        self._top.step(of_parameters)
        return losses, slopes


def _fitting_metric(metric: Metric, rows: KeyedRows) -> Metric:
    kind = "regression" if rows.classes is None else "classification"
    if metric.task not in (None, kind):
        instead = "rmse" if rows.classes is None else "accuracy"
        raise ConfigError(f"metric '{metric.name}' is for {metric.task}, and this is a {kind}; use '{instead}'")
    return metric


def _measured(metric: Metric, outputs: Tensor, y: Tensor) -> float:
    found = torch.as_tensor(metric.function(outputs, y), dtype=torch.float64)
    return metric.root(float(found.mean()))
