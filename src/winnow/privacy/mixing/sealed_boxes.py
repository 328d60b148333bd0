"""Boxes that only the holder of a key opens: an X25519 key of its own for each, HKDF-SHA256, AES-256-GCM.

Boxes of texts of one length have one length, and two boxes of the same text have nothing in common.
"""

from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.secagg.key_agreement import KEY_BYTES, NONCE_BYTES, KeyPair, seal_with, unseal_with

TAG_BYTES = 16
OVERHEAD = KEY_BYTES + NONCE_BYTES + TAG_BYTES
"""Bytes of a box besides its text."""
PURPOSE = b"winnow box 1"


def seal_box(recipient: bytes, text: bytes, about: bytes) -> bytes:
    """For the holder of this public key; `about` must be the same when it is opened."""
    own = KeyPair()
    key = own.agree(recipient, PURPOSE, own.public + recipient)
    return own.public + seal_with(key, text, about)


def open_box(recipient: KeyPair, box: bytes, about: bytes) -> bytes:
    """ProtocolError if it is not for this key, or was changed."""
    sender, sealed = box[:KEY_BYTES], box[KEY_BYTES:]
    if len(box) < OVERHEAD:
        raise ProtocolError("a box is cut off")
    return unseal_with(recipient.agree(sender, PURPOSE, sender + recipient.public), sealed, about)
