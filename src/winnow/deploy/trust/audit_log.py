"""The audit log: every command and every job's event, in a chain that shows each later change.

    log = open_audit(path, kit)
    log.append(who="ana", organisation="Clinic A", what="submit", target="job-7", outcome="accepted")

Where the chain is kept is behind `AuditStore`: a file for a site or a single server, a table for servers that share a
database.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol, TypeAlias

from cryptography import x509

from winnow.deploy.trust.audit_chain import (
    ADOPTED,
    HEAD_PURPOSE,
    NOT_SIGNED,
    START,
    AuditEntry,
    AuditLogOwner,
    ChainHead,
    chain_problems,
    unsigned_entries,
)
from winnow.deploy.trust.errors import AuditError, IdentityError
from winnow.deploy.trust.kit import Kit
from winnow.deploy.trust.peer_identity import Peer, utc_now
from winnow.deploy.trust.signing import sign

TRIES = 20
REMEDY = "run winnow audit verify to find the cause; to start a new log, move this log and its .head file away"
MakeEntry: TypeAlias = Callable[[AuditEntry | None, ChainHead | None], AuditEntry]
"""Makes the entry that follows the last one, given the head; raises where the head does not vouch for the last one."""


class AuditStore(Protocol):
    """Keeps a chain and its head."""

    def extend(self, make: MakeEntry, sign_head: Callable[[AuditEntry], ChainHead]) -> AuditEntry:
        """Make the entry that follows the last one and keep it, then its head; durable on return.

        Nobody else may extend the chain meanwhile: in a database, all this is one transaction that locks the head.
        """

    def lines(self) -> Iterator[bytes]:
        """The entries as they were written, from the first one on."""

    def head(self) -> ChainHead | None: ...

    def close(self) -> None: ...


class AuditLog:
    """Appends to a chain, in the name of the kit's owner. Safe to be used by several threads if its store is.

    A new head vouches for all that stands before it, so nothing is added where `owner` did not sign the last one.
    """

    def __init__(
        self, store: AuditStore, kit: Kit, now: Callable[[], datetime] = utc_now, *, owner: AuditLogOwner | None = None
    ) -> None:
        self._store, self._kit, self._now = store, kit, now
        self._owner = owner or AuditLogOwner(kind=kit.kind, name=kit.name)
        self._signed: ChainHead | None = None

    def append(self, *, who: str, organisation: str, what: str, target: str = "", outcome: str = "") -> AuditEntry:
        def make(last: AuditEntry | None, head: ChainHead | None) -> AuditEntry:
            self.check(last, head)
            return AuditEntry.following(
                last, at=self._now(), who=who, organisation=organisation, what=what, target=target, outcome=outcome
            )

        return self._store.extend(make, self.sign_head)

    def append_for(self, peer: Peer, what: str, target: str = "", outcome: str = "") -> AuditEntry:
        return self.append(who=peer.name, organisation=peer.organisation, what=what, target=target, outcome=outcome)

    def note(self, what: str, target: str = "", outcome: str = "") -> AuditEntry:
        """Something that the server or the site itself did."""
        return self.append_for(self._kit.peer, what, target, outcome)

    def adopt_unsigned_entry(self) -> AuditEntry:
        """Go on behind an entry that is not signed, and say so in the chain: whoever wrote it, it is marked."""

        def make(last: AuditEntry | None, head: ChainHead | None) -> AuditEntry:
            assert last is not None
            self._check_head(last.seq - 1, last.previous, head)
            return AuditEntry.following(
                last,
                at=self._now(),
                who=self._kit.name,
                organisation=self._kit.organisation,
                what=ADOPTED,
                target=f"entry {last.seq}",
                outcome=f"it was not signed: {NOT_SIGNED}",
            )

        return self._store.extend(make, self.sign_head)

    def check(self, last: AuditEntry | None, head: ChainHead | None) -> None:
        """That the owner signed the chain up to this entry."""
        self._check_head(last.seq if last else 0, last.hash if last else START, head)

    def _check_head(self, seq: int, hash: str, head: ChainHead | None) -> None:
        if head is None and seq == 0:
            return
        if head is None or (head.seq, head.hash) != (seq, hash):
            raise AuditError(f"{self._store}: the signed head does not cover entry {seq}; {REMEDY}")
        if head == self._signed:
            return
        try:
            signer = head.signer(self._kit.authority)
        except IdentityError as error:
            raise AuditError(f"{self._store}: the signature of its head is invalid: {error}; {REMEDY}") from error
        if not self._owner.matches(signer):
            raise AuditError(f"{self._store}: its head was signed by {signer}, not by {self._owner}; {REMEDY}")

    def close(self) -> None:
        self._store.close()

    def lines(self) -> Iterator[bytes]:
        """The entries as they were written."""
        return self._store.lines()

    def head(self) -> ChainHead | None:
        return self._store.head()

    def sign_head(self, entry: AuditEntry) -> ChainHead:
        """The head of a chain that ends with this entry."""
        at = self._now()
        signature = sign(self._kit, ChainHead.signed_part(entry.seq, entry.hash, at), HEAD_PURPOSE)
        self._signed = ChainHead(seq=entry.seq, hash=entry.hash, at=at, signature=signature)
        return self._signed


@dataclass(frozen=True, kw_only=True)
class AuditFindings:
    """What is wrong with a log, and which entries were not signed when they were written."""

    head: ChainHead | None
    problems: list[str]
    unsigned: list[str]


def verify_audit_log(store: AuditStore, authority: x509.Certificate | None, owner: AuditLogOwner) -> AuditFindings:
    """A log that is being written may grow after its head was read: then it is read again."""
    for _ in range(TRIES):
        head = store.head()
        found = AuditFindings(
            head=head,
            problems=list(chain_problems(store.lines(), head, authority, owner)),
            unsigned=list(unsigned_entries(store.lines(), head)),
        )
        if not (found.problems or found.unsigned) or store.head() == head:
            break
    return found
