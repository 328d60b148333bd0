"""Who somebody is, by their certificate.

One private authority vouches for every party of a project directly; there are no chains. A certificate's subject holds
the party's name and organisation. Two extensions of our own hold the rest: what kind of party it is and in which role,
and a site's public key for sealed messages.
"""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Literal, TypeAlias

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature, UnsupportedAlgorithm
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from cryptography.utils import CryptographyDeprecationWarning
from cryptography.x509.oid import NameOID

from winnow.core.message_decoding import from_json
from winnow.deploy.trust.errors import IdentityError

PartyKind: TypeAlias = Literal["server", "site", "person"]
Role: TypeAlias = Literal["admin", "lead", "member", "org-admin"]

PARTY_OID = x509.ObjectIdentifier("2.25.139685110296411941166460740342245537437.1")
SEALING_KEY_OID = x509.ObjectIdentifier("2.25.139685110296411941166460740342245537437.2")
SKEW = timedelta(minutes=5)
"""How far the clocks of two parties may disagree. TLS knows no tolerance, so certificates begin an hour early."""


# A serial number that is not positive is no more than warned of by this version of the library: refuse it already.
warnings.filterwarnings("error", message="Parsed a serial number", category=CryptographyDeprecationWarning)


def utc_now() -> datetime:
    return datetime.now(UTC)


class PartyExtension(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the extension says: the part of an identity that has no field of its own in a certificate."""

    kind: PartyKind
    role: Role | Literal[""] = ""


@dataclass(frozen=True, kw_only=True)
class Peer:
    """A party, as its certificate names it."""

    name: str
    kind: PartyKind
    organisation: str
    role: str
    """Of a person; empty for servers and sites."""
    serial: int

    @classmethod
    def of(cls, certificate: x509.Certificate) -> "Peer":
        """Read a certificate, without asking whether it is to be believed: `check_certificate` does."""
        try:
            party = from_json(_extension(certificate, PARTY_OID), PartyExtension)
            return cls(
                name=_subject(certificate, NameOID.COMMON_NAME),
                kind=party.kind,
                organisation=_subject(certificate, NameOID.ORGANIZATION_NAME),
                role=party.role,
                serial=certificate.serial_number,
            )
        except (ValueError, x509.ExtensionNotFound) as error:
            raise IdentityError("the certificate does not identify a party of a Winnow project") from error

    @classmethod
    def of_pem(cls, pem: bytes) -> "Peer":
        return cls.of(read_certificate(pem))

    def __str__(self) -> str:
        return f"{self.role or self.kind} {self.name} of {self.organisation}"


@lru_cache(maxsize=1024)
def read_certificate(pem: bytes) -> x509.Certificate:
    """Read all of it now: the parts of a certificate are parsed when they are asked for, and may be hostile."""
    try:
        certificate = x509.load_pem_x509_certificate(pem)
        for part in ("extensions", "subject", "issuer", "not_valid_before_utc", "not_valid_after_utc"):
            getattr(certificate, part)
        certificate.public_key()
    except Exception as error:  # the library raises a dozen kinds for what is hostile, not all of them documented
        raise IdentityError("not a valid certificate in PEM format") from error
    return certificate


def check_certificate(certificate: x509.Certificate, authority: x509.Certificate, now: datetime) -> Peer:
    """The party, if the authority vouches for it at this time; `SKEW` is granted at both ends."""
    peer = Peer.of(certificate)
    try:
        _check_issuer(certificate, authority)
    except (InvalidSignature, UnsupportedAlgorithm, ValueError, TypeError) as error:
        raise IdentityError(f"the certificate of {peer} was not issued by the CA of this project") from error
    begins, ends = certificate.not_valid_before_utc, certificate.not_valid_after_utc
    if now + SKEW < begins:
        raise IdentityError(f"the certificate of {peer} is not valid before {begins:%Y-%m-%d %H:%M}; check the clock")
    if now - SKEW > ends:
        raise IdentityError(f"the certificate of {peer} expired on {ends:%Y-%m-%d}; renew it")
    return peer


@lru_cache(maxsize=1024)
def _check_issuer(certificate: x509.Certificate, authority: x509.Certificate) -> None:
    """Raises if the authority did not sign it. That it did stays true, so it is worked out once."""
    certificate.verify_directly_issued_by(authority)


def peer_identifier(authority: x509.Certificate, now: Callable[[], datetime] = utc_now) -> Callable[[bytes], Peer]:
    """Who holds a certificate (PEM), asked at every request: a connection may outlive the certificate it began with."""

    def recognise(pem: bytes) -> Peer:
        return check_certificate(read_certificate(pem), authority, now())

    return recognise


def sealing_key_of(certificate: x509.Certificate) -> X25519PublicKey:
    """The key to seal messages for this party with."""
    try:
        return X25519PublicKey.from_public_bytes(_extension(certificate, SEALING_KEY_OID))
    except (x509.ExtensionNotFound, ValueError) as error:
        raise IdentityError(f"{Peer.of(certificate)} has no sealing key; only sites have one") from error


def _extension(certificate: x509.Certificate, identifier: x509.ObjectIdentifier) -> bytes:
    value = certificate.extensions.get_extension_for_oid(identifier).value
    assert isinstance(value, x509.UnrecognizedExtension)
    return value.value


def _subject(certificate: x509.Certificate, identifier: x509.ObjectIdentifier) -> str:
    """A field that must be there once."""
    [attribute] = certificate.subject.get_attributes_for_oid(identifier)
    return str(attribute.value)
