"""Parties that run a protocol of their own in a step: programs that write messages to each other, driven by hand.

A program says what it writes and from whom it waits for one message each; in the end it returns what is opened, the
same numbers at every party, and what this party keeps for itself. Parties are numbered by their places in the step.

Messages are bound to a session of all parties' nonces, which lasts over the steps of a question, to the step, and to
their number: whoever carries them can lose them, but repeats and swaps do not fit. No step is begun twice in a session.
"""

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from secrets import token_bytes
from typing import Any, TypeAlias, TypeVar

import msgspec
import numpy as np
from numpy.typing import NDArray

from winnow.core.message_decoding import UnreadableError, from_msgpack
from winnow.privacy.shares.errors import SharesError
from winnow.privacy.shares.step_messages import decode_step_message

NONCE_BYTES = 16
T = TypeVar("T")


@dataclass(frozen=True, kw_only=True)
class Turn:
    """What a party writes, by addressee, and from whom it waits for a message."""

    messages: Mapping[int, bytes] = field(default_factory=dict)
    awaits: frozenset[int]


@dataclass(frozen=True, kw_only=True)
class ProtocolResult:
    opened: NDArray[np.int64]
    kept: bytes = b""
    """What this party keeps to itself, for the steps that follow."""
    messages: Mapping[int, bytes] = field(default_factory=dict)
    """Its last ones."""


PartyProgram: TypeAlias = Generator[Turn, Mapping[int, bytes], ProtocolResult]


@dataclass
class SessionMemory:
    """What a party remembers of a session while its process lives."""

    session: bytes = b""
    begun: set[bytes] = field(default_factory=set)
    values: dict[str, Any] = field(default_factory=dict)
    """The protocol's own: shares of inputs that several steps use."""


StartProgram: TypeAlias = Callable[[SessionMemory], PartyProgram]


@dataclass(frozen=True, kw_only=True)
class MessageStep:
    digest: bytes
    """Of all that led to this step: parties that disagree about it refuse each other's messages."""
    parties: tuple[int, ...]
    third_party: int
    max_exchanges: int

    @property
    def everybody(self) -> tuple[int, ...]:
        return self.parties


class PartyMessage(msgspec.Struct, frozen=True, kw_only=True, array_like=True, forbid_unknown_fields=True):
    """`tag` is of session and step, or the step's digest before there is a session, whose nonce is the body."""

    tag: bytes
    number: int
    body: bytes


class MessageParty:
    """Party `me`. Without a session in `memory` the parties agree on one first."""

    def __init__(self, step: MessageStep, me: int, start: StartProgram, memory: SessionMemory) -> None:
        self._step, self._place, self._start, self._memory = step, step.parties.index(me), start, memory
        self._others = [place for place in range(len(step.parties)) if place != self._place]
        self._nonce = token_bytes(NONCE_BYTES)
        self._program: PartyProgram | None = None
        self._awaits = frozenset(self._others)
        self._arrived: dict[int, bytes] = {}
        self._written, self._read = dict.fromkeys(self._others, 0), dict.fromkeys(self._others, 0)
        self._tag = step.digest
        self.opened: NDArray[np.int64] | None = None
        self.kept = b""

    def first_messages(self) -> dict[int, bytes]:
        if self._memory.session:
            return self._begin()
        return self._sent(dict.fromkeys(self._others, self._nonce))

    def receive(self, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        """The messages of this exchange, by sender; what this party writes next, by addressee."""
        for sender, data in messages.items():
            place = self._place_of(sender)
            self._arrived[place] = self._body(place, sender, data)
        if self.opened is not None or not self._awaits <= self._arrived.keys():
            return {}
        arrived, self._arrived = self._arrived, {}
        if self._program is None:
            self._agree(arrived)
            return self._begin()
        return self._go_on(arrived)

    def _place_of(self, sender: int) -> int:
        place = self._step.parties.index(sender) if sender in self._step.parties else -1
        if place not in self._awaits or place in self._arrived:
            raise SharesError("its message is out of order, or it has no part in this step", sender)
        return place

    def _body(self, place: int, sender: int, data: bytes) -> bytes:
        message = decode_step_message(data, PartyMessage, sender)
        if message.tag != self._tag or message.number != self._read[place]:
            raise SharesError("its message is of another step or attempt, repeated or out of order", sender)
        self._read[place] += 1
        return message.body

    def _agree(self, nonces: Mapping[int, bytes]) -> None:
        for place, nonce in nonces.items():
            if len(nonce) != NONCE_BYTES:
                raise SharesError("its first message has no valid nonce", self._step.parties[place])
        all_nonces = {**nonces, self._place: self._nonce}
        ordered = b"".join(all_nonces[place] for place in sorted(all_nonces))
        self._memory.session = sha256(self._step.digest + ordered).digest()

    def _begin(self) -> dict[int, bytes]:
        self._memory.begun.add(self._step.digest)
        self._tag = sha256(self._memory.session + self._step.digest).digest()
        self._program = self._start(self._memory)
        return self._go_on(None)

    def _go_on(self, arrived: Mapping[int, bytes] | None) -> dict[int, bytes]:
        assert self._program is not None
        try:
            turn = next(self._program) if arrived is None else self._program.send(arrived)
        except StopIteration as stop:
            result: ProtocolResult = stop.value
            self.opened, self.kept, self._awaits = result.opened, result.kept, frozenset()
            return self._sent(result.messages)
        except PeerFaultError as fault:
            raise SharesError(str(fault), self._step.parties[fault.place]) from fault
        self._awaits = turn.awaits
        return self._sent(turn.messages)

    def _sent(self, bodies: Mapping[int, bytes]) -> dict[int, bytes]:
        messages = {}
        for place, body in bodies.items():
            message = PartyMessage(tag=self._tag, number=self._written[place], body=body)
            self._written[place] += 1
            messages[self._step.parties[place]] = msgspec.msgpack.encode(message)
        return messages


class PeerFaultError(Exception):
    """What another party sent cannot be right; a program raises it, by the party's place."""

    def __init__(self, place: int, reason: str) -> None:
        super().__init__(reason)
        self.place = place


def decode_body(body: bytes, kind: type[T], place: int) -> T:
    try:
        return from_msgpack(body, kind)
    except UnreadableError as error:
        raise PeerFaultError(place, "its message cannot be read") from error


def converse(programs: Sequence[PartyProgram]) -> list[ProtocolResult]:
    """Programs of all parties in one process, without any protection of what they write; their results by place."""
    results, awaited = dict[int, ProtocolResult](), dict[int, frozenset[int]]()
    boxes: list[dict[int, list[bytes]]] = [{} for _ in programs]

    def go_on(place: int, arrived: Mapping[int, bytes] | None) -> None:
        try:
            turn = next(programs[place]) if arrived is None else programs[place].send(arrived)
            awaited[place], written = turn.awaits, turn.messages
        except StopIteration as stop:
            results[place] = stop.value
            written = results[place].messages
        for to, body in written.items():
            boxes[to].setdefault(place, []).append(body)

    for place in range(len(programs)):
        go_on(place, None)
    while waiting := [place for place in range(len(programs)) if place not in results]:
        ready = next(place for place in waiting if all(boxes[place].get(each) for each in awaited[place]))
        go_on(ready, {sender: boxes[ready][sender].pop(0) for sender in awaited[ready]})
    return [results[place] for place in range(len(programs))]
