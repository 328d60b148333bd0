"""The mask keeper: a party of its own that holds the seeds of all masks and tells sums of masks only.

A client masks its vector with one seed and seals that seed to the keeper; the server carries it unread. The server adds
up the masked vectors, and asks the keeper, once a session, for the sum of the survivors' masks. The keeper sees no
vector, the server no seed: only both together could see an update. (Under product quantisation it does see vectors,
of codewords' numbers, for it counts them: see `indexing`.) In the paper this stands in a trusted enclave
(section 3.1, figure 1).
"""

import hashlib
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Protocol

import msgspec
from msgspec import Struct

from winnow.privacy.secure.group import Space
from winnow.privacy.secure.identity import KEEPER, Identities, authority_here
from winnow.privacy.secure.indexing import histograms, write_counts
from winnow.privacy.secure.keys import KeyPair, seal, unseal
from winnow.privacy.secure.masks import SEED_BYTES, add_mask
from winnow.privacy.secure.refusal import RefusedError
from winnow.privacy.secure.terms import Terms, read, write

SESSIONS = 8
"""So many sessions are open at a time; the seeds of older ones are forgotten, and so are their sums."""
REMEMBERED = 100_000
"""Sessions that are known to be over."""


class KeeperKey(Struct, frozen=True):
    """The key that seeds are sealed to, signed by the keeper."""

    public: bytes
    signature: bytes


class Deposit(Struct, frozen=True, kw_only=True):
    """A client's seed for a session, among so many members; sealed to the keeper and signed by the client."""

    client: int
    sender: bytes
    """The public key of a pair made for this letter."""
    sealed: bytes
    signature: bytes = b""

    def signed(self, session: bytes) -> bytes:
        return msgspec.msgpack.encode(["winnow deposit", session, self.client, self.sender, self.sealed])


class Contents(Struct, frozen=True):
    """What a deposit holds: the seed, how many members the client was told of, and the digest of all it was told.

    If the vector has assignments to codewords, their digest too, under the mask: words can be shifted on their way, and
    what is counted (unlike what is summed) would then tell more.
    """

    seed: bytes
    members: int
    told: bytes
    assigned: bytes = b""


class Keeper(Protocol):
    """What the server may ask of the keeper, wherever it runs."""

    def key(self) -> KeeperKey: ...

    def deposit(self, terms: Terms, deposit: Deposit) -> None:
        """Take a client's sealed seed."""

    def total(self, terms: Terms, survivors: Sequence[int], space: Space) -> bytes:
        """The sum of the survivors' masks, packed."""

    def histograms(self, terms: Terms, masked: Mapping[int, bytes], space: Space, indexed: int) -> bytes:
        """How often the survivors chose which codeword (secure indexing), given their masked assignments."""


class MaskKeeper:
    """The keeper itself. `threshold` and `fewest` are its own: what the server says of them does not count."""

    def __init__(self, identities: Identities, *, threshold: float, fewest: int) -> None:
        self._identities, self._threshold, self._fewest = identities, threshold, fewest
        self._pair = KeyPair()
        self._open: OrderedDict[bytes, _Session] = OrderedDict()
        self._over: OrderedDict[bytes, None] = OrderedDict()

    def key(self) -> KeeperKey:
        return KeeperKey(self._pair.public, self._identities.sign(KEEPER, key_to_sign(self._pair.public)))

    def deposit(self, terms: Terms, deposit: Deposit) -> None:
        if not self._identities.verifies(deposit.client, deposit.signed(terms.session), deposit.signature):
            raise RefusedError(f"the deposit of client {deposit.client} is not signed by it")
        key = self._pair.agree(deposit.sender, _purpose(deposit.client), terms.session)
        contents = read(unseal(key, deposit.sealed, _purpose(deposit.client)), Contents)
        if len(contents.seed) != SEED_BYTES:
            raise RefusedError(f"the deposit of client {deposit.client} holds no seed")
        self._session(terms.session).take(deposit.client, contents)

    def total(self, terms: Terms, survivors: Sequence[int], space: Space) -> bytes:
        own = Terms(
            session=terms.session,
            round=terms.round,
            threshold=self._threshold,
            fewest=self._fewest,
            graph=terms.graph,
            neighbours=terms.neighbours,
        )
        return self._session(terms.session).total(own, sorted(survivors), space)

    def histograms(self, terms: Terms, masked: Mapping[int, bytes], space: Space, indexed: int) -> bytes:
        return self._session(terms.session).histograms(masked, space, indexed)

    def _session(self, session: bytes) -> "_Session":
        if session in self._over:
            raise RefusedError("the session is over, its seeds are forgotten")
        found = self._open.setdefault(session, _Session())
        while len(self._open) > SESSIONS:
            ended, _ = self._open.popitem(last=False)
            self._over[ended] = None
        while len(self._over) > REMEMBERED:
            self._over.popitem(last=False)
        return found


