"""One owner in a mix: hand it messages, take the messages that it writes.

Every owner brings the same number of boxes of one length, sealed to the key of every mixer, the last one first (Chaum,
1981). The mixers take off their layer one after another, and shuffle; the last one tells everybody what is left. If one
of them keeps its order to itself, nobody can say whose box is whose. Every owner looks whether all its own boxes
arrived: so none can be left out, repeated or replaced without a line that says so.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from secrets import SystemRandom
from typing import Literal

import msgspec
import numpy as np
from numpy.typing import NDArray

from winnow.core.message_decoding import UnreadableError, from_msgpack
from winnow.privacy.mixing.sealed_boxes import OVERHEAD, open_box, seal_box
from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.secagg.key_agreement import KeyPair, check_public
from winnow.privacy.shares.errors import SharesError
from winnow.privacy.shares.party import MAX_COMPUTING, NAMED

Kind = Literal["key", "boxes", "result"]


class _Letter(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    step: bytes
    kind: Kind
    body: bytes


@dataclass(frozen=True, kw_only=True)
class MixStep:
    """Who mixes. Every one of `owners` brings `slots` boxes of `width` bytes."""

    digest: bytes
    owners: tuple[int, ...]
    helper: int | None
    """Who has no rows, and is told the result."""
    slots: int
    width: int
    third_party: None = None

    @cached_property
    def everybody(self) -> tuple[int, ...]:
        return self.owners if self.helper is None else (*self.owners, self.helper)

    @cached_property
    def mixers(self) -> tuple[int, ...]:
        return self.owners if len(self.owners) <= MAX_COMPUTING else self.owners[:NAMED]

    @property
    def max_exchanges(self) -> int:
        return len(self.mixers) + 4


class MixParty:
    """`boxes` are an owner's, all different; a helper has none."""

    def __init__(self, step: MixStep, me: int, boxes: Sequence[bytes]) -> None:
        self._step, self._me, self._own = step, me, list(boxes)
        if me in step.owners and [len(each) for each in boxes] != [step.width] * step.slots:
            raise SharesError("this owner's boxes do not fit the mix")
        self._key = KeyPair() if me in step.mixers else None
        self._keys: dict[int, bytes] = {}
        self._gathered: dict[int, list[bytes]] = {}
        self._wrote = False
        self.opened: NDArray[np.uint8] | None = None
        """The boxes of all owners, in an order that nobody knows."""

    def first_messages(self) -> dict[int, bytes]:
        """A mixer tells the owners its key; a single owner has nobody to mix with."""
        if len(self._step.owners) == 1:
            self._open(_shuffled(self._own))
        if self._key is None:
            return {}
        self._keys[self._me] = self._key.public
        return {each: self._letter("key", self._key.public) for each in self._step.owners if each != self._me}

    def receive(self, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        """The messages of this exchange, by sender; what this party writes next, by addressee."""
        written: dict[int, bytes] = {}
        for sender, data in messages.items():
            try:
                letter = from_msgpack(data, _Letter)
            except UnreadableError as error:
                raise SharesError("its message cannot be read", sender) from error
            if letter.step != self._step.digest:
                raise SharesError("its message is about another step, other terms or other results so far", sender)
            written.update(self._received(sender, letter))
        return written

    def _received(self, sender: int, letter: _Letter) -> dict[int, bytes]:
        mixers, place = self._step.mixers, self._place
        if letter.kind == "key" and sender in mixers and sender not in self._keys and self._me in self._step.owners:
            return self._take_key(sender, letter.body)
        if letter.kind == "boxes" and place == 0 and sender in self._step.owners and sender not in self._gathered:
            self._gathered[sender] = self._boxes(sender, letter.body, self._step.slots, layers=len(mixers))
            return self._mixed_first()
        before = mixers[place - 1] if place else None
        if letter.kind == "boxes" and sender == before and not self._gathered:
            count = self._step.slots * len(self._step.owners)
            self._gathered[sender] = self._boxes(sender, letter.body, count, layers=len(mixers) - (place or 0))
            return self._mixed()
        if letter.kind == "result" and sender == mixers[-1] and self._me != sender and self.opened is None:
            self._open(self._boxes(sender, letter.body, self._step.slots * len(self._step.owners), layers=0))
            return {}
        raise SharesError("its message is out of order", sender)

    @property
    def _place(self) -> int | None:
        """Among the mixers."""
        return self._step.mixers.index(self._me) if self._key is not None else None

    def _take_key(self, sender: int, key: bytes) -> dict[int, bytes]:
        try:
            check_public(key)
        except ProtocolError as error:
            raise SharesError("its key for the mix is not valid", sender) from error
        self._keys[sender] = key
        if len(self._keys) < len(self._step.mixers) or self._wrote:
            return {}
        self._wrote = True
        layered = self._own
        for mixer in reversed(self._step.mixers):
            layered = [seal_box(self._keys[mixer], box, self._step.digest) for box in layered]
        first = self._step.mixers[0]
        if first != self._me:
            return {first: self._letter("boxes", b"".join(layered))}
        self._gathered[self._me] = layered
        return self._mixed_first()

    def _mixed_first(self) -> dict[int, bytes]:
        """The first mixer waits for everybody's boxes."""
        return self._mixed() if len(self._gathered) == len(self._step.owners) else {}

    def _mixed(self) -> dict[int, bytes]:
        assert self._key is not None
        boxes = list[bytes]()
        for sender, layered in self._gathered.items():
            try:
                boxes += [open_box(self._key, box, self._step.digest) for box in layered]
            except ProtocolError as error:
                raise SharesError("a box of its cannot be opened here", sender) from error
        boxes = _shuffled(boxes)
        mixers, place = self._step.mixers, self._place
        assert place is not None
        if place + 1 < len(mixers):
            return {mixers[place + 1]: self._letter("boxes", b"".join(boxes))}
        self._open(boxes)
        told = self._letter("result", b"".join(boxes))
        return {each: told for each in self._step.everybody if each != self._me}

    def _boxes(self, sender: int, body: bytes, count: int, *, layers: int) -> list[bytes]:
        width = self._step.width + layers * OVERHEAD
        if len(body) != count * width:
            raise SharesError(f"it sent {len(body):,} bytes of boxes; {count * width:,} were expected", sender)
        return [body[start : start + width] for start in range(0, len(body), width)]

    def _open(self, boxes: Sequence[bytes]) -> None:
        if len({*boxes}) < len(boxes) or not {*self._own}.issubset(boxes):
            raise SharesError("boxes were left out, repeated or replaced on their way: a mixer lied")
        self.opened = np.frombuffer(b"".join(boxes), np.uint8)

    def _letter(self, kind: Kind, body: bytes) -> bytes:
        return msgspec.msgpack.encode(_Letter(self._step.digest, kind, body))


def _shuffled(boxes: Sequence[bytes]) -> list[bytes]:
    mixed = list(boxes)
    SystemRandom().shuffle(mixed)
    return mixed
