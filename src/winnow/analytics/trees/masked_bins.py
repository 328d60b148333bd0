"""Sums of gradients by bin, where one owner has the gradients and another the bins (`replicated_product.py`).

X has a column for each sum and a row for each row that both owners have; Y is 1 where a row is in a bin. With masks U
of X and V of Y, from seeds, XᵀY = UᵀV + (X − U)ᵀY + Uᵀ(Y − V): the first owner multiplies UᵀV, the second, which gets
X − U, adds up its rows by bin, and the third party, which gets U's seed and Y − V, multiplies the rest. Of three parts
of a replicated product the others are 0. Parts of zero hide from the first owner what the other two find.

A row's second derivative and its count share a word: both are whole numbers, and the count is in the lower bits.
"""

import hmac
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.trees.split_gain import BinLayout, Sums
from winnow.analytics.trees.tree_objectives import FRACTION_BITS
from winnow.privacy.replicated_product import Words, from_words, keystream, to_words

COUNT_BITS = 20
WORDS_A_NODE = 2


class BinSums:
    """The owner of bins: adds up masked words of rows by bin. Codes are rows × columns."""

    def __init__(self, codes: NDArray[np.int64], layout: BinLayout) -> None:
        self._orders = [np.argsort(column, kind="stable") for column in codes.T]
        self._ends = [
            np.searchsorted(column[order], np.arange(count + 1))
            for column, order, count in zip(codes.T, self._orders, layout.bins, strict=True)
        ]

    def sums(self, words: Words) -> Words:
        """Columns of words × bins, modulo 2⁶⁴."""
        found = []
        for order, ends in zip(self._orders, self._ends, strict=True):
            running = np.concatenate([np.zeros((1, words.shape[1]), np.uint64), np.cumsum(words[order], axis=0)])
            found.append(np.diff(running[ends], axis=0))
        return np.concatenate(found).T


def masked_bins(codes: NDArray[np.int64], layout: BinLayout, seed: bytes, first: int) -> Words:
    """Y − V of these rows, the first of which has the number `first`, an even one."""
    bins: Words = np.zeros((len(codes), layout.total), np.uint64)
    present = codes < np.array(layout.bins)
    rows, columns = np.nonzero(present)
    bins[rows, codes[rows, columns] + layout.starts[columns]] = 1
    return bins - keystream(seed, bins.shape, first * layout.total)


def zero_words(key: bytes, number: int, shape: tuple[int, int]) -> Words:
    """What the owner of bins adds to its part, and the third party takes off its own."""
    return keystream(hmac.digest(key, number.to_bytes(8, "big"), "sha256"), shape)


def node_words(
    gradient: NDArray[np.float64], hessian: NDArray[np.float64] | None, masks: Sequence[NDArray[np.bool_]]
) -> Words:
    """X: two columns for each node, of rows that are there (`masks`) and 0 of the others. Without second derivatives,
    where all are 1, rows are counted alone.
    """
    counts = np.ones(len(gradient), np.int64)
    if hessian is not None:
        counts += hessian.astype(np.int64) << COUNT_BITS
    pair = np.stack([gradient.astype(np.int64), counts], axis=1)
    return to_words(np.concatenate([np.where(mask[:, None], pair, 0) for mask in masks], axis=1))


def node_sums(words: Words, *, counts_hessian: bool) -> Sums:
    """Of 2·nodes × bins words: nodes × bins × (gradients, second derivatives, rows)."""
    numbers = from_words(words).reshape(-1, WORDS_A_NODE, words.shape[1])
    gradient, packed = numbers[:, 0], numbers[:, 1]
    rows = packed if counts_hessian else packed & ((1 << COUNT_BITS) - 1)
    hessian = rows << FRACTION_BITS if counts_hessian else packed >> COUNT_BITS
    return np.stack([gradient, hessian, rows], axis=-1)
