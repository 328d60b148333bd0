"""A client's side of the pairwise protocol (Bonawitz et al., 2017, figure 4), without a network and without tasks.

Five steps, each answered once: advertise keys; share keys; mask the input; confirm the survivors (consistency check);
reveal shares (unmasking). A step out of order is refused, and a client that refuses has revealed nothing.
"""

import hashlib
import os
from collections.abc import Mapping, Sequence
from itertools import islice

from msgspec.structs import replace

from winnow.learn.party_signing_interface import PartyIdentities
from winnow.privacy.secagg import shamir
from winnow.privacy.secagg.errors import ProtocolError, too_few_error
from winnow.privacy.secagg.interrupted_session import SessionRecord, ballot
from winnow.privacy.secagg.key_agreement import KeyPair, mask_purpose, peer_message_purpose, seal_with, unseal_with
from winnow.privacy.secagg.masks import SEED_BYTES, add_mask
from winnow.privacy.secagg.modular_vectors import ModularVector, VectorGroup
from winnow.privacy.secagg.session_terms import (
    KeyAdvertisement,
    KeyDirectory,
    SessionTerms,
    roster_digest,
    survivors_statement,
)


class PairwiseClient:
    """One client in one session. Its secrets exist only in this object's memory."""

    def __init__(self, client: int, terms: SessionTerms, identities: PartyIdentities) -> None:
        self.client, self.terms, self._identities = client, terms, identities
        self._sealing, self._masking = KeyPair(), KeyPair()
        self._seed = os.urandom(SEED_BYTES)
        self.members: list[int] = []
        self._roster = b""
        self._inputs_digest = b""
        self._peers: dict[int, KeyAdvertisement] = {}
        self._encrypted_shares: dict[int, bytes] | None = None
        self._own_shares = (b"", b"")
        self._survivors: list[int] | None = None
        self._revealed = False

    def advertise_keys(self) -> KeyAdvertisement:
        """The public keys of this session, signed, and a commitment to the seed of the self-mask."""
        unsigned = KeyAdvertisement(
            client=self.client,
            sealing=self._sealing.public,
            masking=self._masking.public,
            commitment=commitment(self._seed),
        )
        return replace(unsigned, signature=self._identities.sign(self.client, unsigned.signed(self.terms)))

    def share_keys(self, directory: KeyDirectory) -> dict[int, bytes]:
        """For each neighbour a share of the self-mask seed and one of the masking key, encrypted."""
        if self.members:
            raise ProtocolError("this client has already shared its keys in this session")
        members = self._checked_members(directory.members)
        graph = self.terms.masking_graph(members)
        self._peers = self._checked_peers(directory, graph.neighbours(self.client))
        self._roster = roster_digest(self.terms, members, [self._identities.name(each) for each in members])
        self.members = members
        holders = graph.holders(self.client)
        needed = self.terms.shares_needed(graph, len(holders))
        seeds, keys = (shamir.split(secret, holders, needed) for secret in (self._seed, self._masking.private))
        self._own_shares = (seeds[self.client], keys[self.client])
        return {peer: self._seal(peer, seeds[peer] + keys[peer]) for peer in self._peers}

    def mask(
        self,
        encrypted_shares: Mapping[int, bytes],
        vector: ModularVector,
        group: VectorGroup,
        inputs_digest: bytes = b"",
    ) -> bytes:
        """The vector under the self-mask and one pairwise mask with each neighbour who sent shares; packed.

        Masks depend on the digest of the session inputs. A server that sends clients different inputs (another model,
        other scales) to make one of them stand out gets a sum whose masks do not cancel. It gets no shares either,
        since survivors sign the digest.

        Shares are decrypted when they are revealed. If some cannot be, and the sum cannot be unmasked for lack of them,
        the server's error names the client whose shares are missing.
        """
        if not self.members:
            raise ProtocolError("this client has not shared its keys in this session yet")
        if self._encrypted_shares is not None:
            raise ProtocolError("this client has already masked a vector in this session")
        strangers = encrypted_shares.keys() - self._peers.keys()
        if strangers:
            raise ProtocolError(f"a message from client {min(strangers)}, who shares no masks with this one")
        graph = self.terms.masking_graph(self.members)
        needed = self.terms.shares_needed(graph, len(self._peers) + 1)
        if len(encrypted_shares) + 1 < needed:
            holders = len(encrypted_shares) + 1
            raise ProtocolError(f"{holders} clients hold shares of this one's secrets, and it takes {needed}")
        group.check(vector)
        self._encrypted_shares, self._inputs_digest = dict(encrypted_shares), inputs_digest
        total = [words.copy() for words in vector]
        add_mask(total, self._seed, group, sign=1)
        for peer in encrypted_shares:
            add_mask(total, self._pairwise_seed(peer, inputs_digest), group, sign=1 if self.client < peer else -1)
        return group.pack(group.reduce(total))

    @property
    def session_record(self) -> SessionRecord:
        """The session that this client's masked vector belongs to."""
        return SessionRecord(session=self.terms.session, members=self.members, roster=self._roster)

    @property
    def has_confirmed(self) -> bool:
        return self._survivors is not None

    def confirm(self, survivors: Sequence[int]) -> bytes:
        """A signature under the list of survivors, those whose vectors arrived. A second list is refused."""
        if self._encrypted_shares is None:
            raise ProtocolError("no vector was masked in this session yet")
        ordered = sorted(survivors)
        if self._survivors is not None and ordered != self._survivors:
            raise ProtocolError("a different survivor list was already confirmed in this session")
        if len(set(ordered)) != len(ordered) or not {*ordered} <= {*self.members} or self.client not in ordered:
            raise ProtocolError("the survivor list has a non-member or a duplicate, or lacks this client")
        if silent := {*ordered} & {*self._peers} - self._encrypted_shares.keys():
            raise ProtocolError(f"client {min(silent)} is called a survivor and has shared no secrets")
        needed = self.terms.survivors_needed(len(self.members))
        if len(ordered) < needed:
            raise too_few_error(len(ordered), "survivor", needed)
        if self.terms.masking_graph(self.members).may_be_disconnected(ordered):
            raise ProtocolError(
                "too many consecutive neighbours are listed as dropouts; the ring of survivors may be disconnected"
            )
        self._survivors = ordered
        return self._identities.sign_once(self.client, self._to_sign(ordered), ballot(self.terms))

    def reveal(self, signatures: Mapping[int, bytes]) -> dict[int, bytes]:
        """For each neighbour a share: of the self-mask seed of a survivor, of the masking key of one who dropped out.

        Never both. Enough members must have signed the same survivors as this client, and with them the same members
        and session inputs.
        """
        if self._survivors is None or self._encrypted_shares is None:
            raise ProtocolError("no list of survivors was confirmed in this session yet")
        if self._revealed:
            raise ProtocolError("shares were already revealed in this session")
        self._check_signatures(signatures)
        self._revealed = True
        survivors, found = {*self._survivors}, {self.client: self._own_shares[0]}
        for peer, encrypted in self._encrypted_shares.items():
            shares = self._decrypted(peer, encrypted)
            if shares is not None:
                found[peer] = shares[0] if peer in survivors else shares[1]
        return found

    def _checked_members(self, members: Sequence[int]) -> list[int]:
        ordered = sorted(members)
        if len(set(ordered)) != len(ordered) or self.client not in ordered or ordered[0] < 0:
            raise ProtocolError("the member list has a duplicate, or lacks this client")
        if len(ordered) < self.terms.min_clients:
            raise too_few_error(len(ordered), "member", self.terms.min_clients)
        return ordered

    def _checked_peers(self, directory: KeyDirectory, neighbours: Sequence[int]) -> dict[int, KeyAdvertisement]:
        peers = {each.client: each for each in directory.advertisements if each.client != self.client}
        if [*sorted(peers)] != [*neighbours]:
            raise ProtocolError("the key advertisements are not those of this client's neighbours")
        for peer, advertised in peers.items():
            signed = advertised.signed(self.terms)
            if not self._identities.verify(peer, signed, advertised.signature):
                raise ProtocolError(f"client {peer} did not sign its key advertisement")
        return peers

    def _check_signatures(self, signatures: Mapping[int, bytes]) -> None:
        assert self._survivors is not None
        signed = self._to_sign(self._survivors)
        needed = self.terms.survivors_needed(len(self.members))
        eligible = (each for each in self._survivors if each in signatures)
        checked = (each for each in eligible if self._identities.verify(each, signed, signatures[each]))
        sound = len([*islice(checked, needed)])
        if sound < needed:
            raise ProtocolError(f"{sound} members have signed this client's list of survivors, {needed} are needed")

    def _to_sign(self, survivors: Sequence[int]) -> bytes:
        return survivors_statement(self.terms, self._roster, self._inputs_digest, survivors)

    def _seal(self, peer: int, shares: bytes) -> bytes:
        purpose = peer_message_purpose(self.client, peer, self._roster)
        return seal_with(self._agreed(peer, self._sealing, self._peers[peer].sealing, purpose), shares, purpose)

    def _decrypted(self, peer: int, encrypted: bytes) -> tuple[bytes, bytes] | None:
        """The two shares of a message; None if it cannot be decrypted."""
        purpose = peer_message_purpose(peer, self.client, self._roster)
        try:
            plain = unseal_with(
                self._agreed(peer, self._sealing, self._peers[peer].sealing, purpose), encrypted, purpose
            )
        except ProtocolError:
            return None
        return (plain[: shamir.SHARE_BYTES], plain[shamir.SHARE_BYTES :])

    def _pairwise_seed(self, peer: int, inputs_digest: bytes) -> bytes:
        """The seed of the mask that this client shares with the peer."""
        purpose = mask_purpose(self.client, peer, inputs_digest)
        return self._agreed(peer, self._masking, self._peers[peer].masking, purpose)

    def _agreed(self, peer: int, own: KeyPair, theirs: bytes, purpose: bytes) -> bytes:
        try:
            return own.agree(theirs, purpose, self.terms.session)
        except ProtocolError as error:
            raise ProtocolError(f"client {peer} advertised {error}") from error


def commitment(seed: bytes) -> bytes:
    return hashlib.sha256(b"winnow seed" + seed).digest()
