"""Key agreement (X25519 and HKDF), and authenticated encryption under the agreed keys (AES-GCM)."""

import os

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey, X25519PublicKey
from cryptography.hazmat.primitives.ciphers.aead import AESGCM
from cryptography.hazmat.primitives.kdf.hkdf import HKDF

from winnow.privacy.secagg.errors import ProtocolError

KEY_BYTES = 32
NONCE_BYTES = 12


class KeyPair:
    """An X25519 key pair, made for one session and forgotten with it."""

    def __init__(self, private: bytes | None = None) -> None:
        self._key = X25519PrivateKey.generate() if private is None else X25519PrivateKey.from_private_bytes(private)
        self._exchanged: dict[bytes, bytes] = {}

    @property
    def public(self) -> bytes:
        return self._key.public_key().public_bytes_raw()

    @property
    def private(self) -> bytes:
        return self._key.private_bytes_raw()

    def agree(self, other: bytes, purpose: bytes, session: bytes) -> bytes:
        """The key that both parties derive from the exchange; a different one for each purpose."""
        if other not in self._exchanged:
            self._exchanged[other] = self._exchange(other)
        return HKDF(hashes.SHA256(), KEY_BYTES, salt=session, info=purpose).derive(self._exchanged[other])

    def _exchange(self, other: bytes) -> bytes:
        """The slow part; its result serves both directions and all purposes."""
        try:
            return self._key.exchange(X25519PublicKey.from_public_bytes(other))
        except ValueError as error:
            raise ProtocolError("an invalid public key") from error


def check_public(key: bytes) -> None:
    """Refuse an invalid public key, and one of low order, with which every party would agree on the same key."""
    KeyPair().agree(key, b"winnow check", b"")


def mask_purpose(one: int, other: int, inputs_digest: bytes) -> bytes:
    """The same at both clients if they received the same session inputs; otherwise their masks do not cancel."""
    return b"winnow mask %d %d " % (min(one, other), max(one, other)) + inputs_digest


def peer_message_purpose(sender: int, addressee: int, roster: bytes) -> bytes:
    """Each direction has its own key, so that a message cannot be reflected to its sender; and each roster has one, so
    that a message decrypts only if both clients know the same members.
    """
    return b"winnow shares %d %d " % (sender, addressee) + roster


def seal_with(key: bytes, plain: bytes, about: bytes) -> bytes:
    """Encrypt and authenticate; `about` is authenticated too."""
    nonce = os.urandom(NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, plain, about)


def unseal_with(key: bytes, sealed: bytes, about: bytes) -> bytes:
    try:
        return AESGCM(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], about)
    except (InvalidTag, ValueError) as error:
        raise ProtocolError("a message that cannot be decrypted") from error
