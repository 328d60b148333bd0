"""BYOL averaged by the server: the baseline of FedU and FedEMA. Every round begins with the global network as both."""

from typing import Literal

from winnow.learn.aggregation import PartialAggregation
from winnow.learn.algorithm import Recipe
from winnow.learn.byol import ByolUpdate, LocalNetworks
from winnow.learn.client_round_method import LocalResult, LocalTraining
from winnow.learn.selection import UniformSelector


class AveragedByolUpdate(ByolUpdate):
    """Online and target network are the global one; nothing is kept."""

    name: Literal["byol"] = "byol"

    def begin(self, training: LocalTraining) -> LocalNetworks:
        return LocalNetworks(online=training.model, target=training.model, keep={})

    def update(self, training: LocalTraining) -> LocalResult:
        whole = super().update(training)
        return LocalResult(model=whole.model, trained=whole.trained)


fed_byol = Recipe(
    name="fed-byol",
    summary="features without labels: BYOL at the clients, averaged",
    select=UniformSelector,
    client=AveragedByolUpdate,
    aggregate=PartialAggregation,
)
