"""Filters that limit what an update tells: variables left out, changes bounded, chosen by size, or made noisy."""

from winnow.privacy.filters.clip import Clip
from winnow.privacy.filters.exclude import ExcludeVariables
from winnow.privacy.filters.percentile import PercentilePrivacy
from winnow.privacy.filters.sparse_vector_technique import SparseVectorTechnique

__all__ = ["Clip", "ExcludeVariables", "PercentilePrivacy", "SparseVectorTechnique"]
