"""The mask keeper: a third party that holds the seeds of all masks and releases only sums of masks.

A client masks its vector with one seed and seals that seed to the keeper; the server relays it without being able to
read it. The server adds up the masked vectors and asks the keeper, once per session, for the sum of the survivors'
masks. The keeper sees weights but no vector, the server no seed: only both together could see an update. (Under product
quantisation the keeper does see codeword assignments, since it counts them: see `secure_indexing`.) In the paper a
trusted enclave does this (section 3.1, figure 1).
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

from winnow.learn.party_signing_interface import PartyIdentities
from winnow.privacy.secagg.errors import ProtocolError, too_few_error
from winnow.privacy.secagg.key_agreement import KeyPair, seal_with, unseal_with
from winnow.privacy.secagg.masks import SEED_BYTES, add_mask
from winnow.privacy.secagg.modular_vectors import VectorGroup
from winnow.privacy.secagg.secure_indexing import histograms, write_histograms
from winnow.privacy.secagg.session_inputs import check_weights
from winnow.privacy.secagg.session_terms import SessionTerms, read_message, write_message
from winnow.privacy.secagg.simulated_identities import KEEPER_PARTY, simulated_identities

MAX_OPEN_SESSIONS = 8
"""How many sessions are open at a time; the keys and seeds of older ones are deleted."""


class KeeperKey(Struct, frozen=True):
    """The key that the seeds of a session are sealed to, signed by the keeper."""

    public: bytes
    signature: bytes


class SeedDeposit(Struct, frozen=True, kw_only=True):
    """A client's seed for a session, among so many members; sealed to the keeper and signed by the client."""

    client: int
    sender: bytes
    """The public key of a pair generated for this deposit."""
    sealed: bytes
    signature: bytes = b""

    def signed(self, terms: SessionTerms) -> bytes:
        return terms.statement("deposit", self.client, self.sender, self.sealed)


class DepositContents(Struct, frozen=True, kw_only=True):
    """What a deposit contains: the seed, the number of members and the digest of the session inputs as the client
    received them, the client's weight, and a digest of its vector's group. The server names the group of the sum it
    asks for, and in another group than the clients' the sum of the masks would reveal more.

    If the vector has codeword assignments, also the digest of the masked ones: a server could shift them in transit,
    and histograms (unlike sums) would then reveal more.
    """

    seed: bytes
    members: int
    inputs_digest: bytes
    weight: float
    group_digest: bytes
    assigned: bytes = b""


class KeeperInterface(Protocol):
    """The server's interface to the keeper, wherever it runs."""

    def key(self, terms: SessionTerms) -> KeeperKey:
        """Open a session and return its public key."""

    def deposit(self, terms: SessionTerms, deposit: SeedDeposit) -> None:
        """Accept a client's sealed seed."""

    def total(self, terms: SessionTerms, survivors: Sequence[int], group: VectorGroup) -> bytes:
        """The sum of the survivors' masks, packed."""

    def histograms(self, terms: SessionTerms, masked: Mapping[int, bytes], group: VectorGroup, indexed: int) -> bytes:
        """How often the survivors chose which codeword (secure indexing), given their masked assignments."""


class MaskKeeper:
    """The keeper itself. It uses its own `threshold`, `min_clients` and `max_weight_share`, whatever the server says.

    Every session has its own key pair, which is deleted with it. So deposits of a session that has ended cannot be
    decrypted again, however many other sessions a server opens in between.
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
        contents = read_message(unseal_with(key, deposit.sealed, _purpose(deposit.client)), DepositContents)
        if len(contents.seed) != SEED_BYTES or not 0 < contents.weight <= 1:
            raise ProtocolError(f"the deposit of client {deposit.client} holds no seed, or no weight")
        session.add_deposit(deposit.client, contents)

    def total(self, terms: SessionTerms, survivors: Sequence[int], group: VectorGroup) -> bytes:
        own = replace(terms, threshold=self._threshold, min_clients=self._min_clients)
        return self._session(terms).total(own, sorted(survivors), group, self._max_weight_share)

    def histograms(self, terms: SessionTerms, masked: Mapping[int, bytes], group: VectorGroup, indexed: int) -> bytes:
        return self._session(terms).histograms(masked, group, indexed)

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

    def add_deposit(self, client: int, contents: DepositContents) -> None:
        if client in self._deposited:
            raise ProtocolError(f"client {client} has deposited a seed before in this session")
        if any(_common_terms(contents) != _common_terms(other) for other in islice(self._deposited.values(), 1)):
            raise ProtocolError("the clients of this session received different inputs")
        self._deposited[client] = contents

    def total(self, terms: SessionTerms, survivors: list[int], group: VectorGroup, max_weight_share: float) -> bytes:
        if self._asked not in (None, (survivors, group)):
            raise ProtocolError("a different sum of this session was already released")
        if len({*survivors}) != len(survivors) or not {*survivors} <= self._deposited.keys():
            raise ProtocolError("the survivor list has a duplicate, or a client that deposited no seed")
        members, _, sealed = _common_terms(self._deposited[survivors[0]]) if survivors else (0, b"", b"")
        needed = terms.survivors_needed(members)
        if len(survivors) < needed:
            raise too_few_error(len(survivors), "survivor", needed)
        if group_digest(group) != sealed:
            raise ProtocolError("the request names a different group than the clients' vectors use")
        check_weights(np.array([self._deposited[client].weight for client in survivors]), max_weight_share)
        self._asked = (survivors, group)
        masks = group.zeros()
        for client in survivors:
            add_mask(masks, self._deposited[client].seed, group, sign=1)
        return group.pack(group.reduce(masks))

    def histograms(self, masked: Mapping[int, bytes], group: VectorGroup, indexed: int) -> bytes:
        """Once per session, over the survivors of its sum: the difference of two histograms would reveal a choice."""
        if self._asked != (sorted(masked), group):
            raise ProtocolError("request histograms after the sum, and for the same survivors")
        if self._counted:
            raise ProtocolError("the histograms of this session were already released")
        if not 0 < indexed <= len(group.segments):
            raise ProtocolError("the vector has no codeword assignments to count")
        for client, words in masked.items():
            if hashlib.sha256(words).digest() != self._deposited[client].assigned:
                raise ProtocolError(f"the assignments of client {client} are not those that it masked")
        self._counted = True
        seeds = {client: contents.seed for client, contents in self._deposited.items()}
        return write_histograms(histograms(masked, seeds, group, indexed))


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
    sealed = seal_with(common, write_message(contents), _purpose(client))
    unsigned = SeedDeposit(client=client, sender=pair.public, sealed=sealed)
    return replace(unsigned, signature=identities.sign(client, unsigned.signed(terms)))


def signed_keeper_key(terms: SessionTerms, public: bytes) -> bytes:
    return terms.statement("keeper", public)


def group_digest(group: VectorGroup) -> bytes:
    return hashlib.sha256(write_message(["winnow group", group])).digest()


def _common_terms(contents: DepositContents) -> tuple[int, bytes, bytes]:
    """What must be the same in all deposits of a session."""
    return contents.members, contents.inputs_digest, contents.group_digest


def _purpose(client: int) -> bytes:
    return b"winnow deposit %d" % client


@cache
def simulated_keeper(threshold: float, min_clients: int, max_weight_share: float) -> MaskKeeper:
    """The keeper of the simulations in this process."""
    return MaskKeeper(
        simulated_identities(), threshold=threshold, min_clients=min_clients, max_weight_share=max_weight_share
    )
