"""FedCLIP (Lu et al., 2023): clients train an adapter over frozen features, by Adam; the server averages adapters
weighted by the clients' samples (equation 9). The encoder is the experiment's `[encode]`, the adapter its model.
"""

from functools import partial

from winnow.learn.aggregation import PartialAggregation
from winnow.learn.algorithm import Recipe
from winnow.learn.local_optimiser import Adam
from winnow.learn.selection import UniformSelector

fedclip = Recipe(
    name="fedclip",
    summary="adapter over frozen features, partial aggregation",
    select=UniformSelector,
    local=Adam,
    aggregate=partial(PartialAggregation, weights="size"),
)
