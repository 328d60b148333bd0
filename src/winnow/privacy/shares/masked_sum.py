"""Sums of long vectors under pairwise masks: cheaper than shares where hundreds of them follow one another.

Every two parties i < j have a key in common, agreed on once for all steps of a question. To a vector of 64-bit words
party i adds F(kᵢⱼ) and party j subtracts it, so that the server, which adds what it gets, finds the sum and no part of
it (Bonawitz et al., 2017, section 4, without its dropouts: a party that does not answer ends the step).

The server tells everybody the sum X, and could tell another one. So the parties append to the vector that they mask
check words cᵢ = ⟨r, xᵢ⟩, with s added by the first of them, where r and s follow from a key that the server has not:
Σcᵢ = ⟨r, X⟩ + s. A sum that is wrong by e ≠ 0 passes with probability 2^(v-64) a word, where 2^v divides all of e.
"""

import hmac
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from hashlib import sha256
from secrets import token_bytes
from typing import TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from winnow.privacy.replicated_product import SEED_BYTES, WORD_BYTES, Words, from_words, keystream, to_words
from winnow.privacy.shares.errors import SharesError
from winnow.privacy.shares.step_messages import decode_step_message

CHECK_WORDS = 3
MAX_BITS = 52
"""Of a sum: more would leave check words little to tell by."""
MAX_WORDS = 1 << 22


@dataclass(frozen=True, kw_only=True)
class SummedVector:
    """What a party adds next; `values` is None where it adds nothing. Sums are below 2**bits in size."""

    length: int
    values: NDArray[np.int64] | None
    bits: int = MAX_BITS

    def words(self) -> Words:
        if self.values is None:
            return np.zeros(self.length, np.uint64)
        if self.values.shape != (self.length,):
            raise ValueError(f"a vector of {self.values.shape} where {self.length} numbers are due")
        if np.any(np.abs(self.values) >= 1 << self.bits):
            raise SharesError(f"its rows are too many: a sum over them has more than {self.bits} bits")
        return to_words(self.values)

    def total(self, words: Words) -> NDArray[np.int64]:
        """The sum as numbers."""
        numbers = from_words(words)
        if np.any(np.abs(numbers) >= 1 << self.bits):
            raise SharesError("a sum is larger than it can be: what a party added, or its keys, are wrong")
        return numbers


VectorProgram: TypeAlias = Generator[SummedVector, NDArray[np.int64], NDArray[np.int64]]
"""Yields vectors, receives their sums, and returns what they come to: the same numbers at every party."""


@dataclass(frozen=True, kw_only=True)
class MaskedStep:
    """Who adds vectors, and how often at most. Without masks the server sees every party's vector."""

    digest: bytes
    """Of all that led to this step: parties that disagree about it refuse each other's messages."""
    everybody: tuple[int, ...]
    server: int
    sums: int
    masked: bool = True

    @property
    def max_exchanges(self) -> int:
        """One for the keys, one for each sum, and one that tells the last."""
        return self.sums + 2


class KeyMessage(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True):
    """The sender's half of the key of two parties, and its part of the key of all."""

    step: bytes
    pair: bytes
    group: bytes


class WordsMessage(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True):
    """Words to the server, or the sum of everybody's from it."""

    step: bytes
    number: int
    words: bytes


@dataclass
class MaskKeys:
    """What a party has in common with the others: a key with each, and one with all of them."""

    pairs: dict[int, bytes] = field(default_factory=dict)
    group: bytes = b""
    begun: set[bytes] = field(default_factory=set)
    """Steps that were begun with these keys: a second time two vectors could go under one mask."""

    def mask(self, me: int, digest: bytes, number: int, length: int) -> Words:
        total = np.zeros(length, np.uint64)
        for other, key in self.pairs.items():
            stream = keystream(_seed(key, b"mask", digest, number), (length,))
            total = total + stream if me < other else total - stream
        return total

    def check(self, words: Words, digest: bytes, number: int) -> Words:
        """⟨r, x⟩, a word for each of several r."""
        shape = (CHECK_WORDS, len(words))
        found: Words = (keystream(_seed(self.group, b"check", digest, number), shape) * words).sum(1, dtype=np.uint64)
        return found

    def offset(self, digest: bytes, number: int) -> Words:
        """s, without which the check words of a sum would tell of r."""
        return keystream(_seed(self.group, b"offset", digest, number), (CHECK_WORDS,))


