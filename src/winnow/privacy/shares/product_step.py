"""A secure product among three parties: what is computed, and what they write to each other."""

from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256

import msgspec
import numpy as np
from numpy.typing import NDArray

from winnow.privacy.replicated_product import WORD_BYTES, Words
from winnow.privacy.shares.errors import SharesError
from winnow.privacy.shares.party import SecureStep
from winnow.privacy.shares.step_messages import MESSAGE_BYTES

TOP_BITS = 20
"""Of a part of an entry: enough to see how often the parts' sum wraps round."""
MAX_COMPARED_BITS = 24
MAX_CELLS = 1 << 20


class ProductInput(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True):
    """A first message. The party before the sender gets a key of zeros, and the seed of the sender's input."""

    step: bytes
    nonce: bytes
    key: bytes
    seed: bytes
    words: bytes


class ProductChunk(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True):
    """A later message: words of the next rows, or in the end the sender's part of the result."""

    session: bytes
    number: int
    words: bytes


@dataclass(frozen=True, kw_only=True)
class ProductStep:
    """What is multiplied, and by whom. With `thresholds`, only whether entries reach them becomes known."""

    digest: bytes
    """Of all that led to this step: parties that disagree about it refuse each other's messages."""
    parties: tuple[int, int, int]
    rows: int
    columns: tuple[int, int]
    """Of the left matrix and of the right one."""
    bits: int
    """Entries of the product are below 2**bits in size."""
    thresholds: NDArray[np.int64] | None = None
    entries: NDArray[np.int64] | None = None
    """Which entries become known, row by row; all if it is None. Of the others no party sends its part."""

    def __post_init__(self) -> None:
        if self.thresholds is not None and (self.bits > MAX_COMPARED_BITS or len(self.thresholds) != self.length):
            raise ValueError(f"a product of {self.length} entries and {self.bits} bits cannot be compared like this")
        if self.cells > MAX_CELLS:
            raise SharesError(f"a product has {self.cells:,} entries; at most {MAX_CELLS:,} are possible")
        if self.entries is not None and np.any((self.entries < 0) | (self.entries >= self.cells)):
            raise ValueError(f"a product of {self.cells} entries has no such entry")

    @property
    def everybody(self) -> tuple[int, ...]:
        return self.parties

    @property
    def third_party(self) -> int:
        return self.parties[2]

    @property
    def cells(self) -> int:
        return self.columns[0] * self.columns[1]

    @property
    def length(self) -> int:
        """How many entries become known."""
        return self.cells if self.entries is None else len(self.entries)

    def chosen(self, product: Words) -> Words:
        """The entries that become known."""
        entries: Words = product.reshape(-1) if self.entries is None else product.reshape(-1)[self.entries]
        return entries

    @cached_property
    def chunk_rows(self) -> int:
        """An even number, so that a chunk begins at a whole block of its keystream."""
        return max(2, MESSAGE_BYTES // (WORD_BYTES * max(self.columns)) // 2 * 2)

    @property
    def chunks(self) -> int:
        return max(1, -(-self.rows // self.chunk_rows))

    @property
    def max_exchanges(self) -> int:
        """Honest parties need fewer."""
        if self.thresholds is None:
            return self.chunks + 5
        later = self.wraps(b""), self.compared(b"", np.zeros(self.length, np.int64))
        return self.chunks + 5 + sum(step.max_exchanges for step in later)

    def wraps(self, session: bytes) -> SecureStep:
        """Whether the highest bits of the parts add up to about 1 or 2 times 2⁶⁴."""
        half = 1 << TOP_BITS - 1
        return SecureStep(
            digest=sha256(session + b"wraps").digest(),
            owners=self.parties,
            length=2 * self.length,
            bits=TOP_BITS + 2,
            thresholds=np.repeat(np.array([half, 3 * half], np.int64), self.length),
        )

    def compared(self, session: bytes, wraps: NDArray[np.int64]) -> SecureStep:
        """The comparison itself; parties that found other wraps refuse each other's messages."""
        return SecureStep(
            digest=sha256(session + b"compared" + wraps.astype("<i8").tobytes()).digest(),
            owners=self.parties,
            length=self.length,
            bits=self.bits,
            thresholds=self.thresholds,
        )
