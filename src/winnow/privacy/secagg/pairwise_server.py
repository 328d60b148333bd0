"""The server's side of the pairwise protocol, without a network and without tasks.

It relays key advertisements, encrypted shares and signatures between clients, adds masked vectors to the sum as they
arrive, and removes the masks whose seeds the revealed shares reconstruct. It never holds more than the sum and the
vector that has just arrived.
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
    """The sum of the survivors' vectors (or histograms of their codewords), and the number of members for which the
    group was sized.
    """

    total: ModularVector
    members: int
    survivors: list[int]


class PairwiseServer:
    """One session at the server."""

    def __init__(
        self,
        terms: SessionTerms,
        group: VectorGroup,
        advertisements: Sequence[KeyAdvertisement],
        inputs_digest: bytes = b"",
    ) -> None:
        self.terms, self.group, self.inputs_digest = terms, group, inputs_digest
        self._advertised = {each.client: each for each in advertisements}
        if len(self._advertised) != len(advertisements):
            raise ProtocolError("a client advertised its keys twice")
        self._graph = terms.masking_graph([*self._advertised])
        self.needed = terms.survivors_needed(len(self._advertised))
        if len(self._advertised) < self.needed:
            raise too_few_error(len(self._advertised), "client", self.needed)
        self._encrypted_shares: dict[int, Mapping[int, bytes]] = {}
        self._sum: ModularVector = group.zeros()
        self._summed: set[int] = set()

    @property
    def members(self) -> list[int]:
        return list(self._graph.members)

    @property
    def survivors(self) -> list[int]:
        """Those whose vectors are in the sum."""
        return sorted(self._summed)

    @property
    def sharers(self) -> list[int]:
        """Those who have shared their keys."""
        return sorted(self._encrypted_shares)

    def directory(self, client: int) -> KeyDirectory:
        """The members, and the keys of this client's neighbours."""
        neighbours = self._graph.neighbours(client)
        return KeyDirectory(members=self.members, advertisements=[self._advertised[each] for each in neighbours])

    def add_encrypted_shares(self, client: int, encrypted_shares: Mapping[int, bytes]) -> None:
        if [*sorted(encrypted_shares)] != self._graph.neighbours(client):
            raise ProtocolError("its messages are not addressed to its neighbours")
        self._encrypted_shares[client] = encrypted_shares

    def encrypted_shares_to(self, client: int) -> dict[int, bytes]:
        return {
            sender: self._encrypted_shares[sender][client]
            for sender in self._graph.neighbours(client)
            if sender in self._encrypted_shares
        }

    def add(self, client: int, packed: bytes) -> None:
        """Add a masked vector to the sum; an invalid one is refused before anything is added."""
        if client not in self._encrypted_shares:
            raise ProtocolError("it has not shared its keys in this session")
        if client in self._summed:
            raise ProtocolError("its vector is in the sum already")
        vector = self.group.unpack(packed)
        self.group.add(self._sum, vector)
        self._summed.add(client)

    def finish(self, revealed: Mapping[int, Mapping[int, bytes]]) -> ModularVector:
        """The sum of the survivors' vectors, unmasked with the shares that each client revealed."""
        if len(self._summed) < self.needed:
            raise too_few_error(len(self._summed), "survivor", self.needed)
        for member in self._encrypted_shares:
            shares = {holder: own[member] for holder, own in revealed.items() if member in own}
            if member in self._summed:
                seed = self._secret(member, shares, "self-mask seed")
                add_mask(self._sum, seed, self.group, sign=-1)
            else:
                self._remove_pairwise_masks(member, KeyPair(self._secret(member, shares, "masking key")))
        return self.group.reduce(self._sum)

    def _remove_pairwise_masks(self, dropout: int, key: KeyPair) -> None:
        """Those that survivors share with a client that dropped out."""
        for peer in self._graph.neighbours(dropout):
            if peer in self._summed:
                purpose = mask_purpose(dropout, peer, self.inputs_digest)
                seed = key.agree(self._advertised[peer].masking, purpose, self.terms.session)
                add_mask(self._sum, seed, self.group, sign=-1 if peer < dropout else 1)

    def _secret(self, member: int, shares: Mapping[int, bytes], what: str) -> bytes:
        """A secret, reconstructed and checked against its owner's key advertisement.

        If the first shares do not give it, one of them may be wrong: each is left out in turn.
        """
        holders = {*self._graph.holders(member)}
        needed = self.terms.shares_needed(self._graph, len(holders))
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
        advertised = self._advertised[member]
        if what == "masking key":
            return KeyPair(secret).public == advertised.masking
        return commitment(secret) == advertised.commitment


def _choices(holders: Sequence[int], needed: int) -> Iterator[list[int]]:
    """The first `needed` holders; then, if there is one more, those with each of them replaced by it in turn."""
    first = [*holders[:needed]]
    yield first
    if len(holders) > needed:
        for left_out in first:
            yield [holder for holder in first if holder != left_out] + [holders[needed]]
