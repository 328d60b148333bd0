"""DS-FL (Itahara et al., 2021): clients send what their models say of open samples without labels, not the models. The
server averages and sharpens it, and everybody learns the outcome.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

import torch
from pydantic import Field
from torch import Tensor

from winnow.core import ModelError, Payload
from winnow.learn.aggregation import PartialAggregation
from winnow.learn.algorithm import Recipe
from winnow.learn.algorithm_part import ALL_EVIDENCE, EvidenceKind
from winnow.learn.client_round_method import PREDICTIONS, ClientUpdate, LocalResult, LocalTraining
from winnow.learn.distillation import distilled, open_samples, predictions, samples_of_round
from winnow.learn.reply_checks import are_probabilities
from winnow.learn.selection import UniformSelector
from winnow.learn.server_optimiser import RoundAggregate, ServerOptimiser
from winnow.learn.stack import ModelState

OWN, TARGETS = "own", "targets"
ROUND = "round"
"""Beside targets: the round whose open samples they are for."""


class PredictionUpdate(ClientUpdate):
    """A client keeps a model of its own. It learns what the server made of the last round's predictions, trains on its
    labelled samples, and sends its probabilities for open ones: 4·rows·classes bytes.
    """

    name: Literal["predictions"] = "predictions"
    epochs: int = Field(1, ge=1)
    """Of distillation; those of training are the optimiser's."""
    rows: int | None = Field(None, ge=1)
    """How many open samples a round is about, drawn anew in each, as re-implementations do; all of them if not set.
    Messages are as small as with so few samples, and models see all in the course of the rounds.
    """
    own_steps: ClassVar[bool] = True
    sends_predictions: ClassVar[bool] = True
    needs: ClassVar[Mapping[str, str]] = {
        "collect": "plain",
        "aggregate": "partial",
        "schedule": "rounds",
        "server": "distil",
    }
    forbidden_evidence: ClassVar[frozenset[EvidenceKind]] = ALL_EVIDENCE

    def privacy_text(self) -> str:
        return (
            "predictions: the server sees every client's probabilities for the open samples, and no model. They tell "
            "what the client's data teach, class by class, and so less than an update, but not nothing."
        )

    def predicted_rows(self, open_rows: int) -> int:
        return min(self.rows or open_rows, open_rows)

    def update(self, training: LocalTraining) -> LocalResult:
        own, rows = training.stored_part(OWN, training.model), self.predicted_rows(len(open_samples(training)))
        if TARGETS in training.sent:
            targets, told_in = _targets(training, rows)
            own = distilled(training, own, samples_of_round(training, told_in, rows), targets, self.epochs)
        trained = training.train(own)
        told = predictions(training, trained.states, samples_of_round(training, training.round, rows))
        return LocalResult(
            model={}, trained=trained, parts={PREDICTIONS: {PREDICTIONS: told}}, keep={OWN: trained.states}
        )


def _targets(training: LocalTraining, rows: int) -> tuple[Tensor, int]:
    """What the server sent to be learnt, which may be anything, and of which round it is."""
    targets: Tensor | None = training.sent[TARGETS].get(TARGETS)
    told_in: Tensor | None = training.sent[TARGETS].get(ROUND)
    classes = training.execution.outputs(training.model, open_samples(training)[None, :1]).shape[2]
    if targets is None or tuple(targets.shape) != (rows, classes) or not are_probabilities(targets):
        raise ModelError(f"the server's targets are not probabilities of {classes} classes for {rows} open samples")
    if told_in is None or told_in.shape or not 0 < int(told_in) <= training.round:
        raise ModelError("the server does not say of which round so far its targets are")
    return targets, int(told_in)


class DistillingServer(ServerOptimiser):
    """ẑ = softmax(z̄ / T), where z̄ is the mean of the clients' probabilities (entropy reduction aggregation); the model
    is trained towards ẑ on the round's open samples, and so are the clients' in the next round.
    """

    name: Literal["distil"] = "distil"
    temperature: float = Field(0.1, gt=0)
    epochs: int = Field(1, ge=1)
    needs: ClassVar[Mapping[str, str]] = {"client": "predictions"}

    def step(self, state: ModelState, model: ModelState, aggregate: RoundAggregate) -> tuple[ModelState, ModelState]:
        assert aggregate.distil is not None, "a run without open samples is refused before it begins"
        targets = (aggregate.parts[PREDICTIONS][PREDICTIONS] / self.temperature).softmax(1)
        state = {TARGETS: targets, ROUND: torch.tensor(aggregate.round)}
        return state, aggregate.distil(model, targets, epochs=self.epochs)

    def broadcast(self, state: ModelState) -> Payload:
        return {TARGETS: dict(state)} if state else {}


ds_fl = Recipe(
    name="ds-fl",
    summary="clients send predictions for open samples, no models",
    select=UniformSelector,
    client=PredictionUpdate,
    aggregate=PartialAggregation,
    server=DistillingServer,
)
