"""Codewords for blocks of numbers: k-means, with whole arrays at a time."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

Blocks: TypeAlias = NDArray[np.float32]
"""Rows of d numbers each."""

ITERATIONS = 20
BLOCKS_AT_ONCE = 1 << 14
"""Blocks that are compared with all codewords at a time: a few megabytes of distances."""
MAX_BLOCKS = 1 << 15
"""k-means looks at no more blocks than these, drawn at random: more move the codewords little."""


def nearest_codeword(blocks: Blocks, codewords: Blocks) -> NDArray[np.int64]:
    """The place of each block's nearest codeword; of those alike, the first."""
    lengths = np.square(codewords).sum(1)
    found = [
        (lengths - 2 * blocks[first : first + BLOCKS_AT_ONCE] @ codewords.T).argmin(1)
        for first in range(0, len(blocks), BLOCKS_AT_ONCE)
    ]
    return np.concatenate(found) if found else np.empty(0, np.int64)


def kmeans_codebook(blocks: Blocks, count: int, rng: np.random.Generator) -> Blocks:
    """So many codewords, at first blocks drawn at random; one that no block is nearest to begins again at another."""
    if len(blocks) > MAX_BLOCKS:
        blocks = blocks[np.sort(rng.choice(len(blocks), MAX_BLOCKS, replace=False))]
    codewords = blocks[rng.choice(len(blocks), count, replace=False)].astype(np.float32)
    for _ in range(ITERATIONS):
        owner = nearest_codeword(blocks, codewords)
        sizes = np.bincount(owner, minlength=count)
        sums = np.stack([np.bincount(owner, column, minlength=count) for column in blocks.T], axis=1)
        codewords = (sums / np.maximum(sizes, 1)[:, None]).astype(np.float32)
        idle = sizes == 0
        codewords[idle] = blocks[rng.choice(len(blocks), int(idle.sum()), replace=False)]
    return codewords
