"""The mask keeper: a party of its own that holds the seeds of all masks and tells sums of masks only.

A client masks its vector with one seed and seals that seed to the keeper; the server carries it unread. The server adds
up the masked vectors, and asks the keeper, once a session, for the sum of the survivors' masks. The keeper sees weights
but no vector, the server no seed: only both together could see an update. (Under product quantisation it does see
vectors, of codewords' numbers, for it counts them: see `indexing`.) In the paper this stands in a trusted enclave
(section 3.1, figure 1).
"""

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import islice
from typing import Protocol

import numpy as np
from msgspec import Struct
from msgspec.structs import replace

from winnow.learn.party_identities import PartyIdentities
from winnow.privacy.secagg.errors import ProtocolError, too_few_error
from winnow.privacy.secagg.key_agreement import KeyPair, seal, unseal
from winnow.privacy.secagg.masks import SEED_BYTES, add_mask
from winnow.privacy.secagg.modular_vectors import VectorGroup
from winnow.privacy.secagg.secure_indexing import histograms, write_histograms
from winnow.privacy.secagg.session_inputs import check_weights
from winnow.privacy.secagg.session_terms import SessionTerms, read, write
from winnow.privacy.secagg.simulated_identities import KEEPER_PARTY, simulated_identities

MAX_OPEN_SESSIONS = 8
"""So many sessions are open at a time; the keys and seeds of older ones are forgotten."""


class KeeperKey(Struct, frozen=True):
    """The key that the seeds of a session are sealed to, signed by the keeper."""

    public: bytes
    signature: bytes


class SeedDeposit(Struct, frozen=True, kw_only=True):
    """A client's seed for a session, among so many members; sealed to the keeper and signed by the client."""

    client: int
    sender: bytes
    """The public key of a pair made for this letter."""
    sealed: bytes
    signature: bytes = b""

    def signed(self, terms: SessionTerms) -> bytes:
        return terms.naming("deposit", self.client, self.sender, self.sealed)


class DepositContents(Struct, frozen=True, kw_only=True):
    """What a deposit holds: the seed, how many members the client was told of, and the digest of all it was told; what
    the client itself counts; and a digest of the group that its vector lies in. The server says in which group it wants
    the sum, and in another than the clients' the same masks would add up to something that tells more than their sum.

    If the vector has assignments to codewords, their digest too, under the mask: words can be shifted on their way, and
    what is counted (unlike what is summed) would then tell more.
    """

    seed: bytes
    members: int
    told: bytes
    weight: float
    space: bytes
    assigned: bytes = b""


class KeeperInterface(Protocol):
    """What the server may ask of the keeper, wherever it runs."""

    def key(self, terms: SessionTerms) -> KeeperKey:
        """The key for a session, which is open from now on."""

    def deposit(self, terms: SessionTerms, deposit: SeedDeposit) -> None:
        """Take a client's sealed seed."""

    def total(self, terms: SessionTerms, survivors: Sequence[int], space: VectorGroup) -> bytes:
        """The sum of the survivors' masks, packed."""

    def histograms(self, terms: SessionTerms, masked: Mapping[int, bytes], space: VectorGroup, indexed: int) -> bytes:
        """How often the survivors chose which codeword (secure indexing), given their masked assignments."""


class MaskKeeper:
    """The keeper itself. `threshold`, `min_clients` and `max_weight_share` are its own, whatever the server says.

    Every session has a key pair of its own, which is forgotten with it. So deposits of a session that is over cannot be
    opened again, however many other sessions a server has opened in between.
    """

    def __init__(
        self, identities: PartyIdentities, *, threshold: float, min_clients: int, max_weight_share: float
    ) -> None:
        self._identities, self._threshold, self._min_clients = identities, threshold, min_clients
        self._max_weight_share = max_weight_share
        self._open: OrderedDict[bytes, _Session] = OrderedDict()

    def key(self, terms: SessionTerms) -> KeeperKey:
        session = self._open.setdefault(terms.session, _Session())
        while len(self._open) > MAX_OPEN_SESSIONS:
            self._open.popitem(last=False)
        public = session.pair.public
        return KeeperKey(public, self._identities.sign(KEEPER_PARTY, signed_keeper_key(terms, public)))

    def deposit(self, terms: SessionTerms, deposit: SeedDeposit) -> None:
        session = self._session(terms)
        if not self._identities.verify(deposit.client, deposit.signed(terms), deposit.signature):
            raise ProtocolError(f"the deposit of client {deposit.client} is not signed by it")
        key = session.pair.agree(deposit.sender, _purpose(deposit.client), terms.session)
        contents = read(unseal(key, deposit.sealed, _purpose(deposit.client)), DepositContents)
        if len(contents.seed) != SEED_BYTES or not 0 < contents.weight <= 1:
            raise ProtocolError(f"the deposit of client {deposit.client} holds no seed, or no weight")
        session.take(deposit.client, contents)

    def total(self, terms: SessionTerms, survivors: Sequence[int], space: VectorGroup) -> bytes:
        own = replace(terms, threshold=self._threshold, min_clients=self._min_clients)
        return self._session(terms).total(own, sorted(survivors), space, self._max_weight_share)

    def histograms(self, terms: SessionTerms, masked: Mapping[int, bytes], space: VectorGroup, indexed: int) -> bytes:
        return self._session(terms).histograms(masked, space, indexed)

    def _session(self, terms: SessionTerms) -> "_Session":
        if terms.session not in self._open:
            raise ProtocolError("the session does not exist, or it has ended and its key and seeds were deleted")
        return self._open[terms.session]


