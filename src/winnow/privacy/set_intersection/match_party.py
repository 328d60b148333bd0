"""One party of a set intersection in a question: hand it messages, take the messages that it writes.

The first of the matching parties asks the others in turn, each time about what is left, and in the end tells everybody
how many are in common, if they are enough. With `share` it tells the others which, padded to one length.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from winnow.core.message_decoding import UnreadableError, from_msgpack
from winnow.privacy.set_intersection.long_messages import MAX_PARTS, LongMessages
from winnow.privacy.set_intersection.padded_list import padded, unpadded
from winnow.privacy.set_intersection.psi_protocol import PsiMessageError, PsiQuery, Reveal, answer_query
from winnow.privacy.shares.errors import SharesError
from winnow.privacy.shares.step_messages import MESSAGE_BYTES

MAX_IDENTIFIERS = 1_000_000


class _Letter(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    step: bytes
    kind: Literal["request", "answer", "result"]
    body: bytes


class _Result(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    size: int | None
    """None if too few are in common."""
    common: bytes
    """Which, for a party that may know; else empty."""


@dataclass(frozen=True, kw_only=True)
class MatchStep:
    """Who matches, the first of whom asks, and what they may learn; `everybody` learns the size."""

    digest: bytes
    everybody: tuple[int, ...]
    parties: tuple[int, ...]
    reveal: Reveal
    share: bool
    minimum: int
    third_party: None = None

    @property
    def max_exchanges(self) -> int:
        return (3 * len(self.parties) + 3) * 2 * MAX_PARTS


class MatchParty:
    """`me` is one of `everybody`; its identifiers do not count unless it is one of the matching parties."""

    def __init__(self, step: MatchStep, me: int, identifiers: Sequence[str]) -> None:
        self._step, self._me = step, me
        self._own = sorted({*identifiers})
        if len(self._own) > MAX_IDENTIFIERS:
            raise SharesError(f"this owner has {len(self._own):,} identifiers; at most {MAX_IDENTIFIERS:,} are matched")
        self._left, self._size = self._own, len(self._own)
        self._asked: list[int] = []
        self._query: PsiQuery | None = None
        self._answered = False
        self.common: list[str] | None = None
        """What all matching parties have, where this one may know."""
        self._found: NDArray[np.object_] | None = None
        self._messages = LongMessages(MESSAGE_BYTES // max(1, len(step.everybody) - 1))

    @property
    def opened(self) -> NDArray[np.object_] | None:
        """Whether enough are in common, and how many; 0 if not enough."""
        return None if self._messages.waiting else self._found

    def first_messages(self) -> dict[int, bytes]:
        return self._sent(self._ask()) if self._me == self._step.parties[0] else {}

    def receive(self, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        """The messages of this exchange, by sender; what this party writes next, by addressee."""
        written: dict[int, bytes] = {}
        for sender, data in messages.items():
            message, asked = self._messages.receive(sender, data)
            written.update(asked)
            try:
                written.update(self._sent({} if message is None else self._received(sender, message)))
            except PsiMessageError as error:
                raise SharesError(str(error), sender) from error
        return written

    def _sent(self, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        return {to: self._messages.send(to, message) for to, message in messages.items()}

    def _received(self, sender: int, data: bytes) -> dict[int, bytes]:
        try:
            message = from_msgpack(data, _Letter)
        except UnreadableError as error:
            raise SharesError("its message cannot be read", sender) from error
        if message.step != self._step.digest:
            raise SharesError("its message is about another step, other terms or other results so far", sender)
        asker = self._step.parties[0]
        if message.kind == "request" and sender == asker and self._me in self._step.parties[1:] and not self._answered:
            self._answered = True
            answer = answer_query(message.body, self._own, self._step.reveal, MAX_IDENTIFIERS)
            return {asker: self._message("answer", answer)}
        if message.kind == "answer" and self._query is not None and sender == self._asked[-1]:
            return self._take_answer(message.body)
        if message.kind == "result" and sender == asker and self._me != asker and self._found is None:
            self._take_result(sender, message.body)
            return {}
        raise SharesError("its message is out of order", sender)

    def _ask(self) -> dict[int, bytes]:
        """A query to the next party, as long as any first."""
        other = self._step.parties[1 + len(self._asked)]
        self._asked.append(other)
        self._query = PsiQuery(self._left, self._step.reveal, fill=len(self._own))
        return {other: self._message("request", self._query.request())}

    def _take_answer(self, body: bytes) -> dict[int, bytes]:
        assert self._query is not None
        if self._step.reveal == "size":
            self._size = self._query.size(body)
        else:
            self._left = self._query.found(body)
            self._size = len(self._left)
        self._query = None
        return self._ask() if len(self._asked) < len(self._step.parties) - 1 else self._finish()

    def _finish(self) -> dict[int, bytes]:
        step, enough = self._step, self._size >= self._step.minimum
        tells = enough and step.reveal == "intersection"
        self.common = self._left if tells else None
        self._open(self._size if enough else None)
        messages = {}
        for member in step.everybody:
            common = padded(self._left if tells else [], self._own) if self._may_know(member) else b""
            result = _Result(self._size if enough else None, common)
            if member != self._me:
                messages[member] = self._message("result", msgspec.msgpack.encode(result))
        return messages

    def _may_know(self, member: int) -> bool:
        """Whether a party other than the first learns which are in common."""
        return self._step.share and self._step.reveal == "intersection" and member in self._step.parties

    def _take_result(self, sender: int, body: bytes) -> None:
        try:
            result = from_msgpack(body, _Result)
            common = unpadded(result.common) if result.common else None
        except UnreadableError as error:
            raise SharesError("its result cannot be read", sender) from error
        if result.size is not None and not self._step.minimum <= result.size <= MAX_IDENTIFIERS:
            raise SharesError("its result is not a number of identifiers that may be revealed", sender)
        if (common is None) == self._may_know(self._me):
            raise SharesError("its result tells too little or too much of what is in common", sender)
        if common is not None and result.size is not None:
            if len({*common}) != result.size or not {*self._own}.issuperset(common):
                raise SharesError("its result has identifiers that this owner does not have", sender)
            self.common = common
        self._open(result.size)

    def _open(self, size: int | None) -> None:
        self._found = np.array([int(size is not None), size or 0], dtype=object)

    def _message(self, kind: Literal["request", "answer", "result"], body: bytes) -> bytes:
        return msgspec.msgpack.encode(_Letter(self._step.digest, kind, body))
