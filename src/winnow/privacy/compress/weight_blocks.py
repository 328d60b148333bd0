"""A tensor of weights cut into blocks, and codebooks for blocks like those of an update."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winnow.core import stream
from winnow.privacy.compress.kmeans import Blocks, kmeans_codebook
from winnow.privacy.secagg.update_layout import TensorSpec


@dataclass(frozen=True, kw_only=True)
class WeightBlocks:
    """How a tensor is cut: its place in the layout, and its blocks and codewords.

    Weights stand in other blocks with every version of the codebook, the same ones at all clients: what is rounded
    badly in one company is not so in all. Where it is `plain` they stand in the tensor's order.
    """

    place: int
    entry: TensorSpec
    block: int
    codewords: int
    plain: bool = False

    @property
    def blocks(self) -> int:
        return -(-self.entry.count // self.block)

    @property
    def bits(self) -> int:
        return self.codewords.bit_length() - 1

    def cut(self, value: NDArray[np.float64], version: int) -> Blocks:
        """The tensor's blocks; the last is filled up with zeros."""
        blocks = np.zeros(self.blocks * self.block, np.float32)
        blocks[: self.entry.count] = value.reshape(-1)[self._order(version)]
        return blocks.reshape(-1, self.block)

    def joined(self, blocks: NDArray[np.float64], version: int) -> NDArray[np.float64]:
        whole = np.empty(self.entry.count)
        whole[self._order(version)] = blocks.reshape(-1)[: self.entry.count]
        return whole.reshape(self.entry.shape)

    def _order(self, version: int) -> NDArray[np.int64] | slice:
        return slice(None) if self.plain else stream(version, "blocks", self.place).permutation(self.entry.count)


def codebook_like(update: NDArray[np.float64], length: float, cut: WeightBlocks, round: int) -> NDArray[np.float64]:
    """Codewords for blocks like an update's, which may itself be longer or shorter than theirs."""
    blocks = cut.cut(update, round)
    alike, rng = blocks / np.float32(root_mean_square(blocks) or 1.0), stream(round, "codebook", cut.place)
    if cut.plain:
        return length * kmeans_codebook(alike, cut.codewords, rng).astype(np.float64)
    shapes = kmeans_codebook(np.concatenate([alike, -alike]), cut.codewords - 1, rng)
    return _with_nothing(length * shapes.astype(np.float64))


def _with_nothing(codewords: NDArray[np.float64]) -> NDArray[np.float64]:
    """Codewords, and before them zero: what did not change must not seem to, the same way at every client."""
    return np.concatenate([np.zeros((1, codewords.shape[1])), codewords])


def block_lengths(blocks: Blocks, codewords: Blocks, count: int) -> NDArray[np.float64]:
    """The root mean square of so many numbers in blocks, and how much of it their codewords have along them."""
    length = np.sqrt(np.square(blocks, dtype=np.float64).sum() / count)
    along = np.sum(blocks * codewords, dtype=np.float64) / count
    return np.array([length, along / length if length > 0 else 0.0])


def root_mean_square(values: "NDArray[np.floating]") -> float:
    return float(np.sqrt(np.mean(np.square(values, dtype=np.float64)))) if np.size(values) else 0.0
