"""Orchestra (Lubana et al., 2022): features without labels, by clusters that all clients share. Clients keep nothing.

A client sends centres of its own clusters; the server clusters these, and its centres are what clients' samples are
assigned to in the next round.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np
import torch
from pydantic import Field
from torch import Tensor, nn
from torch.nn import functional

from winnow.core import Population, stream
from winnow.data.preprocessing import IMAGE_NDIM
from winnow.learn.aggregation import AggregationRule, Contribution, Fold, WeightedSum
from winnow.learn.algorithm import Recipe
from winnow.learn.augment import view
from winnow.learn.balanced_clusters import global_clusters, local_clusters
from winnow.learn.byol import dense_layers
from winnow.learn.client_round_method import ClientUpdate, LocalResult, LocalTraining
from winnow.learn.extended_model import BESIDE
from winnow.learn.moving_average import average_outputs, move_average
from winnow.learn.pseudo_labels import added
from winnow.learn.selection import UniformSelector
from winnow.learn.stack import Batch, GradientRule, Loss, ModelState, StepContext, mean_loss

SHARED, OWN = f"{BESIDE}shared.weight", f"{BESIDE}own.weight"
"""The centres of all clients' clusters, which the server finds, and those of a client's own, which it sends."""
TURNS = 4
"""Images are turned by so many multiples of a right angle."""
MAX_ASSIGNED = 128
"""So many of a client's samples are clustered (the paper's memory)."""


class ClusterHeads(nn.Module):
    """(turn, similarity, z) side by side, where z = projector(features) has length 1: logits of how far an image was
    turned, and z·c for each shared centre c.
    """

    def __init__(self, features: int, hidden: int, width: int, clusters: int, own_clusters: int) -> None:
        super().__init__()
        self.projector, self.turn = dense_layers(features, hidden, width), nn.Linear(width, TURNS)
        self.shared, self.own = (nn.Linear(width, count, bias=False) for count in (clusters, own_clusters))
        for layer in (self.shared, self.own):
            layer.weight.data = functional.normalize(torch.randn_like(layer.weight))

    def forward(self, features: Tensor, predictions: Tensor) -> Tensor:
        z = self.projector(features)
        z = z / z.norm(dim=1, keepdim=True).clamp_min(1e-12)
        return torch.cat([self.turn(z), self.shared(z), z], 1)


@dataclass(frozen=True, kw_only=True)
class ClusterGradient(GradientRule):
    """CE(softmax(z'(v₂)·C / T), softmax(z(v₁)·C / T)) + CE(turn, turn logits of the turned image), where v₁ and v₂ are
    views, z' is the target's and C are the shared centres (equations 4 and 5). Only images are turned.
    """

    width: int
    clusters: int
    temperature: float
    average: float

    def __call__(
        self, at: StepContext, parameters: list[Tensor], batches: Sequence[Batch]
    ) -> tuple[list[Tensor], Tensor]:
        (batch,) = batches
        one, other = (at.changed(view, name, batch) for name in ("first view", "second view"))
        goal = torch.softmax(self._similarity(average_outputs(at, batch, other)) / self.temperature, 1)
        gradients, losses = at.gradients(parameters, batch._replace(x=one, y=goal), Loss("clusters", self._assigned))
        loss = mean_loss(batch, losses)
        if batch.x.dim() == IMAGE_NDIM:
            turns = (TURNS * at.draws("turn", batch).uniform().squeeze(1)).long()
            turned = batch._replace(x=_turned(one, turns), y=turns)
            further, losses = at.gradients(parameters, turned, Loss("turn", self._turned_losses))
            gradients, loss = added(gradients, further), loss + mean_loss(batch, losses)
        for name, gradient in zip(at.execution.layout.trained, gradients, strict=True):
            if name in (SHARED, OWN):
                gradient.zero_()
        return gradients, loss

    def after(self, at: StepContext, parameters: list[Tensor]) -> None:
        move_average(at, parameters, self.average)

    def _similarity(self, outputs: Tensor) -> Tensor:
        return outputs[:, -self.clusters - self.width : -self.width]

    def _assigned(self, outputs: Tensor, goals: Tensor) -> Tensor:
        return -(goals * torch.log_softmax(self._similarity(outputs) / self.temperature, 1)).sum(1)

    def _turned_losses(self, outputs: Tensor, turns: Tensor) -> Tensor:
        first = outputs.shape[1] - self.width - self.clusters - TURNS
        return functional.cross_entropy(outputs[:, first : first + TURNS], turns, reduction="none")


def _turned(images: Tensor, turns: Tensor) -> Tensor:
    """Each by so many right angles."""
    return torch.stack([images.rot90(k, (2, 3)) for k in range(TURNS)])[turns, torch.arange(len(images))]


class OrchestraUpdate(ClientUpdate):
    """Steps by shared clusters from the global network, which is also where the target begins; then the centres of
    clusters of the client's own, among what the target makes of some of its samples.
    """

    name: Literal["orchestra"] = "orchestra"
    hidden: int = Field(256, ge=1, le=65_536)
    width: int = Field(64, ge=1, le=65_536)
    clusters: int = Field(128, ge=2, le=65_536)
    own_clusters: int = Field(16, ge=1, le=1024)
    temperature: float = Field(0.1, gt=0)
    average: float = Field(0.996, ge=0, lt=1)
    training_factor: ClassVar[float] = 7 / 3
    own_steps: ClassVar[bool] = True
    uses_unlabelled: ClassVar[bool] = True
    learns_features: ClassVar[bool] = True
    labels_at: ClassVar[frozenset[str]] = frozenset({"clients", "some", "server"})
    needs: ClassVar[Mapping[str, str]] = {"aggregate": "orchestra"}

    def privacy_text(self) -> str:
        return (
            f"orchestra: beside its update, the server sees {self.own_clusters} centres of what the model makes of "
            "every client's samples: roughly which kinds of samples it has."
        )

    def heads(self, features: int, outputs: int) -> nn.Module | None:
        return ClusterHeads(features, self.hidden, self.width, self.clusters, self.own_clusters)

    def update(self, training: LocalTraining) -> LocalResult:
        rule = ClusterGradient(
            width=self.width, clusters=self.clusters, temperature=self.temperature, average=self.average
        )
        trained = training.train(gradient_rule=rule, memory=training.model)
        centres = torch.stack([self._centres(training, trained.memory, k) for k in range(len(training.clients))])
        kept = training.model[SHARED].expand_as(trained.states[SHARED]).clone()  # weight decay may not move it
        return LocalResult(model=trained.states | {OWN: centres, SHARED: kept}, trained=trained)

    def _centres(self, training: LocalTraining, targets: ModelState, place: int) -> Tensor:
        client = int(training.clients[place])
        rng = stream(training.seed, "clusters", training.round, client)
        rows = rng.permutation(training.data.rows_of(client))[:MAX_ASSIGNED]
        rows = np.resize(rows, max(2, len(rows)))  # of one sample there are no batch statistics
        x = training.data.x[torch.from_numpy(rows).to(training.data.device)]
        own = {name: tensor[place : place + 1] for name, tensor in targets.items()}
        z = training.execution.outputs(own, x.unsqueeze(0))[0, :, -self.width :]
        return local_clusters(z, self.own_clusters, rng)


class OrchestraAggregation(AggregationRule):
    """The mean by samples, and the shared centres moved to where the centres that clients sent lie. These are scaled to
    length 1, so that none counts more than another.
    """

    name: Literal["orchestra"] = "orchestra"
    needs: ClassVar[Mapping[str, str]] = {"client": "orchestra", "schedule": "rounds"}
    temperature: float = Field(0.1, gt=0)
    steps: int = Field(500, ge=1, le=10_000)

    def start(self, model: ModelState, population: Population, cohort_size: int, rng: np.random.Generator) -> Fold:
        return _OrchestraFold(self, model, population)


class _OrchestraFold:
    def __init__(self, rule: OrchestraAggregation, model: ModelState, population: Population) -> None:
        self._rule, self._model, self._sizes = rule, model, population.sizes
        self._sum, self._centres = WeightedSum(model), list[Tensor]()

    def add(self, update: Contribution) -> None:
        self._sum.add(update.model, float(self._sizes[update.client]))
        self._centres.append(torch.as_tensor(update.model[OWN]))

    def finish(self) -> ModelState:
        if not self._centres:
            return self._model
        sent = torch.cat(self._centres)
        sent = sent[sent.norm(dim=1) > 0]
        shared = self._model[SHARED]
        rule = self._rule
        moved = global_clusters(sent.to(shared), shared, rule.temperature, rule.steps) if len(sent) else shared
        return self._sum.mean() | {SHARED: moved, OWN: self._model[OWN]}


orchestra = Recipe(
    name="orchestra",
    summary="features without labels by clusters that clients share",
    select=UniformSelector,
    client=OrchestraUpdate,
    aggregate=OrchestraAggregation,
)
