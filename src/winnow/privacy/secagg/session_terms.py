"""What all parties of a session agree upon beforehand, and the messages that they exchange in it."""

import hashlib
from collections.abc import Sequence
from math import ceil
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct

from winnow.core.decode import UnreadableError, from_msgpack
from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.secagg.masking_graph import MaskingGraph, circle, ring_shares_needed, safe_degree

SESSION_BYTES = 16
ROUNDING_TOLERANCE = 1e-9
"""2/3 · 9 may come out as a little more than 6."""

T = TypeVar("T")


class SessionTerms(Struct, frozen=True, kw_only=True):
    """`session` and `round` are the server's word. The rest every party reads in the configuration for itself."""

    session: bytes
    round: int
    threshold: float
    min_clients: int
    graph: Literal["complete", "ring"]
    neighbours: int | None

    def circle(self, members: Sequence[int]) -> MaskingGraph:
        ordered = tuple(sorted(members))
        if self.graph == "complete":
            return circle(ordered, self.round, None)
        return circle(ordered, self.round, self.neighbours or safe_degree(len(ordered)))

    def survivors_needed(self, members: int) -> int:
        """A sum over fewer is never revealed."""
        return max(self.min_clients, ceil(self.threshold * members - ROUNDING_TOLERANCE))

    def shares_needed(self, circle: MaskingGraph, holders: int) -> int:
        """How many holders it takes to put a secret together."""
        return (
            ceil(self.threshold * holders - ROUNDING_TOLERANCE) if circle.is_complete else ring_shares_needed(holders)
        )

    def naming(self, what: str, *content: object) -> bytes:
        """What a party signs: it counts in this session and round alone."""
        return msgspec.msgpack.encode([f"winnow {what}", self.session, self.round, *content])


class KeyAdvertisement(Struct, frozen=True, kw_only=True):
    """A client's public keys for a session, and what its self-mask seed hashes to; signed by the client."""

    client: int
    sealing: bytes
    masking: bytes
    commitment: bytes
    signature: bytes = b""

    def signed(self, terms: SessionTerms) -> bytes:
        return terms.naming("announcement", self.client, self.sealing, self.masking, self.commitment)


class KeyDirectory(Struct, frozen=True, kw_only=True):
    """Everybody who takes part, and the announcements of those with whom the addressee shares masks."""

    members: list[int]
    announcements: list[KeyAdvertisement]


def roster_digest(terms: SessionTerms, members: Sequence[int], names: Sequence[str]) -> bytes:
    """A digest of who takes part in a session, and on what terms."""
    return hashlib.sha256(write(["winnow roster", terms, list(members), list(names)])).digest()


def survivors_statement(terms: SessionTerms, roster: bytes, told: bytes, survivors: Sequence[int]) -> bytes:
    return terms.naming("survivors", roster, told, list(survivors))


def write(message: object) -> bytes:
    return msgspec.msgpack.encode(message)


def read(data: bytes, kind: type[T]) -> T:
    """A message of this kind; anything else is refused."""
    try:
        return from_msgpack(data, kind)
    except UnreadableError as error:
        raise ProtocolError(f"a message that cannot be read ({error})") from error
