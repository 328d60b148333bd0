"""Data sets, and how they are spread over clients and spoiled."""

from winnow.data.corruptions import (
    Blur,
    Corruption,
    FeatureNoise,
    FlippedLabels,
    IrrelevantFeatures,
    Pollution,
    SaltAndPepper,
)
from winnow.data.directories import CatalogueEntry, catalogue, data_directories, fetch
from winnow.data.dominant_class import DominantClass
from winnow.data.federate import federate
from winnow.data.load import check_source, load
from winnow.data.on_demand import OnDemand
from winnow.data.partitions import (
    ClassesPerClient,
    Dirichlet,
    IidPartition,
    NaturalPartition,
    NormalSizes,
    Partition,
)
from winnow.data.preprocessing import InputSpec, Preprocessing
from winnow.data.settings import DataSettings
from winnow.data.text import TextSettings
from winnow.data.types import ClientData, ClientsOnDemand, DataConditions, DataSet, Examples, FederatedData
from winnow.data.user_data import apply_settings, from_arrays, from_frame, from_torch

__all__ = [
    "Blur",
    "CatalogueEntry",
    "ClassesPerClient",
    "ClientData",
    "ClientsOnDemand",
    "Corruption",
    "DataConditions",
    "DataSet",
    "DataSettings",
    "Dirichlet",
    "DominantClass",
    "Examples",
    "FeatureNoise",
    "FederatedData",
    "FlippedLabels",
    "IidPartition",
    "InputSpec",
    "IrrelevantFeatures",
    "NaturalPartition",
    "NormalSizes",
    "OnDemand",
    "Partition",
    "Pollution",
    "Preprocessing",
    "SaltAndPepper",
    "TextSettings",
    "apply_settings",
    "catalogue",
    "check_source",
    "data_directories",
    "federate",
    "fetch",
    "from_arrays",
    "from_frame",
    "from_torch",
    "load",
]
