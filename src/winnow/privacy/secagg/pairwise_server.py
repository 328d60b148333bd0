"""The server's side of the pairwise protocol, without a network and without tasks.

It carries announcements, letters and signatures from client to client, adds masked vectors up as they come, and takes
off what the survivors' shares allow. At no time does it hold more than the sum and the vector that has just arrived.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from winnow.privacy.secagg import shamir
from winnow.privacy.secagg.errors import ProtocolError, too_few_error
from winnow.privacy.secagg.key_agreement import KeyPair, mask_purpose
from winnow.privacy.secagg.masks import add_mask
from winnow.privacy.secagg.modular_vectors import ModularVector, VectorGroup
from winnow.privacy.secagg.pairwise_client import commitment
from winnow.privacy.secagg.session_terms import KeyAdvertisement, KeyDirectory, SessionTerms


@dataclass(frozen=True, kw_only=True)
class SecureSum:
    """The sum of the survivors' vectors (or how often they chose which codeword), and among how many members the group
    was laid out.
    """

    total: ModularVector
    members: int
    survivors: list[int]


class PairwiseServer:
    """One session at the server."""

    def __init__(
        self, terms: SessionTerms, space: VectorGroup, announcements: Sequence[KeyAdvertisement], told: bytes = b""
    ) -> None:
        self.terms, self.space, self.told = terms, space, told
        self._announced = {each.client: each for each in announcements}
        if len(self._announced) != len(announcements):
            raise ProtocolError("a client advertised its keys twice")
        self._circle = terms.circle([*self._announced])
        self.needed = terms.survivors_needed(len(self._announced))
        if len(self._announced) < self.needed:
            raise too_few_error(len(self._announced), "client", self.needed)
        self._letters: dict[int, Mapping[int, bytes]] = {}
        self._sum: ModularVector = space.zeros()
        self._came: set[int] = set()

    @property
    def members(self) -> list[int]:
        return list(self._circle.members)

    @property
    def survivors(self) -> list[int]:
        """Those whose vectors are in the sum."""
        return sorted(self._came)

    @property
    def sharing(self) -> list[int]:
        """Those who have shared their secrets."""
        return sorted(self._letters)

    def directory(self, client: int) -> KeyDirectory:
        """What a client must know of the others."""
        neighbours = self._circle.neighbours(client)
        return KeyDirectory(members=self.members, announcements=[self._announced[each] for each in neighbours])

    def take_letters(self, client: int, letters: Mapping[int, bytes]) -> None:
        if [*sorted(letters)] != self._circle.neighbours(client):
            raise ProtocolError("its messages are not addressed to its neighbours")
        self._letters[client] = letters

    def letters_to(self, client: int) -> dict[int, bytes]:
        return {
            sender: self._letters[sender][client]
            for sender in self._circle.neighbours(client)
            if sender in self._letters
        }

    def add(self, client: int, packed: bytes) -> None:
        """Add a masked vector to the sum; what is none is refused before anything is added."""
        if client not in self._letters:
            raise ProtocolError("it has not shared its keys in this session")
        if client in self._came:
            raise ProtocolError("its vector is in the sum already")
        vector = self.space.unpack(packed)
        self.space.add(self._sum, vector)
        self._came.add(client)

    def finish(self, revealed: Mapping[int, Mapping[int, bytes]]) -> ModularVector:
        """The sum of the survivors' vectors, given what each client has revealed of the others' secrets."""
        if len(self._came) < self.needed:
            raise too_few_error(len(self._came), "survivor", self.needed)
        for member in self._letters:
            shares = {holder: own[member] for holder, own in revealed.items() if member in own}
            if member in self._came:
                seed = self._secret(member, shares, "self-mask seed")
                add_mask(self._sum, seed, self.space, sign=-1)
            else:
                self._take_off_pairs(member, KeyPair(self._secret(member, shares, "masking key")))
        return self.space.reduce(self._sum)

    def _take_off_pairs(self, gone: int, key: KeyPair) -> None:
        """The masks that survivors have in common with one who dropped out."""
        for peer in self._circle.neighbours(gone):
            if peer in self._came:
                seed = key.agree(self._announced[peer].masking, mask_purpose(gone, peer, self.told), self.terms.session)
                add_mask(self._sum, seed, self.space, sign=-1 if peer < gone else 1)

    def _secret(self, member: int, shares: Mapping[int, bytes], what: str) -> bytes:
        """A secret put together, and checked against what its owner announced.

        If the first shares do not give it, one of them may be wrong: others are tried, without each in turn.
        """
        holders = {*self._circle.holders(member)}
        needed = self.terms.shares_needed(self._circle, len(holders))
        sound = {holder: share for holder, share in shares.items() if holder in holders}
        if len(sound) < needed:
            raise ProtocolError(f"{len(sound)} shares of client {member}'s {what} are too few, {needed} are needed")
        for chosen in _choices(sorted(sound), needed):
            try:
                secret = shamir.combine({holder: sound[holder] for holder in chosen}, needed)
            except ProtocolError:
                continue
            if self._fits(member, secret, what):
                return secret
        raise ProtocolError(f"the shares of client {member}'s {what} do not fit: one of its holders sent a wrong one")

    def _fits(self, member: int, secret: bytes, what: str) -> bool:
        announced = self._announced[member]
        if what == "masking key":
            return KeyPair(secret).public == announced.masking
        return commitment(secret) == announced.commitment


def _choices(holders: Sequence[int], needed: int) -> Iterator[list[int]]:
    """The first holders that are enough; then, where there are more, without each of those in turn."""
    first = [*holders[:needed]]
    yield first
    if len(holders) > needed:
        for left_out in first:
            yield [holder for holder in first if holder != left_out] + [holders[needed]]
