"""Whole sessions of secure aggregation in one process, clients in turn, and what they cost a client and the server."""

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from msgspec import msgpack

from winnow.privacy.secagg.masks import add_mask
from winnow.privacy.secagg.modular_vectors import ModularVector, VectorGroup, Words
from winnow.privacy.secagg.pairwise_client import PairwiseClient
from winnow.privacy.secagg.pairwise_server import PairwiseServer
from winnow.privacy.secagg.scalar_quantisation import ScalarQuantisation
from winnow.privacy.secagg.session_terms import SessionTerms
from winnow.privacy.secagg.simulated_identities import CachedIdentities, SimulatedIdentities
from winnow.privacy.secagg.third_party_mask_keeper import DepositContents, MaskKeeper, group_digest, make_deposit
from winnow.privacy.secagg.update_encoding_interface import EncodingParameters
from winnow.privacy.secagg.update_layout import TensorSpec, UpdateLayout

BITS, BOUND = 8, 0.05
CODE = ScalarQuantisation(bits=BITS)
INPUTS_DIGEST = b"inputs"
TIMED = 10
"""Clients whose time is taken."""


@dataclass
class Costs:
    """Seconds of one client and of the server, and the bytes that one client sends and gets, the model apart."""

    client: float = 0.0
    server: float = 0.0
    up: float = 0.0
    down: float = 0.0

    @contextmanager
    def of_client(self, place: int) -> Iterator[None]:
        """The mean over the first few of those who stay; the others' time is not counted."""
        start = time.process_time()
        yield
        self.client += (time.process_time() - start) / TIMED if 0 <= place < TIMED else 0.0

    @contextmanager
    def of_server(self) -> Iterator[None]:
        start = time.process_time()
        yield
        self.server += time.process_time() - start


@dataclass
class World:
    """Clients with an update of one tensor, a matrix, which each of them rounds by its own chance."""

    clients: int
    parameters: int
    graph: Literal["complete", "ring"]
    identities: SimulatedIdentities = field(default_factory=SimulatedIdentities)

    def __post_init__(self) -> None:
        self.layout = UpdateLayout((TensorSpec("model", "weight", (self.parameters // 100, 100), "float32"),))
        self.scales = EncodingParameters(
            version=1, arrays={"scale": np.array([BOUND / 127]), "zero": np.array([127.0])}
        )
        self.group: VectorGroup = CODE.group(self.layout, self.clients)
        self.update = np.random.default_rng(0).normal(0, 0.01, self.layout.entries[0].shape).astype(np.float32)

    def encoded(self, client: int) -> ModularVector:
        rng = np.random.default_rng(client)
        return CODE.encode(self.layout, [self.update], self.scales, self.clients, rng)

    def terms(self) -> SessionTerms:
        return SessionTerms(
            session=os.urandom(16), round=1, threshold=2 / 3, min_clients=3, graph=self.graph, neighbours=None
        )

    def check(self, found: Words, survivors: list[int]) -> None:
        """The sum is that of the survivors' words; of the first few of them, to be quick."""
        right = sum(self.encoded(client)[0][:50].astype(np.uint64) for client in survivors) % (1 << self.bits)
        assert np.array_equal(found, right), "the sum is wrong"

    @property
    def bits(self) -> int:
        return self.group.segments[0].bits


def plain(world: World) -> tuple[float, float]:
    """Seconds to encode one update, and to add all of them up in the clear."""
    updates = [world.update.copy() for _ in range(min(world.clients, 20))]
    total, start = np.zeros_like(world.update), time.process_time()
    for update in updates:
        total += update
    adding = (time.process_time() - start) * world.clients / len(updates)
    world.encoded(0)  # the first takes longer
    start = time.process_time()
    for client in range(TIMED):
        world.encoded(client)
    return (time.process_time() - start) / TIMED, adding


def pairwise(world: World, dropouts: float) -> Costs:
    """A whole session. Those who are not timed need not check again a signature that another has checked."""
    costs, terms, gone = Costs(), world.terms(), round(dropouts * world.clients)
    known, staying = CachedIdentities(world.identities), range(gone, world.clients)
    members, advertised, signatures, shares = {}, [], {}, {}
    for client in range(world.clients):
        with costs.of_client(client - gone):
            timed = 0 <= client - gone < TIMED
            members[client] = PairwiseClient(client, terms, world.identities if timed else known)
            advertised.append(members[client].advertise_keys())
    server = PairwiseServer(terms, world.group, advertised, INPUTS_DIGEST)
    for client, member in members.items():
        with costs.of_server():
            directory = server.directory(client)
        with costs.of_client(client - gone):
            encrypted = member.share_keys(directory)
        server.add_encrypted_shares(client, encrypted)
    for client in staying:
        with costs.of_client(client - gone):
            packed = members[client].mask(
                server.encrypted_shares_to(client), world.encoded(client), world.group, INPUTS_DIGEST
            )
        with costs.of_server():
            server.add(client, packed)
    for client in staying:
        with costs.of_client(client - gone):
            signatures[client] = members[client].confirm(server.survivors)
    for client in staying:
        with costs.of_client(client - gone):
            shares[client] = members[client].reveal(signatures)
    with costs.of_server():
        total = server.finish(shares)
    world.check(total[0][:50], server.survivors)
    costs.up = len(packed) + _weight(advertised[0], encrypted, signatures[client], shares[client])
    costs.down = _weight(directory, server.encrypted_shares_to(client), server.survivors, signatures)
    return costs


def with_keeper(world: World, dropouts: float) -> Costs:
    """The same with a mask keeper, whose work counts as the server's."""
    costs, terms = Costs(), world.terms()
    keeper = MaskKeeper(world.identities, threshold=2 / 3, min_clients=3, max_weight_share=0.75)
    key, total, digest = keeper.key(terms), world.group.zeros(), group_digest(world.group)
    staying = list(range(round(dropouts * world.clients), world.clients))
    for client in staying:
        with costs.of_client(client - staying[0]):
            vector = world.encoded(client)
            contents = DepositContents(
                seed=os.urandom(32), members=world.clients, inputs_digest=INPUTS_DIGEST, weight=1.0, group_digest=digest
            )
            deposit = make_deposit(client, contents, key, terms, world.identities)
            add_mask(vector, contents.seed, world.group, sign=1)
            packed = world.group.pack(world.group.reduce(vector))
        with costs.of_server():
            keeper.deposit(terms, deposit)
            world.group.add(total, world.group.unpack(packed))
    with costs.of_server():
        world.group.subtract(total, world.group.unpack(keeper.total(terms, staying, world.group)))
    world.check(world.group.reduce(total)[0][:50], staying)
    costs.up, costs.down = len(packed) + _weight(deposit), _weight(key)
    return costs


def _weight(*messages: object) -> int:
    return sum(len(msgpack.encode(each)) for each in messages)
