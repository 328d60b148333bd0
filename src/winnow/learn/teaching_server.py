"""A server that has labelled samples of its own, and trains on them after every round."""

from typing import ClassVar, Literal

from pydantic import Field

from winnow.learn.server_optimiser import RoundAggregate, ServerOptimiser
from winnow.learn.stack import ModelState
from winnow.learn.tensor_arithmetic import minus, only, plus, scaled, zeros


class TeachingServer(ServerOptimiser):
    """v ← β·v + (θ − θ̄), θ ← θ − v, where θ̄ is the clients' mean and β the `momentum`; then `epochs` of training on the
    server's own labelled samples, if it has any (`data.labels` with at = "server"), along gradients bounded to `clip`.
    """

    name: Literal["teach"] = "teach"
    momentum: float = Field(0.0, ge=0, lt=1)
    epochs: int = Field(5, ge=1)
    batch_size: int | None = Field(None, ge=1)
    clip: float = Field(1.0, gt=0)
    teaches: ClassVar[bool] = True
    labelled_weight: ClassVar[float] = 1.0
    """What the labelled loss counts: so much longer are steps."""

    def start(self, trained: ModelState) -> ModelState:
        return zeros(trained) if self.momentum else {}

    def step(self, state: ModelState, model: ModelState, aggregate: RoundAggregate) -> tuple[ModelState, ModelState]:
        moved = aggregate.model
        if self.momentum and aggregate.clients:
            now = only(model, aggregate.trained_names)
            state = plus(minus(now, only(aggregate.model, now)), scaled(state, self.momentum))
            moved = aggregate.model | minus(now, state)
        if aggregate.teach is None:
            return state, moved
        taught = aggregate.teach(
            moved,
            epochs=self.epochs,
            batch_size=self.batch_size,
            clip=self.clip,
            rate_factor=self.labelled_weight,
        )
        return state, taught
