"""JSON documents that are signed by the authority: kits' manifests and lists of revocations.

The signature covers the purpose, so that a document of one kind never passes for one of another.
"""

from typing import TypeVar

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.hashes import SHA256

from winnow.core.message_decoding import UnreadableError, from_json
from winnow.deploy.trust.errors import IdentityError

T = TypeVar("T")
ALGORITHM = ec.ECDSA(SHA256())


class SignedDocument(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What lies in the file. `body` is kept byte for byte, because the signature is over its bytes."""

    body: msgspec.Raw
    signature: bytes

    def encoded(self) -> bytes:
        return msgspec.json.encode(self) + b"\n"


def with_purpose(purpose: str, content: bytes) -> bytes:
    """What is really signed: the content, and what it is meant for."""
    return b"winnow " + purpose.encode() + b"\0" + content


def sign_document(body: object, purpose: str, key: ec.EllipticCurvePrivateKey) -> bytes:
    content = msgspec.json.encode(body)
    signature = key.sign(with_purpose(purpose, content), ALGORITHM)
    return SignedDocument(body=msgspec.Raw(content), signature=signature).encoded()


def read_document(content: bytes, purpose: str, authority: x509.Certificate, kind: type[T]) -> T:
    try:
        signed = from_json(content, SignedDocument)
    except UnreadableError as error:
        raise IdentityError(f"it is not a signed {purpose}: {error}") from error
    body = bytes(signed.body)
    if signed.encoded() != content or not is_signed(signed.signature, with_purpose(purpose, body), authority):
        raise IdentityError(f"this {purpose} was not signed by the CA or was changed after signing")
    try:
        return from_json(body, kind)
    except UnreadableError as error:
        raise IdentityError(f"this {purpose} was written by another version of Winnow: {error}") from error


def is_signed(signature: bytes, content: bytes, certificate: x509.Certificate) -> bool:
    """Whether the holder of this certificate's key signed exactly this content."""
    key = certificate.public_key()
    if not isinstance(key, ec.EllipticCurvePublicKey):
        return False
    try:
        key.verify(signature, content, ALGORITHM)
    except InvalidSignature:
        return False
    return True
