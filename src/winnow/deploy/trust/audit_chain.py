"""A chain of entries, each of which holds the hash of the one before. Changing any of them breaks those after it.

Whoever can write the whole file could make a new chain, or cut its end off. Against both stands the *head*: the number
and hash of the last entry, signed with the key of the server or site whose log it is.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime
from hashlib import sha256
from typing import Annotated

import msgspec
from cryptography import x509
from msgspec import Meta

from winnow.core.message_decoding import UnreadableError, from_json
from winnow.deploy.trust.errors import IdentityError
from winnow.deploy.trust.peer_identity import Peer
from winnow.deploy.trust.revocation_list import RevocationList
from winnow.deploy.trust.signing import Signature, verify

START = "0" * 64
"""What the first entry takes for the hash before it."""
HEAD_PURPOSE = "audit head"
ADOPTED = "audit adopted"
"""What an entry says that follows one which was not signed when its owner opened the log."""
LONGEST = 4096
NOT_SIGNED = "the writing process was killed before it signed the entry, or another program wrote the entry"
MAX_UNSIGNED_ENTRIES = 1
"""An entry is durable before the head that covers it: so many may stand after the head when a process is killed."""


class AuditEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Who did what to what, when, and what came of it."""

    seq: Annotated[int, Meta(ge=1)]
    time: str
    who: str
    organisation: str
    what: str
    target: str
    outcome: str
    previous: str
    hash: str = ""

    @classmethod
    def following(
        cls,
        last: "AuditEntry | None",
        *,
        at: datetime,
        who: str,
        organisation: str,
        what: str,
        target: str,
        outcome: str,
    ) -> "AuditEntry":
        entry = cls(
            seq=last.seq + 1 if last else 1,
            time=at.astimezone(UTC).isoformat(timespec="microseconds"),
            who=_clean(who),
            organisation=_clean(organisation),
            what=_clean(what),
            target=_clean(target),
            outcome=_clean(outcome),
            previous=last.hash if last else START,
        )
        return msgspec.structs.replace(entry, hash=entry.digest())

    def digest(self) -> str:
        return sha256(msgspec.json.encode(msgspec.structs.replace(self, hash=""))).hexdigest()

    def line(self) -> bytes:
        return msgspec.json.encode(self)

    @classmethod
    def parse(cls, line: bytes) -> "AuditEntry | None":
        """Read a line; None for anything but the very bytes of an entry."""
        try:
            entry = from_json(line, cls)
        except UnreadableError:
            return None
        return entry if entry.line() == line else None


class ChainHead(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How far the chain reaches."""

    seq: int
    hash: str
    at: datetime
    signature: Signature

    @staticmethod
    def signed_part(seq: int, hash: str, at: datetime) -> bytes:
        return msgspec.json.encode((seq, hash, at))

    def signer(self, authority: x509.Certificate) -> Peer:
        """Whose log this is. The certificate had to be valid when the head was signed, not for ever."""
        content = ChainHead.signed_part(self.seq, self.hash, self.at)
        return verify(self.signature, content, authority, RevocationList(), self.at, HEAD_PURPOSE)


@dataclass(frozen=True, kw_only=True)
class AuditLogOwner:
    """Whose log it is, as far as that is known. Servers that share a database have one log: any of them signs it."""

    kind: str = ""
    name: str = ""

    def matches(self, signer: Peer) -> bool:
        return self.kind in ("", signer.kind) and self.name in ("", signer.name) and signer.kind != "person"

    def __str__(self) -> str:
        return " ".join(filter(None, (self.kind, self.name))) or "a server or site"


def chain_problems(
    lines: Iterable[bytes], head: ChainHead | None, authority: x509.Certificate | None, owner: AuditLogOwner
) -> Iterator[str]:
    """All that is wrong with a chain. Without an authority the head's signature is not checked."""
    last: AuditEntry | None = None
    at_head = START
    for number, line in enumerate(lines, start=1):
        entry = AuditEntry.parse(line)
        if entry is None:
            yield f"line {number} is not an entry"
            continue
        yield from _links(number, entry, last)
        at_head = entry.hash if head and entry.seq == head.seq else at_head
        last = entry
    yield from _reach(last, head, at_head)
    if head and authority:
        yield from _signature(head, authority, owner)


def unsigned_entries(lines: Iterable[bytes], head: ChainHead | None) -> Iterator[str]:
    """The entries of a sound chain that were not signed when they were written, or are not yet."""
    covered = head.seq if head else 0
    for entry in filter(None, map(AuditEntry.parse, lines)):
        if entry.what == ADOPTED:
            yield f"{entry.target} was adopted on {entry.time[:19]}: {entry.outcome}"
        if entry.seq > covered:
            yield f"entry {entry.seq} is not signed: {NOT_SIGNED}"


def _clean(text: str) -> str:
    """Text of any origin, fit for a line of JSON: not endless, and no halves of characters."""
    return text[:LONGEST].encode(errors="replace").decode()


def _links(number: int, entry: AuditEntry, last: AuditEntry | None) -> Iterator[str]:
    seq, previous = (last.seq + 1, last.hash) if last else (1, START)
    if entry.digest() != entry.hash:
        yield f"line {number}: entry {entry.seq} was changed"
    if entry.seq != seq:
        yield f"line {number}: expected entry {seq}, found entry {entry.seq}"
    elif entry.previous != previous:
        yield f"line {number}: entry {entry.seq} does not follow the one before it"


def _reach(last: AuditEntry | None, head: ChainHead | None, at_head: str) -> Iterator[str]:
    reached = last.seq if last else 0
    if head is None:
        if reached > MAX_UNSIGNED_ENTRIES:
            yield "the log has no signed head: entries may be missing at the end"
    elif reached < head.seq:
        yield f"entries are missing at the end: {head.seq} were written, the log ends at {reached}"
    elif at_head != head.hash:
        yield f"entry {head.seq} does not match the signed head"
    elif reached > head.seq + MAX_UNSIGNED_ENTRIES:
        yield f"entries after {head.seq} were not signed by the owner of the log"


def _signature(head: ChainHead, authority: x509.Certificate, owner: AuditLogOwner) -> Iterator[str]:
    try:
        signer = head.signer(authority)
    except IdentityError as error:
        yield f"the signature of the head is invalid: {error}"
        return
    if not owner.matches(signer):
        yield f"the head was signed by {signer}; expected {owner}"
