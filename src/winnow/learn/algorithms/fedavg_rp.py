"""FedAvg with random partial participation (Li et al., 2019): only the participants' models are averaged."""

from winnow.learn.algorithm import Recipe

fedavg_rp = Recipe(
    name="fedavg-rp",
    summary="uniform selection, partial aggregation",
    parts={"select": {"name": "uniform"}, "aggregate": {"name": "partial"}},
)