class MaskedSumParty:
    """Party `me`, driven by messages. `keys` are those it agreed on before; new ones are filled in."""

    def __init__(self, step: MaskedStep, me: int, program: VectorProgram, keys: MaskKeys) -> None:
        self._step, self._me, self._program, self.keys = step, me, program, keys
        self._others = [party for party in step.everybody if party != me]
        self._halves = {party: token_bytes(SEED_BYTES) for party in self._others}
        self._group = token_bytes(SEED_BYTES)
        self._number = 0
        self._vector = _bounded(next(program))
        self.opened: NDArray[np.int64] | None = None

    def first_messages(self) -> dict[int, bytes]:
        if not self._step.masked or self.keys.pairs:
            return self._words_to_server()
        return {
            party: msgspec.msgpack.encode(
                KeyMessage(step=self._step.digest, pair=self._halves[party], group=self._group)
            )
            for party in self._others
        }

    def receive(self, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        """The others' keys, or the server's sum; what this party writes next."""
        for sender in messages:
            if sender not in (*self._others, self._step.server):
                raise SharesError("it has no part in this step", sender)
        if self._step.masked and not self.keys.pairs:
            self._agree(messages)
            return self._words_to_server()
        if set(messages) != {self._step.server}:
            raise SharesError("a sum comes from the server alone", next(iter(messages), None))
        return self._take_sum(messages[self._step.server])

    def _agree(self, messages: Mapping[int, bytes]) -> None:
        step, groups = self._step, {self._me: self._group}
        pairs = dict[int, bytes]()
        for party in self._others:
            if party not in messages:
                raise SharesError("its keys are missing", party)
            theirs = decode_step_message(messages[party], KeyMessage, party)
            if theirs.step != step.digest:
                raise SharesError("its message is about another step, other terms or other results so far", party)
            if (len(theirs.pair), len(theirs.group)) != (SEED_BYTES, SEED_BYTES):
                raise SharesError("its keys have another length", party)
            halves = {self._me: self._halves[party], party: theirs.pair}
            pairs[party] = sha256(step.digest + b"".join(halves[each] for each in sorted(halves))).digest()
            groups[party] = theirs.group
        self.keys.pairs = pairs
        self.keys.group = sha256(step.digest + b"".join(groups[each] for each in sorted(groups))).digest()

    def _words_to_server(self) -> dict[int, bytes]:
        self.keys.begun.add(self._step.digest)
        words = self._vector.words()
        if self._step.masked:
            keys, digest, number = self.keys, self._step.digest, self._number
            checks = keys.check(words, digest, number)
            if self._me == self._step.everybody[0]:
                checks = checks + keys.offset(digest, number)
            words = np.concatenate([words, checks])
            words = words + keys.mask(self._me, digest, number, len(words))
        return {self._step.server: _encoded(self._step, self._number, words)}

    def _take_sum(self, message: bytes) -> dict[int, bytes]:
        step, length, server = self._step, self._vector.length, self._step.server
        words = _decoded(step, self._number, length, message, server)
        if step.masked:
            keys, digest, number = self.keys, step.digest, self._number
            expected = keys.check(words[:length], digest, number) + keys.offset(digest, number)
            if not np.array_equal(expected, words[length:]):
                raise SharesError("the sum is not that of what the owners sent, or their keys differ", server)
        self._number += 1
        self._vector, self.opened = _next(self._step, self._program, self._vector.total(words[:length]), self._number)
        return {} if self.opened is not None else self._words_to_server()


class MaskedSumServer:
    """The server, which adds what it gets and runs the same program without rows."""

    def __init__(self, step: MaskedStep, program: VectorProgram) -> None:
        self._step, self._program = step, program
        self._vector, self._number = _bounded(next(program)), 0
        self.cells = 0
        """How many sums were opened."""
        self.opened: NDArray[np.int64] | None = None

    def first_messages(self) -> dict[int, bytes]:
        return {}

    def receive(self, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        step, length = self._step, self._vector.length
        if self.opened is not None:
            raise SharesError("it sent words after the last sum", next(iter(messages)))
        if absent := [party for party in step.everybody if party not in messages]:
            raise SharesError("its words are missing", absent[0])
        words = np.zeros(length + CHECK_WORDS * step.masked, np.uint64)
        for party in step.everybody:
            words = words + _decoded(step, self._number, length, messages[party], party)
        answer = _encoded(step, self._number, words)
        self._number, self.cells = self._number + 1, self.cells + length
        self._vector, self.opened = _next(step, self._program, self._vector.total(words[:length]), self._number)
        return dict.fromkeys(step.everybody, answer)


def add_up(programs: list[VectorProgram]) -> NDArray[np.int64]:
    """What programs of several parties come to, without any protection; of one, what it finds alone."""
    try:
        vectors = [next(program) for program in programs]
        while True:
            words = sum((vector.words() for vector in vectors), np.zeros(vectors[0].length, np.uint64))
            total = vectors[0].total(words)
            vectors = [program.send(total) for program in programs]
    except StopIteration as stop:
        found: NDArray[np.int64] = stop.value
        return found


def _next(
    step: MaskedStep, program: VectorProgram, total: NDArray[np.int64], sums: int
) -> tuple[SummedVector, NDArray[np.int64] | None]:
    """The next vector; after the last, an empty one and the result."""
    try:
        vector = program.send(total)
    except StopIteration as stop:
        return SummedVector(length=0, values=None), stop.value
    if sums >= step.sums:
        raise ValueError("a program of sums yields more than it said")
    return _bounded(vector), None


def _bounded(vector: SummedVector) -> SummedVector:
    """What parties are asked to send and to hold has a limit."""
    if vector.length > MAX_WORDS:
        raise SharesError(f"{vector.length:,} numbers would be summed at once; at most {MAX_WORDS:,} are possible")
    return vector


def _seed(key: bytes, purpose: bytes, digest: bytes, number: int) -> bytes:
    return hmac.digest(key, purpose + digest + number.to_bytes(4, "big"), "sha256")


def _encoded(step: MaskedStep, number: int, words: Words) -> bytes:
    data = words.astype("<u8", copy=False).tobytes()
    return msgspec.msgpack.encode(WordsMessage(step=step.digest, number=number, words=data))


def _decoded(step: MaskedStep, number: int, length: int, message: bytes, sender: int) -> Words:
    """A message's words: a vector, and check words behind it where there are masks."""
    told = decode_step_message(message, WordsMessage, sender)
    if told.step != step.digest or told.number != number:
        raise SharesError("its words are of another step, repeated or out of order", sender)
    expected = WORD_BYTES * (length + CHECK_WORDS * step.masked)
    if len(told.words) != expected:
        raise SharesError(f"{len(told.words)} bytes of words where {expected} were expected", sender)
    return np.frombuffer(told.words, "<u8").astype(np.uint64, copy=False)
