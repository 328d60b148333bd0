"""A server's audit log as its reader has it: fetched entry by entry, and checked by the reader's own machine."""

from collections.abc import Callable
from dataclasses import dataclass

from cryptography import x509

from winnow.core import RunError
from winnow.core.message_decoding import UnreadableError, from_json
from winnow.deploy.trust.audit_chain import AuditEntry, AuditLogOwner, ChainHead, chain_problems, unsigned_entries
from winnow.deploy.trust.peer_identity import Peer
from winnow.deploy.wire.messages import AuditPage

SERVERS = AuditLogOwner(kind="server")
MAX_ENTRIES, MAX_BYTES = 200_000, 100 * 2**20
"""Of a longer log no more is fetched: its server can check it (winnow audit verify)."""


@dataclass(frozen=True, kw_only=True)
class CheckedAudit:
    """The entries, and whether somebody changed them."""

    entries: list[AuditEntry]
    problems: list[str]
    unsigned: list[str]
    signer: Peer | None
    """The server that signed the head; None where there is none, or no valid one."""


class FetchedAudit:
    """Keeps what it has fetched, so that a server that shows another past later is found out."""

    def __init__(self, fetch: Callable[[int], AuditPage], authority: x509.Certificate) -> None:
        self._fetch, self._authority = fetch, authority
        self._lines: list[bytes] = []
        self._bytes = 0

    def refresh(self) -> CheckedAudit:
        """Fetch what is new, and check the whole chain and the signature of its head."""
        head = self._fetch_new()
        problems = list(chain_problems(self._lines, head, self._authority, SERVERS))
        entries = [entry for line in self._lines if (entry := AuditEntry.parse(line)) is not None]
        signer = head.signer(self._authority) if head is not None and not problems else None
        return CheckedAudit(
            entries=entries, problems=problems, unsigned=list(unsigned_entries(self._lines, head)), signer=signer
        )

    def _fetch_new(self) -> ChainHead | None:
        """Page by page up to the head that the last page came with."""
        while True:
            page = self._fetch(len(self._lines))
            head = _head(page)
            self._bytes += sum(map(len, page.lines))
            if len(self._lines) + len(page.lines) > MAX_ENTRIES or self._bytes > MAX_BYTES:
                raise RunError(f"the audit log is longer than {MAX_ENTRIES:,} entries; its server can check it")
            self._lines += page.lines
            if not page.lines or head is None or len(self._lines) >= head.seq:
                return head


def _head(page: AuditPage) -> ChainHead | None:
    if not page.head:
        return None
    try:
        return from_json(page.head, ChainHead)
    except UnreadableError:
        raise RunError("the server sent an audit log whose head cannot be read") from None
