"""FixMatch (Sohn et al., 2020) at the clients of FedAvg or FedProx: the model labels what it is sure of, and learns it
from strongly changed copies.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from winnow.learn.aggregation import PartialAggregation
from winnow.learn.algorithm import Recipe
from winnow.learn.augment import strong, weak
from winnow.learn.client_round_method import ClientUpdate, LocalResult, LocalTraining
from winnow.learn.pseudo_labels import SURE, clipped, pseudo_labels
from winnow.learn.selection import UniformSelector
from winnow.learn.stack import Batch, Draw, GradientRule, StepContext
from winnow.learn.teaching_server import TeachingServer

SEEN = "seen"


@dataclass(frozen=True, kw_only=True)
class FixMatchGradient(GradientRule):
    """CE(f(w(x)), y) over B labelled samples + λ·(1/μB)·Σ 1[max p(w(u)) ≥ τ]·CE(f(s(u)), argmax p(w(u))) over μ·B
    unlabelled ones; w and s change samples weakly and strongly, and p is taken in evaluation mode. The gradient is
    bounded to a norm if `clip` says one.
    """

    threshold: float
    unlabelled_weight: float
    unlabelled_ratio: int
    clip: float | None = None
    memory: ClassVar[tuple[str, str]] = (SURE, SEEN)
    """How many unlabelled samples were labelled, of how many."""

    @property
    def draws(self) -> Sequence[Draw]:
        return Draw("labelled"), Draw("unlabelled", self.unlabelled_ratio)

    def __call__(
        self, at: StepContext, parameters: list[Tensor], batches: Sequence[Batch]
    ) -> tuple[list[Tensor], Tensor]:
        labelled, unlabelled = batches
        known = labelled._replace(x=at.changed(weak, "weak labelled", labelled))
        if not unlabelled.sizes.any():
            return self._bounded(*at.sum_of_gradients(parameters, [(known, 1.0)]))
        easier = at.changed(weak, "weak unlabelled", unlabelled)
        guesses = pseudo_labels(at.outputs(parameters, easier), self.threshold)
        self._count(at, unlabelled, guesses)
        harder = unlabelled._replace(x=at.changed(strong, "strong", unlabelled), y=guesses)
        return self._bounded(*at.sum_of_gradients(parameters, [(known, 1.0), (harder, self.unlabelled_weight)]))

    def _bounded(self, gradients: list[Tensor], loss: Tensor) -> tuple[list[Tensor], Tensor]:
        return gradients if self.clip is None else clipped(gradients, self.clip), loss

    @staticmethod
    def _count(at: StepContext, batch: Batch, guesses: Tensor) -> None:
        sure = guesses.view(batch.weight.shape) >= 0
        if batch.full:
            at.memory[SEEN].add_(batch.weight.shape[1])
        else:
            inside = batch.weight > 0
            sure &= inside
            at.memory[SEEN].add_(inside.sum(1, keepdim=True))
        at.memory[SURE].add_(sure.sum(1, keepdim=True))


class FixMatchUpdate(ClientUpdate):
    """Steps on labelled and unlabelled samples together. An epoch goes over both; with `mu` a proximal term holds
    clients near the global model, as in FedProx.
    """

    name: Literal["fixmatch"] = "fixmatch"
    threshold: float = Field(0.95, ge=0, le=1)
    unlabelled_weight: float = Field(1.0, ge=0)
    unlabelled_ratio: int = Field(7, ge=1)
    mu: float = Field(0.0, ge=0)
    clip: float | None = Field(None, gt=0)
    training_factor: ClassVar[float] = 4 / 3  # weakly changed samples go forward only
    own_steps: ClassVar[bool] = True
    uses_unlabelled: ClassVar[bool] = True
    labels_at: ClassVar[frozenset[str]] = frozenset({"clients", "some", "server"})

    @property
    def label_threshold(self) -> float:
        return self.threshold

    def update(self, training: LocalTraining) -> LocalResult:
        rule = FixMatchGradient(
            threshold=self.threshold,
            unlabelled_weight=self.unlabelled_weight,
            unlabelled_ratio=self.unlabelled_ratio,
            clip=self.clip,
        )
        none = torch.zeros(1, 1, device=training.data.device)
        trained = training.train(gradient_rule=rule, memory=dict.fromkeys(rule.memory, none), proximal_weight=self.mu)
        sure, seen = (trained.memory[name].squeeze(1) for name in rule.memory)
        return LocalResult(model=trained.states, trained=trained, metrics={SURE: sure / seen})


fixmatch = Recipe(
    name="fixmatch",
    summary="clients label what the model is sure of",
    select=UniformSelector,
    client=FixMatchUpdate,
    aggregate=PartialAggregation,
    server=TeachingServer,
)
