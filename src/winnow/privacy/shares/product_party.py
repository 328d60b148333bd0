"""One party of a secure product: hand it messages, take the messages that it writes, until it has opened the result.

The first two parties have a matrix each, L (n × k) and R (n × b), rows aligned; the third helps. They open LᵀR, or only
whether its entries reach thresholds; or some of the entries alone. Rows go in chunks, one exchange each.

To compare, each party enters its part zᵢ of an entry z into `StepParty`, where numbers do not wrap round at 2⁶⁴: there
Σzᵢ = z + 2⁶⁴w. So w is found first, from the highest bits of the parts. It is 0, 1 or 2 by the chance of the parts, and
tells of z with a probability below z/2⁶⁴, where z has at most 24 bits.
"""

from collections.abc import Mapping
from hashlib import sha256
from secrets import token_bytes
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from winnow.privacy.replicated_product import (
    PARTIES,
    SEED_BYTES,
    WORD_BYTES,
    ReplicatedShare,
    Words,
    after,
    before,
    from_words,
    keystream,
    matrix_product_part,
    received_input,
    split_input,
    to_words,
    zero_part,
)
from winnow.privacy.shares.batched_step import BatchedStep, step_party
from winnow.privacy.shares.errors import SharesError
from winnow.privacy.shares.party import StepParty
from winnow.privacy.shares.product_step import TOP_BITS, ProductChunk, ProductInput, ProductStep
from winnow.privacy.shares.step_messages import decode_step_message

NONCE_BYTES = 16
WORD_BITS = 64


