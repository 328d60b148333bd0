"""A project's private certificate authority: one key, which signs certificates, kits and revocation lists."""

from dataclasses import dataclass, field
from datetime import datetime, timedelta
from ipaddress import ip_address
from pathlib import Path

import msgspec
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PublicKey
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    KeySerializationEncryption,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from winnow.deploy.trust.errors import KitError
from winnow.deploy.trust.peer_identity import PARTY_OID, SEALING_KEY_OID, PartyExtension, read_certificate
from winnow.deploy.trust.private_file_writing import PRIVATE, read_small, write_bytes_atomically
from winnow.deploy.trust.project_file import ProjectPerson, ProjectServer, ProjectSite, is_ip_address

CA_CERTIFICATE_FILE, CA_KEY_FILE = "ca.pem", "ca-key.pem"
LIFETIME = timedelta(days=3650)
VALID_FROM_MARGIN = timedelta(hours=1)
"""Certificates begin this long before they are made: TLS grants no tolerance to a clock that is behind."""


@dataclass(frozen=True, kw_only=True)
class CertificateAuthority:
    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey = field(repr=False)

    @classmethod
    def create(cls, project: str, now: datetime) -> "CertificateAuthority":
        key = ec.generate_private_key(ec.SECP256R1())
        name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"Winnow CA of {project}"[:64])])
        builder = _builder(name, name, key.public_key(), now, now + LIFETIME)
        builder = builder.add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=True), critical=True)
        builder = builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        return cls(certificate=builder.sign(key, SHA256()), key=key)

    @classmethod
    def load(cls, folder: Path, passphrase: bytes | None) -> "CertificateAuthority":
        certificate = read_certificate(read_small(folder / CA_CERTIFICATE_FILE))
        path = folder / CA_KEY_FILE
        try:
            key = load_pem_private_key(read_small(path), password=passphrase if is_encrypted(folder) else None)
        except (ValueError, TypeError) as error:
            raise KitError(f"{path} cannot be decrypted: wrong passphrase or damaged file") from error
        if not isinstance(key, ec.EllipticCurvePrivateKey) or key.public_key() != certificate.public_key():
            raise KitError(f"{path} does not match {CA_CERTIFICATE_FILE} in the same folder")
        return cls(certificate=certificate, key=key)

    def save(self, folder: Path, passphrase: bytes | None) -> None:
        """The certificate comes last: it says that the authority is complete."""
        encryption = BestAvailableEncryption(passphrase) if passphrase else NoEncryption()
        write_bytes_atomically(folder / CA_KEY_FILE, key_pem(self.key, encryption), PRIVATE)
        write_bytes_atomically(folder / CA_CERTIFICATE_FILE, self.certificate.public_bytes(Encoding.PEM))

    @property
    def fingerprint(self) -> str:
        return self.certificate.fingerprint(SHA256()).hex()

    def issue(
        self,
        party: ProjectServer | ProjectSite | ProjectPerson,
        key: ec.EllipticCurvePublicKey,
        sealing_key: X25519PublicKey | None,
        now: datetime,
        days: int,
    ) -> x509.Certificate:
        """Vouch for a party. Only servers' certificates serve as a server's in TLS, and only for their own hosts."""
        fields = [(NameOID.ORGANIZATION_NAME, party.organisation), (NameOID.COMMON_NAME, party.name)]
        subject = x509.Name([x509.NameAttribute(identifier, value) for identifier, value in fields])
        until = min(now + timedelta(days=days), self.certificate.not_valid_after_utc)
        builder = _builder(subject, self.certificate.subject, key, now, until)
        builder = builder.add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        builder = builder.add_extension(_usage(signs_certificates=False), critical=True)
        uses = [ExtendedKeyUsageOID.CLIENT_AUTH]
        if isinstance(party, ProjectServer):
            uses.append(ExtendedKeyUsageOID.SERVER_AUTH)
            builder = builder.add_extension(x509.SubjectAlternativeName(_names(party.hosts)), critical=False)
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
        own = x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key())
        builder = builder.add_extension(own, critical=False)
        said = msgspec.convert({"kind": party.kind, "role": party.role}, PartyExtension)
        builder = builder.add_extension(
            x509.UnrecognizedExtension(PARTY_OID, msgspec.json.encode(said)), critical=False
        )
        if sealing_key is not None:
            public = x509.UnrecognizedExtension(SEALING_KEY_OID, sealing_key.public_bytes_raw())
            builder = builder.add_extension(public, critical=False)
        return builder.sign(self.key, SHA256())


def is_encrypted(folder: Path) -> bool:
    return b"ENCRYPTED" in read_small(folder / CA_KEY_FILE)


def key_pem(key: ec.EllipticCurvePrivateKey, encryption: KeySerializationEncryption) -> bytes:
    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePublicKey, now: datetime, until: datetime
) -> x509.CertificateBuilder:
    return x509.CertificateBuilder(
        issuer_name=issuer,
        subject_name=subject,
        public_key=key,
        serial_number=x509.random_serial_number(),
        not_valid_before=now - VALID_FROM_MARGIN,
        not_valid_after=until,
    )


def _names(hosts: tuple[str, ...]) -> list[x509.GeneralName]:
    return [x509.IPAddress(ip_address(host)) if is_ip_address(host) else x509.DNSName(host) for host in hosts]


def _usage(*, signs_certificates: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=signs_certificates,
        crl_sign=signs_certificates,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
