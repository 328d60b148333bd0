"""One party of a secure step: hand it letters, take the letters that it writes, until it has opened the result.

Every owner splits its input into Shamir shares, one for each computing party, in its first letter. The computing
parties add what they got, and compare in shares where bits are asked for. Then they send their shares of the result to
everybody. Parties are semi-honest, and fewer than half of those that compute may pool what they see.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from secrets import token_bytes
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from winnow.privacy.shares.errors import SharesError
from winnow.privacy.shares.field_elements import Values
from winnow.privacy.shares.secure_comparison import (
    KEY_BYTES,
    SecureComparison,
    batches,
    comparison_field,
    keys_between,
    own_keys,
)
from winnow.privacy.shares.shamir_shares import decode_shares, encode_shares, field_of, recombine, split
from winnow.privacy.shares.step_messages import InputMessage, MpycMessage, StepMessage, decode_step_message

NONCE_BYTES = 16
MIN_COMPUTING = 3
MAX_COMPUTING = 7
"""Keys of pseudorandom shares grow as C(m, t): with more owners, the first `NAMED` of them compute."""
NAMED = 5


@dataclass(frozen=True, kw_only=True)
class SecureStep:
    """What is computed, and by whom. With `thresholds`, only whether sums reach them becomes known."""

    digest: bytes
    """Of all that led to this step: parties that disagree about it refuse each other's letters."""
    owners: tuple[int, ...]
    """Who has an input, by number."""
    third_party: int | None = None
    """Who computes with two owners, without an input."""
    length: int
    bits: int
    """Inputs are below 2**bits in size; sums that are compared, and thresholds, too."""
    thresholds: NDArray[np.int64] | None = None

    @cached_property
    def everybody(self) -> tuple[int, ...]:
        return self.owners if self.third_party is None else (*self.owners, self.third_party)

    @cached_property
    def computing(self) -> tuple[int, ...]:
        return self.everybody if len(self.everybody) <= MAX_COMPUTING else self.owners[:NAMED]

    @cached_property
    def field(self) -> Any:
        if self.thresholds is not None:
            return comparison_field(self.bits)
        return field_of(self.bits + len(self.owners).bit_length() + 2)

    @property
    def max_exchanges(self) -> int:
        """Honest parties need fewer."""
        return 10 if self.thresholds is None else 10 + 20 * batches(self.length)


