"""The terms of a session, which all parties know, and the messages that they exchange in it."""

import hashlib
from collections.abc import Sequence
from math import ceil
from typing import Literal, TypeVar

import msgspec
from msgspec import Struct

from winnow.core.message_decoding import UnreadableError, from_msgpack
from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.secagg.masking_graph import MaskingGraph, masking_graph, ring_shares_needed, safe_degree

SESSION_BYTES = 16
ROUNDING_TOLERANCE = 1e-9
"""2/3 · 9 may be computed as slightly more than 6."""

T = TypeVar("T")


class SessionTerms(Struct, frozen=True, kw_only=True):
    """`session` and `round` come from the server. Every party reads the rest in its own copy of the configuration."""

    session: bytes
    round: int
    threshold: float
    min_clients: int
    graph: Literal["complete", "ring"]
    neighbours: int | None

    def masking_graph(self, members: Sequence[int]) -> MaskingGraph:
        ordered = tuple(sorted(members))
        if self.graph == "complete":
            return masking_graph(ordered, self.round, None)
        return masking_graph(ordered, self.round, self.neighbours or safe_degree(len(ordered)))

    def survivors_needed(self, members: int) -> int:
        """A sum over fewer is never revealed."""
        return max(self.min_clients, ceil(self.threshold * members - ROUNDING_TOLERANCE))

    def shares_needed(self, graph: MaskingGraph, holders: int) -> int:
        """How many shares reconstruct a secret."""
        return ceil(self.threshold * holders - ROUNDING_TOLERANCE) if graph.is_complete else ring_shares_needed(holders)

    def statement(self, what: str, *content: object) -> bytes:
        """What a party signs; it is valid in this session and round only."""
        return msgspec.msgpack.encode([f"winnow {what}", self.session, self.round, *content])


class KeyAdvertisement(Struct, frozen=True, kw_only=True):
    """A client's public keys for a session, and a commitment to its self-mask seed; signed by the client."""

    client: int
    sealing: bytes
    masking: bytes
    commitment: bytes
    signature: bytes = b""

    def signed(self, terms: SessionTerms) -> bytes:
        return terms.statement("advertisement", self.client, self.sealing, self.masking, self.commitment)


class KeyDirectory(Struct, frozen=True, kw_only=True):
    """All members, and the key advertisements of the recipient's neighbours."""

    members: list[int]
    advertisements: list[KeyAdvertisement]


def roster_digest(terms: SessionTerms, members: Sequence[int], names: Sequence[str]) -> bytes:
    """A digest of a session's members and terms."""
    return hashlib.sha256(write_message(["winnow roster", terms, list(members), list(names)])).digest()


def survivors_statement(terms: SessionTerms, roster: bytes, inputs_digest: bytes, survivors: Sequence[int]) -> bytes:
    return terms.statement("survivors", roster, inputs_digest, list(survivors))


def write_message(message: object) -> bytes:
    return msgspec.msgpack.encode(message)


def read_message(data: bytes, kind: type[T]) -> T:
    """A message of this kind; anything else is refused."""
    try:
        return from_msgpack(data, kind)
    except UnreadableError as error:
        raise ProtocolError(f"a message that cannot be read ({error})") from error
