"""No federated learning at all: the server trains on its own labelled samples, for comparison."""

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch

from winnow.learn.aggregation import PartialAggregation
from winnow.learn.algorithm import Recipe
from winnow.learn.client_round_method import ClientUpdate, LocalResult, LocalTraining
from winnow.learn.selection import UniformSelector
from winnow.learn.stack import CohortTrainingResult, repeat_state
from winnow.learn.teaching_server import TeachingServer


class IdleUpdate(ClientUpdate):
    """Clients do nothing, and send the model as it came."""

    name: Literal["idle"] = "idle"
    training_factor: ClassVar[float] = 0.0
    own_steps: ClassVar[bool] = True
    uses_unlabelled: ClassVar[bool] = True
    labels_at: ClassVar[frozenset[str]] = frozenset({"server"})
    needs: ClassVar[Mapping[str, str]] = {"server": "teach"}

    def update(self, training: LocalTraining) -> LocalResult:
        model = {name: tensor[0] for name, tensor in training.model.items()}
        count, device = len(training.clients), training.data.device
        untrained = CohortTrainingResult(
            states=repeat_state(model, count),
            loss=torch.full((count,), torch.nan, device=device),
            steps=torch.zeros(count, dtype=torch.int64, device=device),
        )
        return LocalResult(model=untrained.states, trained=untrained)


server_only = Recipe(
    name="server-only",
    summary="the server trains on its own labels, clients idle",
    select=UniformSelector,
    client=IdleUpdate,
    aggregate=PartialAggregation,
    server=TeachingServer,
)
