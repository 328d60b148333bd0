"""The parties of a protocol between clients, as one of them knows the others."""

from typing import Protocol

UPDATE = "update"
"""What leaves, by name."""


class Identities(Protocol):
    """Signatures of the parties, by number; and the memory that one of them has of what it let out."""

    def sign(self, party: int, message: bytes) -> bytes:
        """A party's own signature; only the party itself can have it made."""

    def verifies(self, party: int, message: bytes, signature: bytes) -> bool:
        """Whether this party has signed this message."""

    def name(self, party: int) -> str:
        """Who stands behind a number, said so that whoever says the same means the same party."""

    def release(self, party: int, round: int, what: str = UPDATE) -> int:
        """How often something of a party's has left, masked or noisy, with this round's; 0 if this round's, or a later
        one's, had left before. Asking is leaving: it is noted.
        """
