"""Ditto (Li et al., 2021, algorithm 1): beside the common model every client trains one of its own, held near it."""

from typing import ClassVar, Literal

from pydantic import Field

from winnow.core import Payload
from winnow.learn.aggregation import PartialAggregation
from winnow.learn.algorithm import Recipe
from winnow.learn.client_round_method import ClientUpdate, LocalResult, LocalTraining
from winnow.learn.selection import UniformSelector
from winnow.learn.stack import ModelState

PERSONAL = "personal"


class DittoUpdate(ClientUpdate):
    """v_k ← v_k − η·(∇f_k(v_k) + λ·(v_k − θ)), from where v_k was left; it stays at the client.

    The global model is trained as ever. A client's first v_k is the first global model that it receives.
    `proximal_weight` is λ: 1, or 0.1 where strong attacks are feared, as the paper chooses where a client cannot
    tune it.
    """

    name: Literal["ditto"] = "ditto"
    proximal_weight: float = Field(1.0, ge=0)
    training_factor: ClassVar[float] = 2.0
    has_personal_model: ClassVar[bool] = True

    def update(self, training: LocalTraining) -> LocalResult:
        trained = training.train()
        own = training.train(
            training.stored_part(PERSONAL, training.model), proximal_weight=self.proximal_weight, anchor=training.model
        )
        return LocalResult(model=trained.states, trained=trained, keep={PERSONAL: own.states})

    def personal_model(self, model: ModelState, kept: Payload) -> ModelState:
        return dict(kept.get(PERSONAL, model))


ditto = Recipe(
    name="ditto",
    summary="every client also trains a personalised model",
    select=UniformSelector,
    client=DittoUpdate,
    aggregate=PartialAggregation,
)
