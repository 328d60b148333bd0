"""FedPAQ (Reisizadeh et al., 2020): federated averaging whose clients quantise their changes."""

from collections.abc import Mapping
from functools import partial
from typing import Any

from winnow.learn.aggregation import PartialAggregation
from winnow.learn.algorithm import Recipe
from winnow.learn.selection import UniformSelector

EIGHT_BITS: tuple[Mapping[str, Any], ...] = ({"name": "compress", "quantise": {"name": "qsgd", "levels": 127}},)
"""The unbiased quantiser: the sign and 7 bits a change."""

fedpaq = Recipe(
    name="fedpaq",
    summary="uniform selection, quantised",
    select=UniformSelector,
    aggregate=partial(PartialAggregation, weights="uniform"),
    filters=EIGHT_BITS,
)
