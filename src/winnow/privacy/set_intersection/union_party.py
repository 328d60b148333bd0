"""One owner in counting the different identifiers of all: hand it messages, take the messages that it writes.

Every owner's list of points goes round: each owner multiplies all of its points by its own secret number, shuffles, and
passes it on (`psi_protocol.py` says why multiples hide identifiers). A list that was everywhere is multiplied by all
secrets, and so equal identifiers look the same in all lists. The lists are then mixed (`mixing/mix_party.py`): how many
different points there are becomes known, and how many owners have each, but neither which they are nor whose.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from secrets import SystemRandom, token_bytes
from typing import Literal

import msgspec
import numpy as np
from cryptography.hazmat.primitives.asymmetric import ec
from numpy.typing import NDArray

from winnow.core.message_decoding import UnreadableError, from_msgpack
from winnow.privacy.mixing.mix_party import MixParty, MixStep
from winnow.privacy.set_intersection.hash_to_p256 import COORDINATE_BYTES, hash_to_x
from winnow.privacy.set_intersection.psi_protocol import (
    CURVE,
    DOMAIN,
    PsiMessageError,
    fillers,
    point,
    split_points,
    times,
)
from winnow.privacy.shares.errors import SharesError

NONCE_BYTES = 16
"""Before a point in a box: boxes are all different, points need not be."""


class _Letter(msgspec.Struct, frozen=True, array_like=True, forbid_unknown_fields=True):
    step: bytes
    kind: Literal["points", "mix"]
    body: bytes


@dataclass(frozen=True, kw_only=True)
class UnionStep:
    """Every one of `owners` brings `length` points, of which all but `identifiers` are nobody's, over all owners."""

    digest: bytes
    owners: tuple[int, ...]
    helper: int | None
    """Who has no rows, and is told the result."""
    length: int
    identifiers: int
    minimum: int
    third_party: None = None

    @cached_property
    def everybody(self) -> tuple[int, ...]:
        return self.mix.everybody

    @cached_property
    def mix(self) -> MixStep:
        return MixStep(
            digest=sha256(self.digest + b"mix").digest(),
            owners=self.owners,
            helper=self.helper,
            slots=self.length,
            width=NONCE_BYTES + COORDINATE_BYTES,
        )

    @property
    def max_exchanges(self) -> int:
        return len(self.owners) + self.mix.max_exchanges


class UnionParty:
    """`identifiers` are an owner's; a helper has none."""

    def __init__(self, step: UnionStep, me: int, identifiers: Sequence[str]) -> None:
        self._step, self._me = step, me
        self._own = sorted({*identifiers})
        if len(self._own) > step.length:
            raise SharesError("this owner has more identifiers than all said together")
        self._secret = ec.generate_private_key(CURVE)
        self._hops = 0
        self._mix: MixParty | None = None if me in step.owners else MixParty(step.mix, me, [])
        self.opened: NDArray[np.object_] | None = None
        """Whether enough different ones are there, and how many; 0 if not enough."""

    def first_messages(self) -> dict[int, bytes]:
        if self._me not in self._step.owners:
            return {}
        own = [times(self._secret, point(hash_to_x(each.encode(), DOMAIN))) for each in self._own]
        own += fillers(self._step.length - len(own))
        return self._pass_on(own)

    def receive(self, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        """The messages of this exchange, by sender; what this party writes next, by addressee."""
        written: dict[int, bytes] = {}
        mixed: dict[int, bytes] = {}
        for sender, data in messages.items():
            try:
                letter = from_msgpack(data, _Letter)
            except UnreadableError as error:
                raise SharesError("its message cannot be read", sender) from error
            if letter.step != self._step.digest:
                raise SharesError("its message is about another step, other terms or other results so far", sender)
            if letter.kind == "mix":
                mixed[sender] = letter.body
            elif self._me in self._step.owners and sender == self._before and self._mix is None:
                written.update(self._take_points(sender, letter.body))
            else:
                raise SharesError("its message is out of order", sender)
        if mixed:
            if self._mix is None:
                raise SharesError("its message is out of order", next(iter(mixed)))
            written.update(self._mixing(self._mix.receive(mixed)))
        return written

    @property
    def _before(self) -> int:
        owners = self._step.owners
        return owners[owners.index(self._me) - 1]

    def _take_points(self, sender: int, body: bytes) -> dict[int, bytes]:
        try:
            points = split_points(body)
            if len(points) != self._step.length:
                raise PsiMessageError(f"its list has {len(points):,} points, not {self._step.length:,}")
            if len({*points}) < len(points):
                raise PsiMessageError("its list has a point twice")
            multiplied = [times(self._secret, point(each)) for each in points]
        except PsiMessageError as error:
            raise SharesError(str(error), sender) from error
        return self._pass_on(multiplied)

    def _pass_on(self, points: list[bytes]) -> dict[int, bytes]:
        """To the next owner, or into the mix if all owners had the list."""
        SystemRandom().shuffle(points)
        self._hops += 1
        owners = self._step.owners
        if self._hops < len(owners):
            following = owners[(owners.index(self._me) + 1) % len(owners)]
            return {following: self._letter("points", b"".join(points))}
        self._mix = MixParty(self._step.mix, self._me, [token_bytes(NONCE_BYTES) + each for each in points])
        return self._mixing(self._mix.first_messages())

    def _mixing(self, written: Mapping[int, bytes]) -> dict[int, bytes]:
        assert self._mix is not None
        if self._mix.opened is not None:
            boxes = self._mix.opened.reshape(-1, NONCE_BYTES + COORDINATE_BYTES)[:, NONCE_BYTES:]
            different = len({each.tobytes() for each in boxes})
            size = different - (len(boxes) - self._step.identifiers)
            if size < 0:
                raise SharesError("the owners' lists do not fit how many identifiers they said to have")
            enough = size >= self._step.minimum
            self.opened = np.array([int(enough), size if enough else 0], dtype=object)
        return {to: self._letter("mix", body) for to, body in written.items()}

    def _letter(self, kind: Literal["points", "mix"], body: bytes) -> bytes:
        return msgspec.msgpack.encode(_Letter(self._step.digest, kind, body))
