"""Keys that two parties agree upon without meeting, and letters that only the addressee can open."""

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
        """A key that the other's private and this public key give as well; one for each purpose."""
        if other not in self._exchanged:
            self._exchanged[other] = self._exchange(other)
        return HKDF(hashes.SHA256(), KEY_BYTES, salt=session, info=purpose).derive(self._exchanged[other])

    def _exchange(self, other: bytes) -> bytes:
        """What takes most of the time, and is the same for letters in both directions."""
        try:
            return self._key.exchange(X25519PublicKey.from_public_bytes(other))
        except ValueError as error:
            raise ProtocolError("an invalid public key") from error


def check_public(key: bytes) -> None:
    """Refuse what is no public key, or one with which everybody would agree upon the same."""
    KeyPair().agree(key, b"winnow check", b"")


def mask_purpose(one: int, other: int, told: bytes) -> bytes:
    """The same from both ends, if both were told the same; otherwise their masks do not cancel."""
    return b"winnow mask %d %d " % (min(one, other), max(one, other)) + told


def peer_message_purpose(sender: int, addressee: int, roster: bytes) -> bytes:
    """Each direction has a key of its own, so a letter cannot be returned to its sender; and so has each roster, so
    a letter opens only where the addressee knows the same members as the sender.
    """
    return b"winnow letter %d %d " % (sender, addressee) + roster


def seal(key: bytes, plain: bytes, about: bytes) -> bytes:
    """Encrypted and authenticated, together with what it is about."""
    nonce = os.urandom(NONCE_BYTES)
    return nonce + AESGCM(key).encrypt(nonce, plain, about)


def unseal(key: bytes, sealed: bytes, about: bytes) -> bytes:
    try:
        return AESGCM(key).decrypt(sealed[:NONCE_BYTES], sealed[NONCE_BYTES:], about)
    except (InvalidTag, ValueError) as error:
        raise ProtocolError("a message that cannot be decrypted") from error
