"""FedU (Zhuang et al., 2021): BYOL at clients, who take the global predictor only while it is near their own."""

from typing import Literal

import torch
from pydantic import Field

from winnow.learn.aggregation import PartialAggregation
from winnow.learn.algorithm import Recipe
from winnow.learn.byol import ONLINE, PREDICTOR, TARGET, ByolUpdate, LocalNetworks, divergence
from winnow.learn.client_round_method import LocalTraining
from winnow.learn.selection import UniformSelector


class FedUUpdate(ByolUpdate):
    """The online encoder is the global one. So is the predictor if ‖θ_g − θ_k‖ < `threshold`, where θ_k is what the
    client's last round ended with, and otherwise the client's own (section 4.2). The target is the client's own.
    """

    name: Literal["fedu"] = "fedu"
    threshold: float = Field(0.4, ge=0)

    def begin(self, training: LocalTraining) -> LocalNetworks:
        common, own = training.model, training.stored_part(ONLINE, training.model)
        near = divergence(own, common) < self.threshold
        online = {
            name: torch.where(near.view(-1, *[1] * (tensor.dim() - 1)), common[name], tensor)
            if name.startswith(PREDICTOR)
            else common[name].expand_as(tensor)
            for name, tensor in own.items()
        }
        return LocalNetworks(online=online, target=training.stored_part(TARGET, training.model), keep={})


fedu = Recipe(
    name="fedu",
    summary="BYOL; far from the others clients keep a predictor",
    select=UniformSelector,
    client=FedUUpdate,
    aggregate=PartialAggregation,
)
