"""Smaller messages: compression that a server reads, and codes that can be summed under masks."""

from winnow.privacy.compress.compress_filter import Compress
from winnow.privacy.compress.product_quantisation import ProductQuantisation
from winnow.privacy.compress.quantise import QSGD, BFloat16, Float16, Float32, MinMax
from winnow.privacy.compress.random_pruning_under_masks import RandomPruning
from winnow.privacy.compress.sparsify import KeepAll, RandomK, TopK

__all__ = [
    "QSGD",
    "BFloat16",
    "Compress",
    "Float16",
    "Float32",
    "KeepAll",
    "MinMax",
    "ProductQuantisation",
    "RandomK",
    "RandomPruning",
    "TopK",
]
