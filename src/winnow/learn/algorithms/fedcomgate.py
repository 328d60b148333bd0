"""FedCOMGATE (Haddadpour et al., 2021): quantised changes, and gradients corrected by what sets a client apart."""

from collections.abc import Mapping
from functools import partial
from typing import ClassVar, Literal

import torch

from winnow.learn.aggregation import PartialAggregation
from winnow.learn.algorithm import Recipe
from winnow.learn.algorithms.fedpaq import EIGHT_BITS
from winnow.learn.client_round_method import ClientUpdate, LocalResult, LocalTraining
from winnow.learn.selection import UniformSelector
from winnow.learn.stack import ModelState
from winnow.learn.tensor_arithmetic import divided, minus, only, plus, scaled, zeros

CORRECTION, REACHED, LAST = "correction", "reached", "last"
"""What a client keeps: δ, the model that it reached, and in which round and how far its steps went."""


class GradientTrackingUpdate(ClientUpdate):
    """Steps along ∇f_m(w) − δ_m; then δ_m ← δ_m + ((w_k − w_τ) − mean)/(η·τ), where the mean is over the changes sent.

    The next model that arrives is w_k less that mean, so that δ_m is brought up to date by it, at the start of the next
    round. A client that missed that round does not know the mean: its δ_m stays.
    """

    name: Literal["gradient-tracking"] = "gradient-tracking"
    needs: ClassVar[Mapping[str, str]] = {"server": "replace", "local": "sgd"}

    def update(self, training: LocalTraining) -> LocalResult:
        correction = self._correction(training)
        trained = training.train(gradient_offset=scaled(correction, -1.0))
        length = training.local.effective_steps(trained.steps.clamp(min=1)) * training.rate
        last = {"round": torch.full_like(length, training.round), "length": length}
        reached = only(trained.states, training.trained)
        return LocalResult(
            model=trained.states, trained=trained, keep={CORRECTION: correction, REACHED: reached, LAST: last}
        )

    def _correction(self, training: LocalTraining) -> ModelState:
        """δ_m of each client, [K, ...]."""
        model = only(training.model, training.trained)
        never = {name: torch.full((1,), -1.0, device=training.data.device) for name in ("round", "length")}
        correction = training.stored_part(CORRECTION, zeros(model))
        reached, last = training.stored_part(REACHED, model), training.stored_part(LAST, never)
        took_part = last["round"] == training.round - 1
        apart = divided(minus(model, reached), torch.where(took_part, last["length"], torch.inf))
        return plus(correction, apart)


fedcomgate = Recipe(
    name="fedcomgate",
    summary="corrected gradients, quantised",
    select=UniformSelector,
    client=GradientTrackingUpdate,
    aggregate=partial(PartialAggregation, weights="uniform"),
    filters=EIGHT_BITS,
)
