"""An applicant's side: a folder with the new keys and the application, which becomes a kit once its files are there."""

import shutil
from pathlib import Path

import msgspec
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

from winnow.core import ConfigError
from winnow.core.message_decoding import UnreadableError, from_json
from winnow.deploy.trust.application import APPLICATION_FILE, key_fingerprint, write_application
from winnow.deploy.trust.certificate_authority import key_pem
from winnow.deploy.trust.errors import KitError
from winnow.deploy.trust.kit import (
    AUTHORITY_FILE,
    CERTIFICATE_FILE,
    ENDPOINTS_FILE,
    KEY_FILE,
    MANIFEST_FILE,
    PARTY_FILE,
    SEALING_KEY_FILE,
    Kit,
)
from winnow.deploy.trust.private_file_writing import PRIVATE, read_small, write_bytes_atomically
from winnow.deploy.trust.project_file import ProjectPerson, ProjectSite
from winnow.deploy.trust.revocation_list import REVOKED_FILE

HANDED_OUT = frozenset({CERTIFICATE_FILE, AUTHORITY_FILE, PARTY_FILE, ENDPOINTS_FILE, MANIFEST_FILE, REVOKED_FILE})
"""What an owner hands out: none of it is secret, and without the applicant's keys nobody can use it."""
MAX_HANDED_OUT = 262_144


def begin_kit(folder: Path, party: ProjectSite | ProjectPerson, contact: str) -> str:
    """Make the keys and the application; the fingerprint of the public key."""
    if folder.exists():
        raise ConfigError(f"{folder} is there already; name another folder with --out")
    key = ec.generate_private_key(ec.SECP256R1())
    sealing = X25519PrivateKey.generate() if party.kind == "site" else None
    fresh = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(fresh, ignore_errors=True)
    fresh.mkdir(parents=True, mode=0o700)
    write_bytes_atomically(fresh / KEY_FILE, key_pem(key, NoEncryption()), PRIVATE)
    if sealing is not None:
        content = sealing.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        write_bytes_atomically(fresh / SEALING_KEY_FILE, content, PRIVATE)
    write_bytes_atomically(fresh / APPLICATION_FILE, write_application(party, contact, key, sealing))
    fresh.rename(folder)
    return key_fingerprint(key.public_key())


def pack_kit(files: dict[str, bytes]) -> bytes:
    """The files that are handed out, as one."""
    return msgspec.json.encode({name: files[name] for name in sorted(HANDED_OUT)}) + b"\n"


def unpack_kit(content: bytes) -> dict[str, bytes]:
    try:
        files = from_json(content, dict[str, bytes])
    except UnreadableError:
        raise KitError("this is not a kit that was handed out; collect it again, or ask the project owner") from None
    if len(content) > MAX_HANDED_OUT or files.keys() != HANDED_OUT:
        raise KitError("this is not a kit that was handed out: it has other files than a kit")
    return files


def complete_kit(folder: Path, handed_out: Path, fingerprint: str | None) -> tuple[Kit, str]:
    """Put what was handed out beside the keys: the kit, and the fingerprint of its CA. All of it or nothing."""
    if not (folder / KEY_FILE).is_file():
        raise KitError(f"{folder} holds no key; winnow apply made one where you applied")
    if (folder / MANIFEST_FILE).exists():
        raise KitError(f"{folder} is a kit already")
    files = unpack_kit(read_small(handed_out))
    trial = folder.with_name(f".{folder.name}.new")
    shutil.rmtree(trial, ignore_errors=True)
    shutil.copytree(folder, trial)
    try:
        for name, content in files.items():
            write_bytes_atomically(trial / name, content)
        kit = Kit.load(trial)
        found = kit.authority.fingerprint(SHA256()).hex()
        if fingerprint is not None and fingerprint.replace(":", "").replace(" ", "").lower() != found:
            raise KitError(
                f"the CA of this kit has the fingerprint {found}, not the one that you were told; do not use it"
            )
        for name in sorted(files, key=lambda name: name == MANIFEST_FILE):  # the last, since it makes the folder a kit
            (trial / name).replace(folder / name)
    finally:
        shutil.rmtree(trial, ignore_errors=True)
    return Kit.load(folder), found
