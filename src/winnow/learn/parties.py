"""The parties of a protocol between clients, as one of them knows the others."""

from typing import Protocol


class Identities(Protocol):
    """Signatures of the parties, by number; and the memory that one of them has of what it let out."""

    def sign(self, party: int, message: bytes) -> bytes:
        """A party's own signature; only the party itself can have it made."""

    def verifies(self, party: int, message: bytes, signature: bytes) -> bool:
        """Whether this party has signed this message."""

    def first_release(self, party: int, round: int) -> bool:
        """Whether a party's update of this round leaves, masked, for the first time. Asking is leaving: it is noted."""