class _Session:
    def __init__(self) -> None:
        self.pair = KeyPair()
        self._deposited: dict[int, DepositContents] = {}
        self._counted = False
        self._asked: tuple[list[int], VectorGroup] | None = None

    def take(self, client: int, contents: DepositContents) -> None:
        if client in self._deposited:
            raise ProtocolError(f"client {client} has deposited a seed before in this session")
        if any(_common(contents) != _common(other) for other in islice(self._deposited.values(), 1)):
            raise ProtocolError("the clients of this session received different inputs")
        self._deposited[client] = contents

    def total(self, terms: SessionTerms, survivors: list[int], space: VectorGroup, max_weight_share: float) -> bytes:
        if self._asked not in (None, (survivors, space)):
            raise ProtocolError("a different sum of this session was already released")
        if len({*survivors}) != len(survivors) or not {*survivors} <= self._deposited.keys():
            raise ProtocolError("the survivor list has a duplicate, or a client that deposited no seed")
        members, _, sealed = _common(self._deposited[survivors[0]]) if survivors else (0, b"", b"")
        needed = terms.survivors_needed(members)
        if len(survivors) < needed:
            raise too_few_error(len(survivors), "survivor", needed)
        if group_digest(space) != sealed:
            raise ProtocolError("the request names a different group than the clients' vectors use")
        check_weights(np.array([self._deposited[client].weight for client in survivors]), max_weight_share)
        self._asked = (survivors, space)
        masks = space.zeros()
        for client in survivors:
            add_mask(masks, self._deposited[client].seed, space, sign=1)
        return space.pack(space.reduce(masks))

    def histograms(self, masked: Mapping[int, bytes], space: VectorGroup, indexed: int) -> bytes:
        """Once a session, and over the survivors of its sum: two histograms would differ by what somebody chose."""
        if self._asked != (sorted(masked), space):
            raise ProtocolError("request histograms after the sum, and for the same survivors")
        if self._counted:
            raise ProtocolError("the histograms of this session were already released")
        if not 0 < indexed <= len(space.stretches):
            raise ProtocolError("the vector has no codeword assignments to count")
        for client, words in masked.items():
            if hashlib.sha256(words).digest() != self._deposited[client].assigned:
                raise ProtocolError(f"the assignments of client {client} are not those that it masked")
        self._counted = True
        seeds = {client: contents.seed for client, contents in self._deposited.items()}
        return write_histograms(histograms(masked, seeds, space, indexed))


def make_deposit(
    client: int, contents: DepositContents, key: KeeperKey, terms: SessionTerms, identities: PartyIdentities
) -> SeedDeposit:
    """A client's seed, sealed to the keeper; a key that the keeper has not signed is refused."""
    if not identities.verify(KEEPER_PARTY, signed_keeper_key(terms, key.public), key.signature):
        raise ProtocolError("the mask keeper has not signed its key for this session")
    if contents.members < terms.min_clients:
        raise too_few_error(contents.members, "member", terms.min_clients)
    pair = KeyPair()
    common = pair.agree(key.public, _purpose(client), terms.session)
    sealed = seal(common, write(contents), _purpose(client))
    unsigned = SeedDeposit(client=client, sender=pair.public, sealed=sealed)
    return replace(unsigned, signature=identities.sign(client, unsigned.signed(terms)))


def signed_keeper_key(terms: SessionTerms, public: bytes) -> bytes:
    return terms.naming("keeper", public)


def group_digest(space: VectorGroup) -> bytes:
    return hashlib.sha256(write(["winnow space", space])).digest()


def _common(contents: DepositContents) -> tuple[int, bytes, bytes]:
    """What all clients of a session have been told alike."""
    return contents.members, contents.told, contents.space


def _purpose(client: int) -> bytes:
    return b"winnow deposit %d" % client


@cache
def simulated_keeper(threshold: float, min_clients: int, max_weight_share: float) -> MaskKeeper:
    """The keeper of the simulations in this process."""
    return MaskKeeper(
        simulated_identities(), threshold=threshold, min_clients=min_clients, max_weight_share=max_weight_share
    )
