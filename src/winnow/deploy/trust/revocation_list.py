"""Whose certificate no longer counts. The list is numbered, and signed by the authority: an older one is refused."""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec

from winnow.deploy.trust.errors import IdentityError
from winnow.deploy.trust.peer_identity import Peer
from winnow.deploy.trust.signed_documents import read_document, sign_document
from winnow.deploy.trust.watched_file import WatchedFile

REVOKED_FILE = "revoked.json"
PURPOSE = "revocation list"


class _Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    project: str
    number: int
    serials: list[str]
    """Hexadecimal: they are longer than JSON's numbers."""


@dataclass(frozen=True, kw_only=True)
class RevocationList:
    number: int = 0
    serials: frozenset[int] = frozenset()

    @classmethod
    def read(cls, content: bytes, authority: x509.Certificate, at_least: int = 0) -> "RevocationList":
        """Check and read a list; `at_least` is the highest number seen so far."""
        body = read_document(content, PURPOSE, authority, _Body)
        if body.number < at_least:
            raise IdentityError(
                f"revocation list {body.number} is older than list {at_least}, which was already seen here"
            )
        try:
            serials = frozenset(int(serial, 16) for serial in body.serials)
        except ValueError as error:
            raise IdentityError("the revocation list contains an invalid serial number") from error
        return cls(number=body.number, serials=serials)

    def check(self, peer: Peer) -> None:
        if peer.serial in self.serials:
            raise IdentityError(f"the certificate of {peer} was revoked; ask for a renewed kit")

    def with_serials(self, serials: Iterable[int]) -> "RevocationList":
        return RevocationList(number=self.number + 1, serials=self.serials | frozenset(serials))

    def sign(self, project: str, key: ec.EllipticCurvePrivateKey) -> bytes:
        serials = [f"{serial:x}" for serial in sorted(self.serials)]
        return sign_document(_Body(project=project, number=self.number, serials=serials), PURPOSE, key)


def watch_revocations(path: Path, authority: x509.Certificate, known: RevocationList) -> WatchedFile[RevocationList]:
    """The newest list that was ever seen here: a missing, broken or older file changes nothing."""

    def read(content: bytes, newest: RevocationList) -> RevocationList:
        return RevocationList.read(content, authority, at_least=newest.number)

    def unchanged(newest: RevocationList) -> RevocationList:
        return newest

    return WatchedFile(path, read, first=known, on_missing=unchanged, on_invalid=unchanged)
