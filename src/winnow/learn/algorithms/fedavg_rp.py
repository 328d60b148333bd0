"""FedAvg with random partial participation (Li et al., 2019): only the participants' models are averaged."""

from winnow.learn.aggregation import PartialAggregation
from winnow.learn.algorithm import Recipe
from winnow.learn.selection import UniformSelector

fedavg_rp = Recipe(
    name="fedavg-rp",
    summary="uniform selection, partial aggregation",
    select=UniformSelector,
    aggregate=PartialAggregation,
)
