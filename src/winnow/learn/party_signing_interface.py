"""Signatures of the parties of a protocol between clients, and records of what a party has released."""

from typing import Protocol

UPDATE = "update"
"""The kind of a release: an update."""


class PartyIdentities(Protocol):
    """Signs and verifies for parties, which are numbered, and records their releases."""

    def sign(self, party: int, message: bytes) -> bytes:
        """Sign as this party; only the party itself can."""

    def sign_once(self, party: int, message: bytes, ballot: bytes) -> bytes:
        """Sign at most one message per ballot: another is refused, even after a restart of the process."""

    def verify(self, party: int, message: bytes, signature: bytes) -> bool:
        """Whether the signature is this party's, under this message."""

    def name(self, party: int) -> str:
        """The party's name, which unlike its number means the same party to everyone."""

    def release(self, party: int, round: int, what: str = UPDATE, note: bytes = b"", instead_of: bytes = b"") -> int:
        """Record that something of a party (`what`) is released in this round, masked or noisy, with a `note` about it.
        Returns how often this has happened, this time included; 0 if it must not be released, because it already was
        in this round or a later one.

        A release of this round with the note `instead_of` is replaced, and both count once. The caller has made sure
        that the first one can never be used.
        """

    def release_note(self, party: int, round: int) -> bytes:
        """The note with which an update of this round was released; empty if none was."""
