"""Who vouches for what a client announces.

In deployment a party signs with the key of its certificate. In a simulation one authority stands for all certificates:
it vouches for every client, and its key lives as long as the process.
"""

from functools import cache, lru_cache

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from winnow.learn.party_identities import UPDATE, PartyIdentities

KEEPER_PARTY = -1
"""The number under which the mask keeper signs; clients have numbers from 0 on."""


class SimulatedIdentities:
    """Signs for all parties of a simulation with one key; who signed is part of what is signed."""

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
        """A simulation's sites remember for themselves, and nobody makes them forget."""
        return 1

    def release_note(self, party: int, round: int) -> bytes:
        return b""


class CachedIdentities:
    """Where all parties are in one process, a signature that one of them has checked need not be checked again."""

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
    """The authority of the simulations in this process."""
    return CachedIdentities(SimulatedIdentities())
