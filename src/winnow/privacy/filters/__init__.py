"""Filters that limit what an update tells: variables left out, changes bounded, chosen by size, or made noisy."""

from winnow.privacy.filters.clip import Clip
from winnow.privacy.filters.exclude import Exclude
from winnow.privacy.filters.percentile import Percentile
from winnow.privacy.filters.sparse_vector import SparseVector

__all__ = ["Clip", "Exclude", "Percentile", "SparseVector"]
