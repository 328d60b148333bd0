"""Product quantisation under secure indexing (sections 3.2.3 and 4.2.3): blocks of weights become codewords' numbers.

A tensor is cut into blocks of d numbers, and each block becomes the nearest of k codewords that all clients share:
log₂ k bits for d weights. The mask keeper counts how often each block became which codeword (`secure.indexing`), and
the server finds the sum of the clients' updates as Σ_r H[r]·C[r]. A client's update is multiplied with its weight
before that.

With less than a bit a weight the nearest codeword is much shorter than the block: of Gaussian blocks at rate R it keeps
the share 1 − 2^(−2R) of the length along the block. The rest is like chance, and averages out over clients; the
shortness does not. So clients also sum up how long their blocks are and how far their codewords reach along them, and
the server stretches the sum by the quotient.

This, shuffled blocks, and codebooks with zero and with every block both ways are Winnow's own; `plain` is without them.
"""

from collections.abc import Mapping
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from winnow.core import stream
from winnow.privacy.compress.kmeans import Blocks, nearest_codeword
from winnow.privacy.compress.weight_blocks import WeightBlocks, block_lengths, codebook_like, root_mean_square
from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.secagg.modular_vectors import ModularVector, Segment, VectorGroup
from winnow.privacy.secagg.scalar_quantisation import ScalarQuantisation
from winnow.privacy.secagg.update_encoding_interface import DecodedSum, Encoding, EncodingParameters
from winnow.privacy.secagg.update_layout import TensorSpec, UpdateLayout, UpdateValues

BLOCKS_PER_CODEWORD = 4
"""So many blocks there must be for each codeword."""
MAX_BLOCK = 9

SIZE, CODEBOOK, INNER = "size", "codebook", "inner"
"""The parts of an update that tell how long its blocks are, and how far codewords reach along them; each tensor's
codebook; the inner code's version.
"""

MAX_RESCALING = 8.0
"""A codebook with which sums would have to be stretched further is no good, and the step stays short."""

INITIAL_UPDATE_RATIO = 0.01
"""Before anything is known of updates they are taken for a hundredth of the weights: the first step is a short one."""