class _Session:
    def __init__(self) -> None:
        self._seeds: dict[int, bytes] = {}
        self._assigned: dict[int, bytes] = {}
        self._counted = False
        self._common: tuple[int, bytes] | None = None
        self._asked: tuple[list[int], Space] | None = None

    def take(self, client: int, contents: Contents) -> None:
        if client in self._seeds:
            raise RefusedError(f"client {client} has deposited a seed before in this session")
        if self._common not in (None, (contents.members, contents.told)):
            raise RefusedError("the clients of this session were told different things")
        self._common = (contents.members, contents.told)
        self._seeds[client], self._assigned[client] = contents.seed, contents.assigned

    def total(self, terms: Terms, survivors: list[int], space: Space) -> bytes:
        if self._asked not in (None, (survivors, space)):
            raise RefusedError("another sum of this session was told before")
        if len({*survivors}) != len(survivors) or not {*survivors} <= self._seeds.keys():
            raise RefusedError("the list of survivors has a client twice, or one whose seed is not here")
        needed = terms.survivors_needed(self._common[0] if self._common else 0)
        if len(survivors) < needed:
            raise RefusedError(f"{len(survivors)} survivors are too few for a sum, {needed} are needed")
        self._asked = (survivors, space)
        masks = space.zeros()
        for client in survivors:
            add_mask(masks, self._seeds[client], space, sign=1)
        return space.pack(space.reduce(masks))

    def histograms(self, masked: Mapping[int, bytes], space: Space, indexed: int) -> bytes:
        """Once a session, and over the survivors of its sum: two histograms would differ by what somebody chose."""
        if self._asked != (sorted(masked), space):
            raise RefusedError("histograms are counted over the survivors of the sum, and after it")
        if self._counted:
            raise RefusedError("the histograms of this session were told before")
        if not 0 < indexed <= len(space.stretches):
            raise RefusedError("there is nothing to count in such a vector")
        for client, words in masked.items():
            if hashlib.sha256(words).digest() != self._assigned[client]:
                raise RefusedError(f"the assignments of client {client} are not those that it masked")
        self._counted = True
        return write_counts(histograms(masked, self._seeds, space, indexed))


def make_deposit(client: int, contents: Contents, key: KeeperKey, terms: Terms, identities: Identities) -> Deposit:
    """A client's seed, sealed to the keeper; a key that the keeper has not signed is refused."""
    if not identities.verifies(KEEPER, key_to_sign(key.public), key.signature):
        raise RefusedError("the mask keeper's key is not signed by it")
    if contents.members < terms.fewest:
        raise RefusedError(f"{contents.members} members are too few for a sum, {terms.fewest} are needed")
    pair = KeyPair()
    common = pair.agree(key.public, _purpose(client), terms.session)
    sealed = seal(common, write(contents), _purpose(client))
    unsigned = Deposit(client=client, sender=pair.public, sealed=sealed)
    signature = identities.sign(client, unsigned.signed(terms.session))
    return Deposit(client=client, sender=pair.public, sealed=sealed, signature=signature)


def key_to_sign(public: bytes) -> bytes:
    return b"winnow keeper" + public


def _purpose(client: int) -> bytes:
    return b"winnow deposit %d" % client


@cache
def keeper_here(threshold: float, fewest: int) -> MaskKeeper:
    """The keeper of the simulations in this process."""
    return MaskKeeper(authority_here(), threshold=threshold, fewest=fewest)
