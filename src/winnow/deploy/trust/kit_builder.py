"""The files of a kit, made and put in place."""

import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from winnow.deploy.trust.certificate_authority import CertificateAuthority, key_pem
from winnow.deploy.trust.kit import (
    AUTHORITY_FILE,
    CERTIFICATE_FILE,
    ENDPOINTS_FILE,
    KEY_FILE,
    MANIFEST_FILE,
    MANIFEST_PURPOSE,
    PARTY_FILE,
    PRIVATE_FILES,
    SEALING_KEY_FILE,
    KitManifest,
    PartyDescription,
    read_manifest,
)
from winnow.deploy.trust.private_file_writing import PRIVATE, PUBLIC, sync_folder, write_bytes_atomically
from winnow.deploy.trust.project_file import Project, ProjectPerson, ProjectServer, ProjectSite
from winnow.deploy.trust.revocation_list import RevocationList
from winnow.deploy.trust.signed_documents import sign_document


@dataclass(frozen=True, kw_only=True)
class NewKit:
    certificate: x509.Certificate
    files: dict[str, bytes]


def build_kit(
    project: Project,
    party: ProjectServer | ProjectSite | ProjectPerson,
    authority: CertificateAuthority,
    now: datetime,
    revocations: RevocationList,
) -> NewKit:
    """With new keys: the kit is all that its party needs."""
    key = ec.generate_private_key(ec.SECP256R1())
    sealing_key = X25519PrivateKey.generate() if party.kind == "site" else None
    private = {KEY_FILE: key_pem(key, NoEncryption())}
    if sealing_key is not None:
        private[SEALING_KEY_FILE] = sealing_key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
    sealing_public = sealing_key.public_key() if sealing_key else None
    return build_public_kit(project, party, (key.public_key(), sealing_public), authority, now, revocations, private)


def build_public_kit(
    project: Project,
    party: ProjectServer | ProjectSite | ProjectPerson,
    keys: tuple[ec.EllipticCurvePublicKey, X25519PublicKey | None],
    authority: CertificateAuthority,
    now: datetime,
    revocations: RevocationList,
    private: Mapping[str, bytes] = MappingProxyType({}),
) -> NewKit:
    """For these public keys. Without the private ones the kit is complete where those are: at the applicant's."""
    certificate = authority.issue(party, *keys, now, project.validity_days)
    description = PartyDescription(
        project=project.name, name=party.name, kind=party.kind, organisation=party.organisation, role=party.role
    )
    files = {
        **private,
        CERTIFICATE_FILE: certificate.public_bytes(Encoding.PEM),
        AUTHORITY_FILE: authority.certificate.public_bytes(Encoding.PEM),
        PARTY_FILE: msgspec.json.format(msgspec.json.encode(description), indent=2) + b"\n",
        ENDPOINTS_FILE: _encoded(project.endpoints),
    }
    manifest = KitManifest(
        project=project.name,
        name=party.name,
        kind=party.kind,
        files={name: _digest(content) for name, content in files.items()},
        revocations=revocations.number,
    )
    return NewKit(certificate=certificate, files=files | {MANIFEST_FILE: _signed(manifest, authority)})


def install_kit(folder: Path, files: dict[str, bytes]) -> None:
    """A new kit is there as a whole or not at all. Files of the operator's own in an older one stay."""
    fresh = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(mode=0o700)
    for name, content in files.items():
        write_bytes_atomically(fresh / name, content, PRIVATE if name in PRIVATE_FILES else PUBLIC)
    if not folder.exists():
        fresh.rename(folder)
        sync_folder(folder.parent)
        return
    for name in files:
        (fresh / name).replace(folder / name)
    sync_folder(folder)
    fresh.rmdir()


def update_endpoints(folder: Path, endpoints: list[str], authority: CertificateAuthority) -> list[Path]:
    """Bring a kit's addresses up to date, and sign it anew; the files that changed."""
    content = _encoded(endpoints)
    if not folder.is_dir():
        return []
    manifest = read_manifest(folder, authority.certificate)
    if manifest.files[ENDPOINTS_FILE] == _digest(content):
        return []
    files = manifest.files | {ENDPOINTS_FILE: _digest(content)}
    write_bytes_atomically(folder / ENDPOINTS_FILE, content)
    write_bytes_atomically(folder / MANIFEST_FILE, _signed(msgspec.structs.replace(manifest, files=files), authority))
    return [folder / ENDPOINTS_FILE, folder / MANIFEST_FILE]


def _signed(manifest: KitManifest, authority: CertificateAuthority) -> bytes:
    return sign_document(manifest, MANIFEST_PURPOSE, authority.key)


def _encoded(endpoints: list[str]) -> bytes:
    return msgspec.json.format(msgspec.json.encode(endpoints), indent=2) + b"\n"


def _digest(content: bytes) -> str:
    return sha256(content).hexdigest()
