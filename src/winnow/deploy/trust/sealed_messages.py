"""Sealed messages between sites, which pass through the server.

The key of a message comes from an ephemeral X25519 key and the recipient's, through HKDF-SHA256; the text is encrypted
with AES-256-GCM, with the context as associated data; the sender signs context, keys and ciphertext. So only the
recipient can read it, and a message that is moved to another job, round or pair of sites cannot be opened. The text is
padded first: the length of the message reveals the length of the text to no more than an eighth.

A message can be opened as often as it is delivered. A caller that must not act twice remembers the contexts.
"""

from dataclasses import dataclass
from datetime import datetime

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from winnow.core.message_decoding import from_msgpack
from winnow.deploy.trust.errors import IdentityError, SealedMessageError
from winnow.deploy.trust.kit import Kit
from winnow.deploy.trust.peer_identity import Peer, check_certificate, read_certificate, sealing_key_of, utc_now
from winnow.deploy.trust.revocation_list import RevocationList
from winnow.deploy.trust.signing import Signature, sign, verify

PURPOSE = "sealed message"
KEY_BYTES, NONCE_BYTES = 32, 12
PADDING_MARK = b"\x80"
"""Where the text ends; zeros follow."""
PADDING_STEP = 256
"""Bytes of a padded text; a multiple of this, or of an eighth or so of the whole."""


@dataclass(frozen=True, kw_only=True)
class SealingContext:
    """Where a message belongs. Both ends must say the same, or it does not open."""

    job: str
    round: int
    sender: str
    recipient: str
    subject: str = ""
    """Tells apart the messages of one round between the same sites, for instance by their clients."""


class _Sealed(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    ephemeral: bytes
    box: bytes
    signature: Signature


def seal(
    kit: Kit, recipient_pem: bytes, context: SealingContext, plaintext: bytes, revocations: RevocationList | None = None
) -> bytes:
    """Seal a message for the site with this certificate, which is checked: the server that passed it on may lie."""
    recipient = _recipient(kit, recipient_pem, context, revocations)
    ephemeral = X25519PrivateKey.generate()
    own = ephemeral.public_key().public_bytes_raw()
    theirs = recipient.public_bytes_raw()
    key, nonce = _derive(ephemeral.exchange(recipient), own, theirs)
    box = AESGCM(key).encrypt(nonce, _padded(plaintext), _encoded(context))
    signature = sign(kit, _signed_part(context, own, theirs, box), PURPOSE)
    return msgspec.msgpack.encode(_Sealed(ephemeral=own, box=box, signature=signature))


def unseal(
    kit: Kit,
    sealed: bytes,
    context: SealingContext,
    revocations: RevocationList | None = None,
    now: datetime | None = None,
) -> tuple[Peer, bytes]:
    """Who wrote it, and what."""
    if kit.sealing_key is None:
        raise SealedMessageError(f"{kit.peer} has no sealing key; only sites have one")
    if context.recipient != kit.name:
        raise SealedMessageError(f"this sealed message is addressed to {context.recipient}, not to {kit.name}")
    try:
        message = from_msgpack(sealed, _Sealed)
        theirs = X25519PublicKey.from_public_bytes(message.ephemeral)
    except ValueError as error:
        raise SealedMessageError(f"a sealed message from {context.sender} is malformed") from error
    own = kit.sealing_key.public_key().public_bytes_raw()
    sender = _sender(kit, message, context, own, revocations or kit.revocations, now or utc_now())
    try:
        key, nonce = _derive(kit.sealing_key.exchange(theirs), message.ephemeral, own)
        padded = AESGCM(key).decrypt(nonce, message.box, _encoded(context))
    except (InvalidTag, ValueError) as error:
        raise SealedMessageError(
            f"a sealed message from {sender} cannot be decrypted: it was encrypted for another key"
        ) from error
    text = padded.rstrip(b"\0")
    if text[-1:] != PADDING_MARK:
        raise SealedMessageError(f"a sealed message from {sender} has invalid padding")
    return sender, text[:-1]


def _padded(plaintext: bytes) -> bytes:
    size = len(plaintext) + 1
    step = max(PADDING_STEP, (1 << size.bit_length()) >> 4)
    return (plaintext + PADDING_MARK).ljust(-(-size // step) * step, b"\0")


def _recipient(kit: Kit, pem: bytes, context: SealingContext, revocations: RevocationList | None) -> X25519PublicKey:
    if context.sender != kit.name:
        raise SealedMessageError(f"{kit.name} cannot seal messages as {context.sender}")
    try:
        certificate: x509.Certificate = read_certificate(pem)
        peer = check_certificate(certificate, kit.authority, utc_now())
        (revocations or kit.revocations).check(peer)
        key = sealing_key_of(certificate)
    except IdentityError as error:
        raise SealedMessageError(f"cannot seal a message for {context.recipient}: {error}") from error
    if peer.name != context.recipient:
        raise SealedMessageError(f"cannot seal a message for {context.recipient}: the certificate belongs to {peer}")
    return key


def _sender(
    kit: Kit, message: _Sealed, context: SealingContext, own: bytes, revocations: RevocationList, now: datetime
) -> Peer:
    content = _signed_part(context, message.ephemeral, own, message.box)
    try:
        sender = verify(message.signature, content, kit.authority, revocations, now, PURPOSE)
    except IdentityError as error:
        raise SealedMessageError(f"rejected a sealed message claiming to be from {context.sender}: {error}") from error
    if (sender.name, sender.kind) != (context.sender, "site"):
        raise SealedMessageError(f"a sealed message claiming to be from {context.sender} was signed by {sender}")
    return sender


def _derive(secret: bytes, ephemeral: bytes, recipient: bytes) -> tuple[bytes, bytes]:
    """Key and nonce. The secret is new for every message, so neither is ever used twice."""
    hkdf = HKDF(algorithm=SHA256(), length=KEY_BYTES + NONCE_BYTES, salt=ephemeral + recipient, info=b"winnow letter 1")
    made = hkdf.derive(secret)
    return made[:KEY_BYTES], made[KEY_BYTES:]


def _encoded(context: SealingContext) -> bytes:
    return msgspec.json.encode(context)


def _signed_part(context: SealingContext, ephemeral: bytes, recipient: bytes, box: bytes) -> bytes:
    return msgspec.msgpack.encode((_encoded(context), ephemeral, recipient, box))
