"""FedAvg (McMahan et al., 2017) with full aggregation: clients left out keep the previous model."""

from winnow.learn.algorithm import Recipe

fedavg = Recipe(
    name="fedavg",
    summary="uniform selection, full aggregation",
    parts={"select": {"name": "uniform"}, "aggregate": {"name": "full"}},
)
