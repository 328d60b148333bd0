"""Somebody applies for a kit. The keys are made at the applicant, and only their public halves travel, signed by the
private one: whoever hands an application in holds the key that the certificate will be for."""

from dataclasses import dataclass, field
from hashlib import sha256

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat, load_der_public_key
from pydantic import ValidationError

from winnow.core import ConfigError
from winnow.core.message_decoding import UnreadableError, from_json
from winnow.core.untrusted_text import one_line
from winnow.deploy.trust.project_file import ProjectPerson, ProjectSite
from winnow.deploy.trust.signed_documents import ALGORITHM, with_purpose

APPLICATION_FILE = "application.json"
PURPOSE = "application for a kit"
MAX_APPLICATION = 8_192
MAX_CONTACT = 200
FORGED = "the application is not signed by the key that it names; make it with winnow apply"


class ApplicationBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    name: str
    organisation: str
    role: str = ""
    """Of a person; empty for a site."""
    contact: str = ""
    """For the project's owner: how to reach the applicant and compare fingerprints."""
    key: bytes
    """The public key (ECDSA P-256), DER."""
    sealing_key: bytes = b""
    """A site's public key for sealed messages (X25519), raw."""


class _SignedBody(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    body: msgspec.Raw
    signature: bytes


@dataclass(frozen=True, kw_only=True)
class Application:
    """One that was found to be in order. It says nothing about who wrote it."""

    party: ProjectSite | ProjectPerson
    contact: str
    key: ec.EllipticCurvePublicKey = field(repr=False)
    sealing_key: X25519PublicKey | None = field(repr=False)

    @property
    def fingerprint(self) -> str:
        """SHA-256 of the public key: what applicant and owner compare."""
        return key_fingerprint(self.key)


def key_fingerprint(key: ec.EllipticCurvePublicKey) -> str:
    """In groups of four, which are read over a telephone."""
    digits = sha256(_der(key)).hexdigest()
    return " ".join(digits[start : start + 4] for start in range(0, len(digits), 4))


def write_application(
    party: ProjectSite | ProjectPerson, contact: str, key: ec.EllipticCurvePrivateKey, sealing: X25519PrivateKey | None
) -> bytes:
    body = msgspec.json.encode(
        ApplicationBody(
            name=party.name,
            organisation=party.organisation,
            role=party.role,
            contact=contact,
            key=_der(key.public_key()),
            sealing_key=b"" if sealing is None else sealing.public_key().public_bytes_raw(),
        )
    )
    signature = key.sign(with_purpose(PURPOSE, body), ALGORITHM)
    return msgspec.json.encode(_SignedBody(body=msgspec.Raw(body), signature=signature)) + b"\n"


def read_application(content: bytes) -> Application:
    """Check all of it: it comes from a stranger."""
    if len(content) > MAX_APPLICATION:
        raise ConfigError(f"the application is longer than {MAX_APPLICATION:,} bytes; make it with winnow apply")
    try:
        signed = from_json(content.strip(), _SignedBody)
        body = from_json(bytes(signed.body), ApplicationBody)
    except UnreadableError as error:
        raise ConfigError(f"not an application ({one_line(error)}); make it with winnow apply") from None
    key = _public_key(body.key)
    try:
        key.verify(signed.signature, with_purpose(PURPOSE, bytes(signed.body)), ALGORITHM)
    except InvalidSignature:
        raise ConfigError(FORGED) from None
    party = applying_party(body.name, body.organisation, body.role)
    if len(body.contact) > MAX_CONTACT or not body.contact.isprintable():
        raise ConfigError(f"the contact is longer than {MAX_CONTACT} characters, or not one line of text")
    return Application(party=party, contact=body.contact, key=key, sealing_key=_sealing_key(party, body.sealing_key))


def applying_party(name: str, organisation: str, role: str) -> ProjectSite | ProjectPerson:
    """A site where there is no role. Everything that a project file would refuse is refused."""
    described = {"name": name, "organisation": organisation}
    try:
        if role:
            return ProjectPerson.model_validate({**described, "role": role})
        return ProjectSite.model_validate(described)
    except ValidationError as error:
        first = error.errors()[0]
        if first["type"] == "string_pattern_mismatch":
            raise ConfigError(f"name: {name!r} is none; up to 64 letters, digits, dots, dashes, underscores") from None
        raise ConfigError(f"{first['loc'][0]}: {one_line(first['msg'])}") from None


def _public_key(der: bytes) -> ec.EllipticCurvePublicKey:
    try:
        key = load_der_public_key(der)
    except Exception as error:  # the library raises several kinds for what is hostile
        raise ConfigError(FORGED) from error
    if not isinstance(key, ec.EllipticCurvePublicKey) or not isinstance(key.curve, ec.SECP256R1) or _der(key) != der:
        raise ConfigError("the application's key is not an ECDSA key on P-256; make it with winnow apply")
    return key


def _sealing_key(party: ProjectSite | ProjectPerson, raw: bytes) -> X25519PublicKey | None:
    if isinstance(party, ProjectPerson):
        if raw:
            raise ConfigError("only sites have a sealing key; make the application with winnow apply")
        return None
    try:
        return X25519PublicKey.from_public_bytes(raw)
    except ValueError:
        raise ConfigError("a site's application needs a sealing key; make it with winnow apply") from None


def _der(key: ec.EllipticCurvePublicKey) -> bytes:
    return key.public_bytes(Encoding.DER, PublicFormat.SubjectPublicKeyInfo)
