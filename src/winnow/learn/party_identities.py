"""The parties of a protocol between clients, as one of them knows the others."""

from typing import Protocol

UPDATE = "update"
"""What leaves, by name."""


class PartyIdentities(Protocol):
    """Signatures of the parties, by number; and the memory that one of them has of what it let out."""

    def sign(self, party: int, message: bytes) -> bytes:
        """A party's own signature; only the party itself can have it made."""

    def sign_once(self, party: int, message: bytes, ballot: bytes) -> bytes:
        """The same, for one message a ballot: another is refused, whatever becomes of the process that asks."""

    def verify(self, party: int, message: bytes, signature: bytes) -> bool:
        """Whether this party has signed this message."""

    def name(self, party: int) -> str:
        """Who stands behind a number, said so that whoever says the same means the same party."""

    def release(self, party: int, round: int, what: str = UPDATE, note: bytes = b"", instead_of: bytes = b"") -> int:
        """How often something of a party's has left, masked or noisy, with this round's; 0 if this round's, or a later
        one's, had left before. Asking is leaving: it is noted, and with it where to, if there is a `note` of that.

        What has left with the note `instead_of` in this round may leave again, and counts once. Whoever asks so has
        made sure that what left first will never be of use to anybody.
        """

    def release_note(self, party: int, round: int) -> bytes:
        """The note with which an update of this round has left; nothing, if it has not."""
