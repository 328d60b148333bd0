"""A party's start-up kit: a folder with its key, its certificate and all it must know to take part.

`kit.json` lists the digest of every file and is signed by the authority, so a kit that was tampered with, lacks a file
or was put together from two is refused by name. Two files beside it are not listed: `revoked.json`, which has a
signature of its own because a newer one may take its place, and `policy.toml`, which is the operator's own.
"""

from dataclasses import dataclass, field
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from typing import NoReturn

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.types import PrivateKeyTypes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.serialization import load_pem_private_key

from winnow.core.message_decoding import UnreadableError, from_json
from winnow.deploy.trust.errors import KitError, TrustError
from winnow.deploy.trust.peer_identity import (
    PartyKind,
    Peer,
    check_certificate,
    read_certificate,
    sealing_key_of,
    utc_now,
)
from winnow.deploy.trust.private_file_writing import read_small
from winnow.deploy.trust.revocation_list import REVOKED_FILE, RevocationList, watch_revocations
from winnow.deploy.trust.signed_documents import read_document
from winnow.deploy.trust.watched_file import WatchedFile

MANIFEST_FILE = "kit.json"
KEY_FILE, SEALING_KEY_FILE = "key.pem", "letter-key.pem"
CERTIFICATE_FILE, AUTHORITY_FILE = "certificate.pem", "ca.pem"
PARTY_FILE, ENDPOINTS_FILE = "party.json", "endpoints.json"
PRIVATE_FILES = (KEY_FILE, SEALING_KEY_FILE)
MANIFEST_PURPOSE = "kit manifest"


class KitManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    project: str
    name: str
    kind: PartyKind
    files: dict[str, str]
    """SHA-256 of each file."""
    revocations: int
    """The number of the newest revocation list when the kit was signed: no older one may lie beside it."""


