"""Smaller messages: compression that a server reads, and codes that can be summed under masks."""

from winnow.privacy.compress.compress import Compress
from winnow.privacy.compress.keeping import All, RandomK, TopK
from winnow.privacy.compress.numbers import QSGD, BFloat16, Float16, Float32
from winnow.privacy.compress.product import Product
from winnow.privacy.compress.pruned import Pruned

__all__ = ["QSGD", "All", "BFloat16", "Compress", "Float16", "Float32", "Product", "Pruned", "RandomK", "TopK"]
