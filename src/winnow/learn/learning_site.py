"""A party that hosts clients' data and runs the model on them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from winnow.core import Arrays, Randomness, Task
from winnow.learn.client_quality.evidence_pass import EvidencePass
from winnow.learn.metrics import Metric
from winnow.learn.model_evaluator import ModelEvaluator
from winnow.learn.profile_by_class import ProfileClasses
from winnow.learn.stack import ClientSamples, Execution, ModelState, TensorData

T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class LearningSite:
    """A site's data, and the model in the form in which the site runs it."""

    data: ClientSamples
    execution: Execution
    evaluator: ModelEvaluator
    evidence_pass: EvidencePass
    initial: ModelState
    """The model every party builds from the broadcast seed."""
    local_test: TensorData | None
    """Samples that clients keep out of their training."""
    metrics: Mapping[str, Metric]
    """The metrics that a task may name."""
    randomness: Randomness
    open: Tensor | None = None
    """Samples without labels that everybody has."""

    def model_for(self, task: Task) -> ModelState:
        """The model that came with the task; what is not sent (a private part, version 0) is the initial model's."""
        return self.initial | dict(task.payload["model"]) if "model" in task.payload else self.initial

    def losses(self, state: ModelState, data: TensorData, clients: NDArray[np.int64]) -> dict[str, list[float]]:
        """The loss of a model over all of each client's samples."""
        mean, rms = self.evaluator.losses(state, data.x, data.y, *_rows_and_owners(data, clients), len(clients))
        return {"start_loss": mean.tolist(), "start_loss_rms": rms.tolist()}

    def profiles(
        self, state: ModelState, data: TensorData, clients: NDArray[np.int64], classes: ProfileClasses | None
    ) -> list[Arrays]:
        """The profile of each client's data through a model, by class if classes are given, as it is sent."""
        rows, owner = _rows_and_owners(data, clients)
        if classes is None:
            return [p.state() for p in self.evaluator.profiles(state, data.x, rows, owner, len(clients))]
        group = owner * classes.count + classes.of(data.y[rows.to(data.y.device)])
        moments = self.evaluator.moments(state, data.x, rows, group, len(clients) * classes.count)
        return [profile.state() for profile in classes.told(moments)]


def settings_of(task: Task, kind: type[T]) -> T:
    assert isinstance(task.settings, kind)
    return task.settings


def metrics_by_client(columns: Mapping[str, list[float]]) -> list[dict[str, float]]:
    """Each client's own of named columns."""
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def _rows_and_owners(data: TensorData, clients: NDArray[np.int64]) -> tuple[torch.Tensor, torch.Tensor]:
    """The rows of these clients, one client after another, and the place of each row's client."""
    rows = torch.as_tensor(np.concatenate([data.rows_of(k) for k in clients.tolist()]))
    owner = torch.repeat_interleave(torch.arange(len(clients)), torch.as_tensor(data.sizes(clients)))
    return rows, owner
