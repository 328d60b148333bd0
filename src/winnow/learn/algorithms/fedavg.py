"""FedAvg (McMahan et al., 2017) with full aggregation: clients left out keep the previous model."""

from winnow.learn.aggregation import FullAggregation
from winnow.learn.algorithm import Recipe
from winnow.learn.selection import UniformSelector

fedavg = Recipe(
    name="fedavg",
    summary="uniform selection, full aggregation",
    select=UniformSelector,
    aggregate=FullAggregation,
)
