"""One party of a secure step: hand it messages, take the messages that it writes, until it has opened the result.

Every owner splits its input into Shamir shares, one for each computing party, in its first message. The computing
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
from winnow.privacy.shares.shamir_shares import decode_shares, encode_shares, field_of, make_shares, recombine
from winnow.privacy.shares.step_messages import InputMessage, MpycMessage, StepMessage, decode_step_message

NONCE_BYTES = 16
MIN_COMPUTING = 3
MAX_COMPUTING = 7
"""Keys of pseudorandom shares grow as C(m, t): with more owners, the first `NAMED` of them compute."""
NAMED = 5
MAX_RECEIVED_BYTES = 2 << 20
"""Of shares that a party receives in one exchange."""


@dataclass(frozen=True, kw_only=True)
class SecureStep:
    """What is computed, and by whom. With `thresholds`, only whether sums reach them becomes known."""

    digest: bytes
    """Of all that led to this step: parties that disagree about it refuse each other's messages."""
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
    def batch_length(self) -> int:
        """How many entries are computed at a time."""
        width: int = self.field.byte_length
        return max(1, MAX_RECEIVED_BYTES // (width * len(self.everybody)))

    @property
    def max_exchanges(self) -> int:
        """Honest parties need fewer."""
        entries = min(self.length, self.batch_length)
        needed = 10 if self.thresholds is None else 10 + 20 * batches(entries)
        return needed * -(-self.length // self.batch_length)


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

    def first_messages(self) -> dict[int, bytes]:
        """By addressee: owners that do not compute write to those that do, and get nothing of each other."""
        step, nonce = self._step, token_bytes(NONCE_BYTES)
        shares = [b""] * self._parties
        if self._values is not None:
            shares = [encode_shares(step.field, each) for each in make_shares(step.field, self._values, self._parties)]
        shares_of = dict(zip(step.computing, shares, strict=True))
        messages = {}
        for member in step.everybody if self._place is not None else step.computing:
            keys = [] if member not in step.computing else self._keys_for(step.computing.index(member))
            message = InputMessage(step=step.digest, nonce=nonce, shares=shares_of.get(member, b""), keys=keys)
            if member == self._me:
                self._own_first = message
            else:
                messages[member] = msgspec.msgpack.encode(message)
        return messages

    def receive(self, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        """The messages of this exchange, by sender; what this party writes next, by addressee."""
        for sender in messages:
            if sender not in self._step.everybody or sender == self._me:
                raise SharesError("it has no part in this step", sender)
        return self._go_on(messages) if self._session else self._begin(messages)

    def _begin(self, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        step = self._step
        firsts = {sender: decode_step_message(data, InputMessage, sender) for sender, data in messages.items()}
        for sender, message in firsts.items():
            if message.step != step.digest:
                raise SharesError("its message is about another step, other terms or other results so far", sender)
            if len(message.nonce) != NONCE_BYTES or any(len(key) != KEY_BYTES for key in message.keys):
                raise SharesError("its first message has no valid nonce or keys", sender)
        if self._own_first is not None:
            firsts[self._me] = self._own_first
        writers = step.everybody if self._place is not None else step.computing
        if absent := [member for member in writers if member not in firsts]:
            raise SharesError("its first message is missing", absent[0])
        nonces = b"".join(firsts[member].nonce for member in step.computing)
        self._session = sha256(step.digest + nonces).digest()
        if self._place is None:
            return {}
        total = self._added(firsts)
        if step.thresholds is None:
            return self._outgoing({}, total)
        difference = (total - step.thresholds.astype(object)) % step.field.modulus
        self._comparison = SecureComparison(
            me=self._place,
            parties=self._parties,
            bits=step.bits,
            keys=self._all_keys(self._place, firsts),
            difference=difference,
        )
        return self._compare({})

    def _go_on(self, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        mpyc_messages = {}
        for sender, data in messages.items():
            message = decode_step_message(data, StepMessage, sender)
            if message.session != self._session or message.number != self._received[sender]:
                raise SharesError("its message is of another step or attempt, repeated or out of order", sender)
            self._received[sender] += 1
            if sender not in self._step.computing:
                raise SharesError("it does not compute, and wrote a second message", sender)
            if message.mpyc_messages:
                mpyc_messages[self._step.computing.index(sender)] = message.mpyc_messages
            if message.result:
                self._add_result(sender, message.result)
        return self._compare(mpyc_messages) if self._comparison is not None else {}

    def _compare(self, mpyc_messages: Mapping[int, list[MpycMessage]]) -> dict[int, bytes]:
        assert self._comparison is not None
        outgoing = self._comparison.step(mpyc_messages)
        result = self._comparison.result
        if result is not None:
            self._comparison = None
        return self._outgoing(outgoing, result)

    def _outgoing(self, mpyc_messages: Mapping[int, list[MpycMessage]], result: Values | None) -> dict[int, bytes]:
        """What this party writes to the others: MPyC's messages, and its share of the result if it is there."""
        step, messages = self._step, {}
        shares = b"" if result is None else encode_shares(step.field, result)
        if result is not None:
            self._add_result(self._me, shares)
        for member in step.everybody:
            place = step.computing.index(member) if member in step.computing else None
            written = mpyc_messages.get(place, []) if place is not None else []
            if member != self._me and (written or shares):
                number = self._sent[member]
                message = StepMessage(session=self._session, number=number, mpyc_messages=written, result=shares)
                self._sent[member] += 1
                messages[member] = msgspec.msgpack.encode(message)
        return messages

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
                    raise SharesError("its first message has not the keys that it should", member)
                keys.update(zip(groups, firsts[member].keys, strict=True))
        return keys


def _of(sender: int, field: Any, shares: bytes, length: int) -> Values:
    try:
        return decode_shares(field, shares, length)
    except SharesError as error:
        raise SharesError(str(error), sender) from error