class ProductQuantisation(Encoding):
    """`codewords` is k and `block` is d, at most. Smaller tensors have fewer codewords and smaller blocks; those with
    fewer weights than `min_weights`, biases and norms are summed up as in scalar quantisation (`quantisation`).

    Weights are shuffled into blocks. Codebooks are made anew every `refresh_every` rounds: k-means over the blocks of
    the last sum, which is public, scaled to the mean length of the clients' own blocks, which is in the sum as well.
    Blocks count both ways, as they are and negated: otherwise an error of one round would have codewords in the next,
    and its correction none. With `plain`, as in the paper, weights stand in blocks as in the tensor, codebooks are
    k-means over the blocks of the clients' mean update, and sums are taken as they are.
    """

    name: Literal["product-quantisation"] = "product-quantisation"
    needs_keeper: ClassVar[bool] = True
    codewords: Literal[2, 4, 8, 16, 32, 64, 128, 256] = 16
    block: int = Field(default=8, ge=1, le=MAX_BLOCK)
    min_weights: int = Field(default=512, ge=0)
    plain: bool = False
    refresh_every: int = Field(default=1, ge=1)
    quantisation: ScalarQuantisation = ScalarQuantisation()

    def privacy_text(self) -> str:
        return (
            "product-quantisation: the server learns more than sums: for every block of weights, how many clients "
            "chose which codeword. No names are with them, but updates are multiplied by weights first, so that the "
            "longest codewords are likely those of the client with the most data, and can be put together to its "
            "update. The mask keeper sees the codewords that each client chose."
        )

    def indexed(self, layout: UpdateLayout) -> int:
        return len(self._cuts(layout))

    def first(self, layout: UpdateLayout, public: UpdateValues, round: int) -> EncodingParameters:
        """Codewords like white noise, far smaller than the weights: nothing is known of the updates yet."""
        books = {}
        for cut in self._cuts(layout):
            size = INITIAL_UPDATE_RATIO * (root_mean_square(public[cut.place]) or 1.0)
            books[_book(cut)] = stream(round, "codebook", cut.place).normal(0, size, (cut.codewords, cut.block))
            if not self.plain:
                books[_book(cut)][0] = 0
        sizes = [np.zeros(2) for _ in self._sized(layout)]
        few = [*(public[place] for place in self._left(layout)), *sizes, public[-1]]
        return _with_books(self.quantisation.first(self._rest(layout), few, round), books, round)

    def refresh(
        self, layout: UpdateLayout, before: EncodingParameters, decoded: DecodedSum, round: int
    ) -> EncodingParameters:
        books, inner = self._books(layout, before)
        following = self.quantisation.refresh(self._rest(layout), inner, decoded, round)
        if round - before.version < self.refresh_every:
            return _with_books(following, books, before.version)
        for cut in self._cuts(layout):
            length = float(decoded.statistics[_size(cut)][0])
            if length > 0 and decoded.sums[cut.place].any():
                books[_book(cut)] = codebook_like(decoded.sums[cut.place], length, cut, round)
        return _with_books(following, books, round)

    def emulated(self, layout: UpdateLayout, update: UpdateValues, round: int) -> EncodingParameters:
        books = {
            _book(cut): codebook_like(np.asarray(update[cut.place]), root_mean_square(update[cut.place]), cut, round)
            for cut in self._cuts(layout)
        }
        lengths = [np.full(2, root_mean_square(update[cut.place])) for cut in self._sized(layout)]
        few = [*(update[place] for place in self._left(layout)), *lengths, update[-1]]
        return _with_books(self.quantisation.emulated(self._rest(layout), few, round), books, round)

    def group(self, layout: UpdateLayout, members: int) -> VectorGroup:
        """First the assignments, a segment a tensor; then all that is summed up."""
        assigned = tuple(Segment(cut.blocks, cut.bits) for cut in self._cuts(layout))
        return VectorGroup((*assigned, *self.quantisation.group(self._rest(layout), members).segments))

    def encode(
        self,
        layout: UpdateLayout,
        values: UpdateValues,
        parameters: EncodingParameters,
        members: int,
        rng: np.random.Generator,
    ) -> ModularVector:
        books, inner = self._books(layout, parameters)
        assigned, lengths = [], []
        for cut in self._cuts(layout):
            blocks, codewords = cut.cut(np.asarray(values[cut.place]), parameters.version), _codewords(books, cut)
            chosen = nearest_codeword(blocks, codewords)
            assigned.append(chosen.astype(np.uint8))
            lengths.append(block_lengths(blocks, codewords[chosen], cut.entry.count))
        few = [*(values[place] for place in self._left(layout)), *([] if self.plain else lengths), values[-1]]
        return [*assigned, *self.quantisation.encode(self._rest(layout), few, inner, members, rng)]

    def decode(
        self, layout: UpdateLayout, total: ModularVector, parameters: EncodingParameters, members: int, clients: int
    ) -> DecodedSum:
        """The first entries of the total are histograms."""
        cuts = self._cuts(layout)
        books, inner = self._books(layout, parameters)
        few = self.quantisation.decode(self._rest(layout), total[len(cuts) :], inner, members, clients)
        rest, sums, statistics = iter(few.sums), {}, dict(few.statistics)
        for cut, counts in zip(cuts, total, strict=False):
            if counts.shape != (cut.blocks, cut.codewords) or (counts.sum(1) != clients).any():
                raise ProtocolError("the mask keeper's histograms do not count every client exactly once")
            sums[cut.place] = cut.joined(counts.astype(np.float64) @ books[_book(cut)], parameters.version)
        for place in self._left(layout):
            sums[place] = next(rest)
        for cut in cuts:
            length, reach = (root_mean_square(sums[cut.place] / clients), 0.0) if self.plain else next(rest) / clients
            statistics[_size(cut)] = np.array([length])
            sums[cut.place] *= np.clip(length / reach, 1.0, MAX_RESCALING) if reach > 0 else 1.0
        sums[len(layout.entries) - 1] = next(rest)
        ordered = [sums[place] for place in range(len(layout.entries))]
        return DecodedSum(sums=ordered, clipped=few.clipped, overflowed=few.overflowed, statistics=statistics)

    def _cuts(self, layout: UpdateLayout) -> list[WeightBlocks]:
        """The tensors that are cut into blocks: those of two dimensions with enough for two codewords."""
        return [cut for cut in map(self._cut, range(len(layout.entries)), layout.entries) if cut.codewords > 1]

    def _cut(self, place: int, entry: TensorSpec) -> WeightBlocks:
        """The largest blocks, up to `block`, with which the tensor gets as many bits a weight as a large one."""
        fits = entry.is_real and len(entry.shape) > 1 and entry.count >= self.min_weights
        count = entry.count if fits else 0
        rate = (self.codewords.bit_length() - 1) / self.block
        for block in range(self.block, 0, -1):
            room = max(1, -(-count // block) // BLOCKS_PER_CODEWORD)
            codewords = min(self.codewords, _power_below(room))
            cut = WeightBlocks(place=place, entry=entry, block=block, codewords=codewords, plain=self.plain)
            if cut.bits / block >= rate:
                return cut
        return WeightBlocks(place=place, entry=entry, block=1, codewords=1)

    def _sized(self, layout: UpdateLayout) -> list[WeightBlocks]:
        """The tensors whose blocks' lengths are summed up: they stretch the sum, which `plain` does not."""
        return [] if self.plain else self._cuts(layout)

    def _left(self, layout: UpdateLayout) -> list[int]:
        """The places of tensors that are not cut, without the weight, which comes last."""
        cut = {each.place for each in self._cuts(layout)}
        return [place for place in range(len(layout.entries) - 1) if place not in cut]

    def _rest(self, layout: UpdateLayout) -> UpdateLayout:
        """What is summed up: tensors that are not cut, two lengths of those that are, and the weight."""
        sizes = [TensorSpec(SIZE, f"{cut.entry.part}/{cut.entry.name}", (2,), "float32") for cut in self._sized(layout)]
        return UpdateLayout((*(layout.entries[place] for place in self._left(layout)), *sizes, layout.entries[-1]))

    def _books(
        self, layout: UpdateLayout, parameters: EncodingParameters
    ) -> tuple[dict[str, NDArray[np.float64]], EncodingParameters]:
        arrays = dict(parameters.arrays)
        books = {_book(cut): arrays.pop(_book(cut), np.zeros(0)) for cut in self._cuts(layout)}
        since = arrays.pop(INNER, np.zeros(0))
        fits = (books[_book(cut)].shape == (cut.codewords, cut.block) for cut in self._cuts(layout))
        if not all(fits) or since.shape != (1,) or not all(np.isfinite(book).all() for book in books.values()):
            raise ProtocolError("the encoding's codebooks do not match the update")
        return books, EncodingParameters(version=int(since[0]), arrays=arrays)


def _with_books(inner: EncodingParameters, books: dict[str, NDArray[np.float64]], version: int) -> EncodingParameters:
    own = {INNER: np.array([float(inner.version)])}
    return EncodingParameters(version=version, arrays={**inner.arrays, **books, **own})


def _power_below(number: int) -> int:
    return 1 << (number.bit_length() - 1)


def _codewords(books: Mapping[str, NDArray[np.float64]], cut: WeightBlocks) -> Blocks:
    return books[_book(cut)].astype(np.float32)


def _book(cut: WeightBlocks) -> str:
    return f"{CODEBOOK}.{cut.place}"


def _size(cut: WeightBlocks) -> str:
    return f"{SIZE}.{cut.place}"