class PartyDescription(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """`party.json`: the certificate's contents in plain sight, for people and scripts."""

    project: str
    name: str
    kind: PartyKind
    organisation: str
    role: str


@dataclass(frozen=True, kw_only=True)
class Kit:
    """A kit that was found to be in order. What is secret is kept out of its `repr`."""

    path: Path
    project: str
    peer: Peer
    endpoints: tuple[str, ...]
    """Of the project's servers: grpc://host:port."""
    certificate: x509.Certificate
    authority: x509.Certificate
    revocations: RevocationList
    """As of loading; `watch_revocations` follows the file."""
    certificate_pem: bytes = field(repr=False)
    authority_pem: bytes = field(repr=False)
    key: ec.EllipticCurvePrivateKey = field(repr=False)
    key_pem: bytes = field(repr=False)
    sealing_key: X25519PrivateKey | None = field(repr=False)

    @property
    def name(self) -> str:
        return self.peer.name

    @property
    def kind(self) -> PartyKind:
        return self.peer.kind

    @property
    def organisation(self) -> str:
        return self.peer.organisation

    @property
    def role(self) -> str:
        return self.peer.role

    @classmethod
    def load(cls, path: Path | str, kind: PartyKind | None = None, now: datetime | None = None) -> "Kit":
        """Read a kit and check all of it; `kind` is what it is needed for."""
        folder = Path(path)
        try:
            return _load(folder, kind, now or utc_now())
        except KitError:
            raise
        except TrustError as error:
            raise KitError(f"kit {folder}: {error}") from error

    def watch_revocations(self) -> WatchedFile[RevocationList]:
        return watch_revocations(self.path / REVOKED_FILE, self.authority, self.revocations)


def read_manifest(folder: Path, authority: x509.Certificate) -> KitManifest:
    return read_document(_file(folder, MANIFEST_FILE), MANIFEST_PURPOSE, authority, KitManifest)


def _load(folder: Path, kind: PartyKind | None, now: datetime) -> Kit:
    if not folder.is_dir():
        raise KitError(f"kit {folder} does not exist; winnow provision creates kits")
    authority_pem = _file(folder, AUTHORITY_FILE)
    authority = read_certificate(authority_pem)
    manifest = read_manifest(folder, authority)
    files = {name: _listed(folder, name, digest) for name, digest in manifest.files.items()}
    files |= {name: _own_key(folder, name) for name in _private_files(manifest) if name not in files}
    _refuse_gaps(folder, manifest)
    certificate = read_certificate(files[CERTIFICATE_FILE])
    peer = check_certificate(certificate, authority, now)
    if (peer.name, peer.kind) != (manifest.name, manifest.kind):
        raise KitError(f"kit {folder}: its certificate belongs to {peer}, not to {manifest.kind} {manifest.name}")
    if kind is not None and peer.kind != kind:
        raise KitError(f"kit {folder} belongs to {peer}; this command needs the kit of a {kind}")
    revocations = RevocationList.read(_file(folder, REVOKED_FILE), authority, at_least=manifest.revocations)
    revocations.check(peer)
    return Kit(
        path=folder,
        project=manifest.project,
        peer=peer,
        endpoints=_endpoints(folder, files[ENDPOINTS_FILE]),
        certificate=certificate,
        certificate_pem=files[CERTIFICATE_FILE],
        authority=authority,
        authority_pem=authority_pem,
        revocations=revocations,
        key=_key(folder, files[KEY_FILE], certificate),
        key_pem=files[KEY_FILE],
        sealing_key=_sealing_key(folder, files[SEALING_KEY_FILE], certificate) if peer.kind == "site" else None,
    )


def _file(folder: Path, name: str) -> bytes:
    path = folder / name
    try:
        return read_small(path)
    except FileNotFoundError:
        raise KitError(f"kit {folder} is incomplete: {name} is missing; ask the project owner for a new kit") from None
    except OSError as error:
        raise KitError(f"kit {folder}: {name} cannot be read: {error.strerror}") from error


def _listed(folder: Path, name: str, digest: str) -> bytes:
    """A file of the manifest, as it was when it was signed, and readable by its owner alone where it is secret."""
    content = _file(folder, name)
    if sha256(content).hexdigest() != digest:
        raise KitError(
            f"kit {folder} was changed: {name} does not match the signed manifest; ask the project owner for a new kit"
        )
    if name in PRIVATE_FILES:
        _refuse_readable(folder, name)
    return content


def _own_key(folder: Path, name: str) -> bytes:
    """A key that its party made itself, so that nobody could list its digest; it must fit the certificate."""
    content = _file(folder, name)
    _refuse_readable(folder, name)
    return content


def _refuse_readable(folder: Path, name: str) -> None:
    if (folder / name).stat().st_mode & 0o077:
        raise KitError(f"kit {folder}: {name} is readable by other users; run: chmod 600 {folder / name}")


def _private_files(manifest: KitManifest) -> tuple[str, ...]:
    return PRIVATE_FILES if manifest.kind == "site" else (KEY_FILE,)


def _refuse_gaps(folder: Path, manifest: KitManifest) -> None:
    needed = {CERTIFICATE_FILE, AUTHORITY_FILE, PARTY_FILE, ENDPOINTS_FILE}
    for name in sorted(needed - manifest.files.keys()):
        raise KitError(
            f"kit {folder} is incomplete: {name} is not listed in {MANIFEST_FILE}; ask the project owner for a new kit"
        )


def _key(folder: Path, pem: bytes, certificate: x509.Certificate) -> ec.EllipticCurvePrivateKey:
    key = _private_key(folder, KEY_FILE, pem)
    if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
        _mismatch(folder, KEY_FILE)
    return key


def _sealing_key(folder: Path, pem: bytes, certificate: x509.Certificate) -> X25519PrivateKey:
    key = _private_key(folder, SEALING_KEY_FILE, pem)
    if not isinstance(key, X25519PrivateKey) or key.public_key() != sealing_key_of(certificate):
        _mismatch(folder, SEALING_KEY_FILE)
    return key


def _private_key(folder: Path, name: str, pem: bytes) -> PrivateKeyTypes:
    try:
        return load_pem_private_key(pem, password=None)
    except (ValueError, TypeError) as error:
        raise KitError(f"kit {folder}: {name} is not a private key") from error


def _mismatch(folder: Path, name: str) -> NoReturn:
    raise KitError(f"kit {folder}: {name} does not match the certificate; ask the project owner for a new kit")


def _endpoints(folder: Path, content: bytes) -> tuple[str, ...]:
    try:
        return from_json(content, tuple[str, ...])
    except UnreadableError as error:
        raise KitError(f"kit {folder}: {ENDPOINTS_FILE} is not a list of addresses") from error
