"""SemiFL (Diao et al., 2022): labels at the server, which trains on them after every round; clients learn from what the
global model is sure of, and from mixtures of it with the rest.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from pydantic import Field
from torch import Tensor

from winnow.data.preprocessing import NO_LABEL
from winnow.learn.aggregation import PartialAggregation
from winnow.learn.algorithm import Recipe
from winnow.learn.augment import strong, weak
from winnow.learn.client_round_method import ClientUpdate, LocalResult, LocalTraining
from winnow.learn.pseudo_labels import SURE, added, clipped, sure_labels
from winnow.learn.selection import UniformSelector
from winnow.learn.stack import Batch, Draw, GradientRule, StepContext, TensorData, mean_loss
from winnow.learn.teaching_server import TeachingServer

NOBODY_SURE = "the model is not sure enough of any of the client's samples (client.threshold)"


@dataclass(frozen=True, kw_only=True)
class MixedGradient(GradientRule):
    """CE(f(s(x)), ŷ) + λ·CE(f(x'), ŷ) + (1 − λ)·CE(f(x'), ŷ') with x' = λ·w(x) + (1 − λ)·w(u), bounded to a norm.

    x is a sample of which the model was sure and u any; ŷ and ŷ' are their labels. λ ~ Beta(a, a) is drawn anew for
    each client and step.
    """

    alpha: float
    clip: float
    classes: int

    @property
    def draws(self) -> Sequence[Draw]:
        return Draw("labelled"), Draw("all", replacement=True)

    def __call__(
        self, at: StepContext, parameters: list[Tensor], batches: Sequence[Batch]
    ) -> tuple[list[Tensor], Tensor]:
        sure, mixed = batches
        clients, width = sure.weight.shape
        labels, others = sure.y[:, 0], mixed.y.view(clients, -1, 2)[:, :width, 0].flatten()
        harder = sure._replace(x=at.changed(strong, "strong", sure), y=labels)
        gradients, losses = at.gradients(parameters, harder)
        loss = mean_loss(sure, losses)
        share = at.numbers("mix", self._shares).repeat_interleave(width)
        x, u = (at.changed(weak, name, batch) for name, batch in (("weak sure", sure), ("weak any", mixed)))
        u = u.view(clients, -1, *u.shape[1:])[:, :width].flatten(0, 1)
        of_x = share.view(-1, *[1] * (x.dim() - 1))
        between = sure._replace(x=of_x * x + (1 - of_x) * u, y=_soft_labels(labels, others, share, self.classes))
        further, losses = at.gradients(parameters, between)
        return clipped(added(gradients, further), self.clip), loss + mean_loss(sure, losses)

    def _shares(self, rng: np.random.Generator, count: int) -> NDArray[np.float64]:
        return rng.beta(self.alpha, self.alpha, count)


def _soft_labels(one: Tensor, other: Tensor, share: Tensor, classes: int) -> Tensor:
    """share·one-hot(one) + (1 − share)·one-hot(other): cross-entropy is linear in them."""
    rows = share.new_zeros(len(one), classes)
    rows.scatter_add_(1, one.unsqueeze(1), share.unsqueeze(1))
    return rows.scatter_add_(1, other.unsqueeze(1), 1 - share.unsqueeze(1))


class SemiFlUpdate(ClientUpdate):
    """A client labels all its samples once, by the model as it came, and trains on those whose largest probability
    reaches the threshold, mixed with as many of all. One that has no such sample stays out of the round.
    """

    name: Literal["semifl"] = "semifl"
    threshold: float = Field(0.95, ge=0, le=1)
    alpha: float = Field(0.75, gt=0)
    clip: float = Field(1.0, gt=0)
    training_factor: ClassVar[float] = 2.0
    own_steps: ClassVar[bool] = True
    uses_unlabelled: ClassVar[bool] = True
    labels_at: ClassVar[frozenset[str]] = frozenset({"server"})
    needs: ClassVar[Mapping[str, str]] = {"server": "teach"}

    @property
    def label_threshold(self) -> float:
        return self.threshold

    def update(self, training: LocalTraining) -> LocalResult:
        labelled, classes, sure = self._label(training)
        rule = MixedGradient(alpha=self.alpha, clip=self.clip, classes=classes)
        trained = replace(training, data=labelled).train(gradient_rule=rule)
        return LocalResult(
            model=trained.states,
            trained=trained,
            metrics={SURE: sure},
            stay_out={place: NOBODY_SURE for place, share in enumerate(sure.tolist()) if not share},
        )

    def _label(self, training: LocalTraining) -> tuple[TensorData, int, Tensor]:
        """The data with the model's labels, the number of classes, and the share of sure ones of each client. A label
        is a pair: the class, and 0 if it is sure or −1 if it is not.
        """
        data, shares, classes = training.data, [], 0
        labels = torch.full((len(data.y), 2), NO_LABEL, device=data.device)
        for client in training.clients.tolist():
            rows = data.rows_of(client)
            outputs = training.outputs(rows)
            guess, sure = sure_labels(outputs, self.threshold)
            place, classes = torch.as_tensor(rows).to(data.device), outputs.shape[1]
            labels[place] = torch.stack([guess, torch.where(sure, 0, NO_LABEL)], 1)
            shares.append(sure.float().mean())
        return replace(data, y=labels), classes, torch.stack(shares)


semifl = Recipe(
    name="semifl",
    summary="labels at the server, clients learn what is sure",
    select=UniformSelector,
    client=SemiFlUpdate,
    aggregate=partial(PartialAggregation, weights="uniform"),
    server=partial(TeachingServer, momentum=0.5),
)