class ProductParty:
    """`me` is one of the step's parties; `values` is its matrix, None for the third."""

    def __init__(self, step: ProductStep, me: int, values: NDArray[np.int64] | None) -> None:
        self._step, self._me, self._place = step, me, step.parties.index(me)
        if (values is None) != (self._place == PARTIES - 1):
            raise ValueError("the first two parties of a product have a matrix each, the third has none")
        if values is not None and values.shape != (step.rows, step.columns[self._place]):
            raise ValueError(f"a matrix of {values.shape} where {step.rows} × {step.columns[self._place]} is due")
        self._values = None if values is None else to_words(values)
        self._key, self._seed, self._nonce = token_bytes(SEED_BYTES), token_bytes(SEED_BYTES), token_bytes(NONCE_BYTES)
        self._session = b""
        self._next_key = self._theirs = b""
        self._total = np.zeros(step.columns, np.uint64)
        self._chunk = 0
        """Of whose rows words come next; after the last, the others' parts of the result do."""
        self._parts: dict[int, Words] = {}
        self._wraps: NDArray[np.int64] | None = None
        self._comparison: StepParty | BatchedStep | None = None
        self.opened: NDArray[Any] | None = None
        """Whole numbers (dtype object), or bool where thresholds are given; row by row."""

    def first_messages(self) -> dict[int, bytes]:
        messages = {}
        for place in (after(self._place), before(self._place)):
            behind = place == before(self._place)
            message = ProductInput(
                step=self._step.digest,
                nonce=self._nonce,
                key=self._key if behind else b"",
                seed=self._seed if behind and self._values is not None else b"",
                words=self._words_for(place, 0),
            )
            messages[self._step.parties[place]] = msgspec.msgpack.encode(message)
        return messages

    def receive(self, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        """The messages of this exchange, by sender; what this party writes next, by addressee."""
        for sender in messages:
            if sender not in self._step.parties or sender == self._me:
                raise SharesError("it has no part in this step", sender)
        if self._comparison is not None:
            return self._compare(self._comparison, messages)
        for place in (after(self._place), before(self._place)):
            if self._step.parties[place] not in messages:
                raise SharesError("its message is missing", self._step.parties[place])
        if not self._session:
            return self._multiply(self._begin(messages))
        words = {sender: self._later(sender, data) for sender, data in messages.items()}
        return self._multiply(words) if self._chunk < self._step.chunks else self._open(words)

    def _begin(self, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        """Nonces, keys and seeds of the others; their first words."""
        step = self._step
        firsts = {sender: decode_step_message(data, ProductInput, sender) for sender, data in messages.items()}
        nonces = {step.parties[self._place]: self._nonce}
        for sender, message in firsts.items():
            if message.step != step.digest:
                raise SharesError("its message is about another step, other terms or other results so far", sender)
            ahead = step.parties.index(sender) == after(self._place)
            key, seed = SEED_BYTES * ahead, SEED_BYTES * (ahead and sender != step.third_party)
            if (len(message.nonce), len(message.key), len(message.seed)) != (NONCE_BYTES, key, seed):
                raise SharesError("its first message has no valid nonce, key or seed", sender)
            nonces[sender] = message.nonce
            if ahead:
                self._next_key, self._theirs = message.key, message.seed
        self._session = sha256(step.digest + b"".join(nonces[party] for party in step.parties)).digest()
        return {sender: message.words for sender, message in firsts.items()}

    def _later(self, sender: int, data: bytes) -> bytes:
        message = decode_step_message(data, ProductChunk, sender)
        if message.session != self._session or message.number != self._chunk:
            raise SharesError("its message is of another step or attempt, repeated or out of order", sender)
        return message.words

    def _rows_of(self, chunk: int) -> slice:
        return slice(chunk * self._step.chunk_rows, min((chunk + 1) * self._step.chunk_rows, self._step.rows))

    def _stream(self, seed: bytes, owner: int, chunk: int) -> Words:
        rows, columns = self._rows_of(chunk), self._step.columns[owner]
        return keystream(seed, (max(0, rows.stop - rows.start), columns), rows.start * columns)

    def _words_for(self, place: int, chunk: int) -> bytes:
        """The party after this one gets what the stream leaves of the input."""
        if self._values is None or place != after(self._place):
            return b""
        _, rest = self._split(self._values, chunk)
        return rest.astype("<u8", copy=False).tobytes()

    def _split(self, values: Words, chunk: int) -> tuple[ReplicatedShare, Words]:
        return split_input(values[self._rows_of(chunk)], self._stream(self._seed, self._place, chunk))

    def _share_of(self, owner: int, chunk: int, words: Mapping[int, bytes]) -> ReplicatedShare:
        """This party's share of some rows of the owner's matrix."""
        if owner == self._place:
            assert self._values is not None
            return self._split(self._values, chunk)[0]
        if owner == after(self._place):
            return received_input(self._place, owner, self._stream(self._theirs, owner, chunk))
        rows, sender = self._rows_of(chunk), self._step.parties[owner]
        shape = (max(0, rows.stop - rows.start), self._step.columns[owner])
        return received_input(self._place, owner, _decoded(words[sender], shape, sender))

    def _multiply(self, words: Mapping[int, bytes]) -> dict[int, bytes]:
        writer = self._step.parties[before(self._place)]
        for sender, data in words.items():
            if data and (sender != writer or sender == self._step.third_party):
                raise SharesError("it sent words to a party that gets none of it", sender)
        left, right = (self._share_of(owner, self._chunk, words) for owner in (0, 1))
        self._total += matrix_product_part(left, right)
        self._chunk += 1
        if self._chunk < self._step.chunks:
            return self._written({place: self._words_for(place, self._chunk) for place in range(PARTIES)})
        self._values = None
        self._total = self._step.chosen(self._total + zero_part(self._key, self._next_key, self._step.columns))
        if self._step.thresholds is None:
            return self._written(dict.fromkeys(range(PARTIES), self._total.astype("<u8", copy=False).tobytes()))
        tops = (self._total >> np.uint64(WORD_BITS - TOP_BITS)).astype(np.int64)
        self._comparison = step_party(self._step.wraps(self._session), self._me, np.tile(tops, 2))
        return self._comparison.first_messages()

    def _written(self, words: Mapping[int, bytes]) -> dict[int, bytes]:
        return {
            party: msgspec.msgpack.encode(ProductChunk(session=self._session, number=self._chunk, words=words[place]))
            for place, party in enumerate(self._step.parties)
            if place != self._place
        }

    def _open(self, words: Mapping[int, bytes]) -> dict[int, bytes]:
        total = self._total.copy()
        for sender, data in words.items():
            total += _decoded(data, (self._step.length,), sender)
        opened = from_words(total)
        if np.any(np.abs(opened.astype(object)) >= 1 << self._step.bits):
            raise SharesError("the parties' parts of the product do not fit together: one of them is wrong")
        self.opened = opened.astype(object)
        return {}

    def _compare(self, comparison: StepParty | BatchedStep, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        """First the wraps, then the entries without them."""
        written = comparison.receive(messages)
        if comparison.opened is None:
            return written
        if self._wraps is not None:
            self.opened = comparison.opened
            return {}
        self._wraps = comparison.opened.reshape(2, -1).sum(0).astype(np.int64)
        values = self._total.astype(object)
        if self._place == 0:
            values = values - (self._wraps.astype(object) << WORD_BITS)
        self._comparison = step_party(self._step.compared(self._session, self._wraps), self._me, values)
        return self._comparison.first_messages()


def _decoded(data: bytes, shape: tuple[int, ...], sender: int) -> Words:
    expected = WORD_BYTES * int(np.prod(shape))
    if len(data) != expected:
        raise SharesError(f"{len(data)} bytes of words where {expected} were expected", sender)
    return np.frombuffer(data, "<u8").astype(np.uint64, copy=False).reshape(shape)