class StepParty:
    """`me` is one of the step's parties; `values` is its input, None if it has none."""

    def __init__(self, step: SecureStep, me: int, values: NDArray[Any] | None) -> None:
        if len(step.computing) < MIN_COMPUTING:
            raise SharesError(f"shares of {len(step.computing)} parties protect nothing; a third party has to compute")
        self._step, self._me, self._values = step, me, values
        self._parties = len(step.computing)
        self._place = step.computing.index(me) if me in step.computing else None
        self._keys = {} if self._place is None else own_keys(self._place, self._parties)
        self._session = b""
        self._sent = dict.fromkeys(step.everybody, 0)
        self._received = dict.fromkeys(step.everybody, 0)
        self._own_first: InputMessage | None = None
        self._comparison: SecureComparison | None = None
        self._results: dict[int, Values] = {}
        self.opened: NDArray[Any] | None = None
        """Whole numbers (dtype object), or bool where thresholds are given."""

    def first_letters(self) -> dict[int, bytes]:
        """By addressee: owners that do not compute write to those that do, and get nothing of each other."""
        step, nonce = self._step, token_bytes(NONCE_BYTES)
        shares = [b""] * self._parties
        if self._values is not None:
            shares = [encode_shares(step.field, each) for each in split(step.field, self._values, self._parties)]
        shares_of = dict(zip(step.computing, shares, strict=True))
        letters = {}
        for member in step.everybody if self._place is not None else step.computing:
            keys = [] if member not in step.computing else self._keys_for(step.computing.index(member))
            letter = InputMessage(step=step.digest, nonce=nonce, shares=shares_of.get(member, b""), keys=keys)
            if member == self._me:
                self._own_first = letter
            else:
                letters[member] = msgspec.msgpack.encode(letter)
        return letters

    def receive(self, letters: Mapping[int, bytes]) -> dict[int, bytes]:
        """The letters of this exchange, by sender; what this party writes next, by addressee."""
        for sender in letters:
            if sender not in self._step.everybody or sender == self._me:
                raise SharesError("it has no part in this step", sender)
        return self._go_on(letters) if self._session else self._begin(letters)

    def _begin(self, letters: Mapping[int, bytes]) -> dict[int, bytes]:
        step = self._step
        firsts = {sender: decode_step_message(data, InputMessage, sender) for sender, data in letters.items()}
        for sender, letter in firsts.items():
            if letter.step != step.digest:
                raise SharesError("its letter is about another step, other terms or other results so far", sender)
            if len(letter.nonce) != NONCE_BYTES or any(len(key) != KEY_BYTES for key in letter.keys):
                raise SharesError("its first letter has no valid nonce or keys", sender)
        if self._own_first is not None:
            firsts[self._me] = self._own_first
        writers = step.everybody if self._place is not None else step.computing
        if absent := [member for member in writers if member not in firsts]:
            raise SharesError("its first letter is missing", absent[0])
        nonces = b"".join(firsts[member].nonce for member in step.computing)
        self._session = sha256(step.digest + nonces).digest()
        if self._place is None:
            return {}
        total = self._added(firsts)
        if step.thresholds is None:
            return self._letters({}, total)
        difference = (total - step.thresholds.astype(object)) % step.field.modulus
        self._comparison = SecureComparison(
            me=self._place,
            parties=self._parties,
            bits=step.bits,
            keys=self._all_keys(self._place, firsts),
            difference=difference,
        )
        return self._compare({})

    def _go_on(self, letters: Mapping[int, bytes]) -> dict[int, bytes]:
        messages = {}
        for sender, data in letters.items():
            letter = decode_step_message(data, StepMessage, sender)
            if letter.session != self._session or letter.number != self._received[sender]:
                raise SharesError("its letter is of another step or attempt, repeated or out of order", sender)
            self._received[sender] += 1
            if sender not in self._step.computing:
                raise SharesError("it does not compute, and wrote a second letter", sender)
            if letter.messages:
                messages[self._step.computing.index(sender)] = letter.messages
            if letter.result:
                self._add_result(sender, letter.result)
        return self._compare(messages) if self._comparison is not None else {}

    def _compare(self, messages: Mapping[int, list[MpycMessage]]) -> dict[int, bytes]:
        assert self._comparison is not None
        outgoing = self._comparison.step(messages)
        result = self._comparison.result
        if result is not None:
            self._comparison = None
        return self._letters(outgoing, result)

    def _letters(self, messages: Mapping[int, list[MpycMessage]], result: Values | None) -> dict[int, bytes]:
        """What this party writes to the others: MPyC's messages, and its share of the result if it is there."""
        step, letters = self._step, {}
        shares = b"" if result is None else encode_shares(step.field, result)
        if result is not None:
            self._add_result(self._me, shares)
        for member in step.everybody:
            place = step.computing.index(member) if member in step.computing else None
            written = messages.get(place, []) if place is not None else []
            if member != self._me and (written or shares):
                letter = StepMessage(session=self._session, number=self._sent[member], messages=written, result=shares)
                self._sent[member] += 1
                letters[member] = msgspec.msgpack.encode(letter)
        return letters

    def _added(self, firsts: Mapping[int, InputMessage]) -> Values:
        """This party's shares of the sum."""
        step = self._step
        total: Values = np.zeros(step.length, object)
        for owner in step.owners:
            total = total + _of(owner, step.field, firsts[owner].shares, step.length)
        reduced: Values = total % step.field.modulus
        return reduced

    def _add_result(self, sender: int, shares: bytes) -> None:
        step = self._step
        if sender in self._results:
            raise SharesError("it sent its share of the result twice", sender)
        self._results[sender] = _of(sender, step.field, shares, step.length)
        if len(self._results) == self._parties:
            by_place = {step.computing.index(member): share for member, share in self._results.items()}
            opened = recombine(step.field, by_place, self._parties)
            if step.thresholds is None:
                self.opened = opened
            elif np.all((opened == 0) | (opened == 1)):
                self.opened = opened.astype(bool)
            else:
                raise SharesError("the comparison gave something else than 0 and 1: a party's messages were wrong")

    def _keys_for(self, place: int) -> list[bytes]:
        if self._place is None or self._step.thresholds is None:
            return []
        return [self._keys[group] for group in keys_between(self._place, place, self._parties)]

    def _all_keys(self, me: int, firsts: Mapping[int, InputMessage]) -> dict[tuple[int, ...], bytes]:
        keys = dict(self._keys)
        for place, member in enumerate(self._step.computing):
            if place != me:
                groups = keys_between(place, me, self._parties)
                if len(firsts[member].keys) != len(groups):
                    raise SharesError("its first letter has not the keys that it should", member)
                keys.update(zip(groups, firsts[member].keys, strict=True))
        return keys


def _of(sender: int, field: Any, shares: bytes, length: int) -> Values:
    try:
        return decode_shares(field, shares, length)
    except SharesError as error:
        raise SharesError(str(error), sender) from error
