"""The audit log: every command and every job's event, in a chain that shows each later change.

    log = open_audit(path, kit)
    log.append(who="ana", organisation="Clinic A", what="submit", target="job-7", outcome="accepted")

Where the chain is kept is behind `AuditStore`: a file for a site or a single server, a table for servers that share a
database.
"""

from collections.abc import Callable, Iterator
from datetime import datetime
from typing import Protocol

from cryptography import x509

from winnow.deploy.trust.chain import HEAD_PURPOSE, Entry, Head, problems_of
from winnow.deploy.trust.identity import Peer, utc_now
from winnow.deploy.trust.kit import Kit
from winnow.deploy.trust.signing import sign

TRIES = 20


class AuditStore(Protocol):
    """Keeps a chain and its head."""

    def extend(self, make: Callable[[Entry | None], Entry], crown: Callable[[Entry], Head]) -> Entry:
        """Make the entry that follows the last one and keep it, then its head; durable on return.

        Nobody else may extend the chain meanwhile: in a database, all this is one transaction that locks the head.
        """

    def lines(self) -> Iterator[bytes]:
        """The entries as they were written, from the first one on."""

    def head(self) -> Head | None: ...

    def close(self) -> None: ...


class AuditLog:
    """Appends to a chain, in the name of the kit's owner. Safe to be used by several threads if its store is."""

    def __init__(self, store: AuditStore, kit: Kit, now: Callable[[], datetime] = utc_now) -> None:
        self._store, self._kit, self._now = store, kit, now

    def append(self, *, who: str, organisation: str, what: str, target: str = "", outcome: str = "") -> Entry:
        def make(last: Entry | None) -> Entry:
            return Entry.after(
                last, at=self._now(), who=who, organisation=organisation, what=what, target=target, outcome=outcome
            )

        return self._store.extend(make, self.crown)

    def append_for(self, peer: Peer, what: str, target: str = "", outcome: str = "") -> Entry:
        return self.append(who=peer.name, organisation=peer.organisation, what=what, target=target, outcome=outcome)

    def note(self, what: str, target: str = "", outcome: str = "") -> Entry:
        """Something that the server or the site itself did."""
        return self.append_for(self._kit.peer, what, target, outcome)

    def close(self) -> None:
        self._store.close()

    def crown(self, entry: Entry) -> Head:
        """The head of a chain that ends with this entry."""
        at = self._now()
        signature = sign(self._kit, Head.signed_part(entry.seq, entry.hash, at), HEAD_PURPOSE)
        return Head(seq=entry.seq, hash=entry.hash, at=at, signature=signature)


def problems(store: AuditStore, authority: x509.Certificate | None = None) -> list[str]:
    """All that is wrong with a log; nothing if it is as it was written.

    A log that is being written may grow between the reading of its head and of its entries: then it is read again.
    """
    found: list[str] = []
    for _ in range(TRIES):
        head = store.head()
        found = list(problems_of(store.lines(), head, authority))
        if not found or store.head() == head:
            break
    return found
