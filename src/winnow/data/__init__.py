"""Data sets, and how they are spread over clients and spoiled."""

from winnow.data.arrays import ClientData, ClientsOnDemand, Conditions, DataSet, Examples, Federated
from winnow.data.corruptions import (
    Blur,
    Corruption,
    FlippedLabels,
    Irrelevant,
    Noise,
    Pollution,
    SaltAndPepper,
)
from winnow.data.dominant import DominantClass
from winnow.data.federate import federate
from winnow.data.folders import SetInfo, catalogue, data_directories, fetch
from winnow.data.load import check_source, load
from winnow.data.on_demand import OnDemand
from winnow.data.own import as_configured, from_arrays, from_torch
from winnow.data.partitions import Classes, Dirichlet, Iid, Natural, NormalSizes, Partition
from winnow.data.settings import DataSettings

__all__ = [
    "Blur",
    "Classes",
    "ClientData",
    "ClientsOnDemand",
    "Conditions",
    "Corruption",
    "DataSet",
    "DataSettings",
    "Dirichlet",
    "DominantClass",
    "Examples",
    "Federated",
    "FlippedLabels",
    "Iid",
    "Irrelevant",
    "Natural",
    "Noise",
    "NormalSizes",
    "OnDemand",
    "Partition",
    "Pollution",
    "SaltAndPepper",
    "SetInfo",
    "as_configured",
    "catalogue",
    "check_source",
    "data_directories",
    "federate",
    "fetch",
    "from_arrays",
    "from_torch",
    "load",
]
