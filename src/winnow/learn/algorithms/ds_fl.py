"""DS-FL (Itahara et al., 2021): clients send what their models say of open samples without labels, not the models. The
server averages and sharpens it, and everybody learns the outcome.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

from pydantic import Field
from torch import Tensor

from winnow.core import ModelError, Payload
from winnow.learn.aggregation import PartialAggregation
from winnow.learn.algorithm import Recipe
from winnow.learn.algorithm_part import ALL_EVIDENCE, EvidenceKind
from winnow.learn.client_round_method import PREDICTIONS, ClientUpdate, LocalResult, LocalTraining
from winnow.learn.distillation import distilled, open_samples, predictions
from winnow.learn.reply_checks import are_probabilities
from winnow.learn.selection import UniformSelector
from winnow.learn.server_optimiser import RoundAggregate, ServerOptimiser
from winnow.learn.stack import ModelState

OWN, TARGETS = "own", "targets"


class PredictionUpdate(ClientUpdate):
    """A client keeps a model of its own. It learns what the server made of the last round's predictions, trains on its
    labelled samples, and sends its probabilities for the open ones: 4·open·classes bytes.
    """

    name: Literal["predictions"] = "predictions"
    epochs: int = Field(1, ge=1)
    """Of distillation; those of training are the optimiser's."""
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

    def update(self, training: LocalTraining) -> LocalResult:
        own = training.stored_part(OWN, training.model)
        if TARGETS in training.sent:
            own = distilled(training, own, _targets(training), self.epochs)
        trained = training.train(own)
        told = predictions(training, trained.states)
        return LocalResult(
            model={}, trained=trained, parts={PREDICTIONS: {PREDICTIONS: told}}, keep={OWN: trained.states}
        )


def _targets(training: LocalTraining) -> Tensor:
    """What the server sent to be learnt, which may be anything."""
    targets: Tensor | None = training.sent[TARGETS].get(TARGETS)
    rows = len(open_samples(training))
    classes = training.execution.outputs(training.model, open_samples(training)[None, :1]).shape[2]
    if targets is None or tuple(targets.shape) != (rows, classes) or not are_probabilities(targets):
        raise ModelError(f"the server's targets are not probabilities of {classes} classes for {rows} open samples")
    return targets


class DistillingServer(ServerOptimiser):
    """ẑ = softmax(z̄ / T), where z̄ is the mean of the clients' probabilities (entropy reduction aggregation); the model
    is trained towards ẑ on the open samples, and so are the clients' in the next round.
    """

    name: Literal["distil"] = "distil"
    temperature: float = Field(0.1, gt=0)
    epochs: int = Field(1, ge=1)
    needs: ClassVar[Mapping[str, str]] = {"client": "predictions"}

    def step(self, state: ModelState, model: ModelState, aggregate: RoundAggregate) -> tuple[ModelState, ModelState]:
        assert aggregate.distil is not None, "a run without open samples is refused before it begins"
        targets = (aggregate.parts[PREDICTIONS][PREDICTIONS] / self.temperature).softmax(1)
        return {TARGETS: targets}, aggregate.distil(model, targets, epochs=self.epochs)

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
