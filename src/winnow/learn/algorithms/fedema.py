"""FedEMA (Zhuang et al., 2022): BYOL at clients, who mix the global network with their own by how far it has gone."""

from typing import Literal

import torch
from pydantic import Field
from torch import Tensor

from winnow.learn.aggregation import PartialAggregation
from winnow.learn.algorithm import Recipe
from winnow.learn.byol import ONLINE, TARGET, ByolUpdate, LocalNetworks, divergence
from winnow.learn.client_round_method import LocalTraining
from winnow.learn.selection import UniformSelector

SCALE = "scale"


class FedEmaUpdate(ByolUpdate):
    """A round begins with (1 − μ)·θ_g + μ·θ_k, where θ_k is what the client's last round ended with and
    μ = min(λ_k·‖θ_g − θ_k‖, 1); λ_k = `tau` / the first such distance (equations 2 to 5). The target is the client's
    own.
    """

    name: Literal["fedema"] = "fedema"
    tau: float = Field(0.7, ge=0, le=1)

    def begin(self, training: LocalTraining) -> LocalNetworks:
        common, own = training.model, training.stored_part(ONLINE, training.model)
        apart = divergence(own, common)
        scale = self._scales(training, apart)
        share = (scale * apart).clamp(max=1)
        online = {
            name: common[name].lerp(tensor, share.view(-1, *[1] * (tensor.dim() - 1)).to(tensor.dtype))
            if tensor.is_floating_point()
            else common[name].expand_as(tensor)
            for name, tensor in own.items()
        }
        keep = {SCALE: {SCALE: scale.unsqueeze(1)}}
        return LocalNetworks(online=online, target=training.stored_part(TARGET, training.model), keep=keep)

    def _scales(self, training: LocalTraining, apart: Tensor) -> Tensor:
        """λ_k of each client, 0 where none is known yet: a new client has no network to be apart from."""
        unknown = {SCALE: torch.zeros(1, 1, device=apart.device)}
        known = training.stored_part(SCALE, unknown)[SCALE].squeeze(1)
        first = torch.where(apart > 0, self.tau / apart.clamp_min(torch.finfo(apart.dtype).tiny), 0.0)
        return torch.where(known > 0, known, first)


fedema = Recipe(
    name="fedema",
    summary="BYOL; clients mix the global network with their own",
    select=UniformSelector,
    client=FedEmaUpdate,
    aggregate=PartialAggregation,
)
