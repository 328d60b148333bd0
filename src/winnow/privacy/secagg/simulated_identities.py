"""Signatures in a simulation.

In a deployment a party signs with the key of its certificate. In a simulation one key, which exists as long as the
process, signs for all parties.
"""

from functools import cache, lru_cache

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from winnow.learn.party_signing_interface import UPDATE, PartyIdentities

KEEPER_PARTY = -1
"""The number under which the mask keeper signs; clients have numbers from 0 on."""


class SimulatedIdentities:
    """Signs for all parties of a simulation with one key; the signer's number is part of the signed content."""

    def __init__(self) -> None:
        self._key = Ed25519PrivateKey.generate()
        self._public = self._key.public_key()

    def sign(self, party: int, message: bytes) -> bytes:
        return self._key.sign(_whose(party, message))

    def sign_once(self, party: int, message: bytes, ballot: bytes) -> bytes:
        return self.sign(party, message)

    def verify(self, party: int, message: bytes, signature: bytes) -> bool:
        try:
            self._public.verify(signature, _whose(party, message))
        except InvalidSignature:
            return False
        return True

    def name(self, party: int) -> str:
        return str(party)

    def release(self, party: int, round: int, what: str = UPDATE, note: bytes = b"", instead_of: bytes = b"") -> int:
        """Nothing is recorded: within one process, sites remember what they released."""
        return 1

    def release_note(self, party: int, round: int) -> bytes:
        return b""


class CachedIdentities:
    """Verifies each signature once for all parties in one process."""

    def __init__(self, identities: PartyIdentities) -> None:
        self.sign = identities.sign
        self.sign_once = identities.sign_once
        self.name = identities.name
        self.release = identities.release
        self.release_note = identities.release_note
        self.verify = lru_cache(maxsize=1 << 16)(identities.verify)


def _whose(party: int, message: bytes) -> bytes:
    return party.to_bytes(8, "big", signed=True) + message


@cache
def simulated_identities() -> PartyIdentities:
    """The identities of all simulations in this process."""
    return CachedIdentities(SimulatedIdentities())
