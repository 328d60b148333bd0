"""Secure aggregation: time of a client and of the server, and a client's bytes, with 0, 10 and 30 % dropouts.

Baseline: the same vectors added up in the clear, as float32; for the client's time, encoding without masks. Weights
have 8 bits. 100 clients share masks all with all, 1,000 in a ring. Clients drop out when all others have masked their
vectors, which is when it costs most. Times are of one processor core.
"""

import os
import time
import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
from msgspec import msgpack

from bench.table import Row
from winnow.privacy.secure.encoding import Parameters
from winnow.privacy.secure.form import Entry, Form
from winnow.privacy.secure.graph import safe_degree
from winnow.privacy.secure.group import Space, Vector, Words
from winnow.privacy.secure.identity import Remembering, RunAuthority
from winnow.privacy.secure.keeper import Contents, MaskKeeper, make_deposit
from winnow.privacy.secure.masks import add_mask
from winnow.privacy.secure.member import Member
from winnow.privacy.secure.scalar import Scalar
from winnow.privacy.secure.tally import Tally
from winnow.privacy.secure.terms import Terms

CASES: tuple[tuple[int, int, Literal["complete", "ring"]], ...] = (
    (100, 1_000_000, "complete"),
    (1_000, 100_000, "ring"),
)
DROPOUTS = (0.0, 0.1, 0.3)
CODE = Scalar(bits=8)
TOLD = b"told"
TIMED = 10
"""Clients whose time is taken."""


@dataclass
class Costs:
    """Seconds of one client and of the server, and the bytes that one client sends."""

    client: float = 0.0
    server: float = 0.0
    uplink: float = 0.0

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
    identities: RunAuthority = field(default_factory=RunAuthority)

    def __post_init__(self) -> None:
        self.form = Form((Entry("model", "weight", (self.parameters // 100, 100), "float32"),))
        self.scales = Parameters(version=1, arrays={"scale": np.array([0.05 / 127]), "zero": np.array([127.0])})
        self.space: Space = CODE.space(self.form, self.clients)
        self.update = np.random.default_rng(0).normal(0, 0.01, self.form.entries[0].shape).astype(np.float32)

    def encoded(self, client: int) -> Vector:
        rng = np.random.default_rng(client)
        return CODE.encode(self.form, [self.update], self.scales, self.clients, rng)

    def terms(self) -> Terms:
        return Terms(session=os.urandom(16), round=1, threshold=2 / 3, fewest=3, graph=self.graph, neighbours=None)

    def check(self, found: Words, survivors: list[int]) -> None:
        """The sum is that of the survivors' words; of the first few of them, to be quick."""
        right = sum(self.encoded(client)[0][:50].astype(np.uint64) for client in survivors) % (1 << self.bits)
        assert np.array_equal(found, right), "the sum is wrong"

    @property
    def bits(self) -> int:
        return self.space.stretches[0].bits


def measure() -> list[Row]:
    return [row for case in CASES for row in _case(World(*case))]


def _case(world: World) -> list[Row]:
    encoding, adding = _plain(world)
    plain_bytes = 4 * world.parameters
    case = f"{world.clients:,} × {world.parameters:,}"
    rows = [
        Row(name=f"{case}: a client encodes", value=encoding, unit="ms", baseline=encoding),
        Row(name="  server, in the clear", value=adding, unit="ms", baseline=adding),
        Row(name="  bytes, in the clear", value=plain_bytes / 1e3, unit="kB", baseline=plain_bytes / 1e3),
    ]
    for name, way in ((_shape(world), pairwise), ("keeper", with_keeper)):
        for share in DROPOUTS:
            costs = way(world, share)
            at = f"  {name}, {share:.0%} gone"
            rows += [
                Row(name=f"{at}: client", value=1e3 * costs.client, unit="ms", baseline=encoding),
                Row(name=f"{at}: server", value=1e3 * costs.server, unit="ms", baseline=adding),
                Row(name=f"{at}: bytes", value=costs.uplink / 1e3, unit="kB", baseline=plain_bytes / 1e3),
            ]
    return [*rows, _memory(world)]


def _shape(world: World) -> str:
    return "complete" if world.graph == "complete" else f"ring of {safe_degree(world.clients)}"


def _plain(world: World) -> tuple[float, float]:
    updates = [world.update.copy() for _ in range(min(world.clients, 20))]
    total, start = np.zeros_like(world.update), time.process_time()
    for update in updates:
        total += update
    adding = (time.process_time() - start) * world.clients / len(updates)
    world.encoded(0)  # the first takes longer
    start = time.process_time()
    for client in range(TIMED):
        world.encoded(client)
    return 1e3 * (time.process_time() - start) / TIMED, 1e3 * adding


def pairwise(world: World, dropouts: float) -> Costs:
    """A whole session. Those who are not timed need not check again a signature that another has checked."""
    costs, terms, gone = Costs(), world.terms(), round(dropouts * world.clients)
    known, staying = Remembering(world.identities), range(gone, world.clients)
    members, announced, signatures, shares = {}, [], {}, {}
    for client in range(world.clients):
        with costs.of_client(client - gone):
            timed = 0 <= client - gone < TIMED
            members[client] = Member(client, terms, world.identities if timed else known)
            announced.append(members[client].announce())
    tally = Tally(terms, world.space, announced, TOLD)
    for client, member in members.items():
        with costs.of_server():
            directory = tally.directory(client)
        with costs.of_client(client - gone):
            letters = member.share(directory)
        tally.take_letters(client, letters)
    for client in staying:
        with costs.of_client(client - gone):
            packed = members[client].mask(tally.letters_to(client), world.encoded(client), world.space, TOLD)
        with costs.of_server():
            tally.add(client, packed)
    for client in staying:
        with costs.of_client(client - gone):
            signatures[client] = members[client].confirm(tally.survivors)
    for client in staying:
        with costs.of_client(client - gone):
            shares[client] = members[client].reveal(signatures)
    with costs.of_server():
        total = tally.finish(shares)
    world.check(total[0][:50], tally.survivors)
    small = (announced[0], letters, signatures[client], shares[client])
    costs.uplink = len(packed) + sum(len(msgpack.encode(each)) for each in small)
    return costs


def with_keeper(world: World, dropouts: float) -> Costs:
    """The same with a mask keeper, whose work counts as the server's."""
    costs, terms = Costs(), world.terms()
    keeper = MaskKeeper(world.identities, threshold=2 / 3, fewest=3)
    key, total = keeper.key(), world.space.zeros()
    staying = list(range(round(dropouts * world.clients), world.clients))
    for client in staying:
        with costs.of_client(client - staying[0]):
            vector = world.encoded(client)
            contents = Contents(os.urandom(32), world.clients, TOLD)
            deposit = make_deposit(client, contents, key, terms, world.identities)
            add_mask(vector, contents.seed, world.space, sign=1)
            packed = world.space.pack(world.space.reduce(vector))
        with costs.of_server():
            keeper.deposit(terms, deposit)
            world.space.add(total, world.space.unpack(packed))
    with costs.of_server():
        world.space.subtract(total, world.space.unpack(keeper.total(terms, staying, world.space)))
    world.check(world.space.reduce(total)[0][:50], staying)
    costs.uplink = len(packed) + len(msgpack.encode(deposit))
    return costs


def _memory(world: World) -> Row:
    """The server's largest memory while vectors come in and masks go off, counted in vectors of words."""
    few = World(30, world.parameters, "complete")
    terms = few.terms()
    members = {client: Member(client, terms, few.identities) for client in range(few.clients)}
    tracemalloc.start()
    tally = Tally(terms, few.space, [member.announce() for member in members.values()], TOLD)
    for client, member in members.items():
        tally.take_letters(client, member.share(tally.directory(client)))
    for client in range(5, few.clients):
        packed = members[client].mask(tally.letters_to(client), few.encoded(client), few.space, TOLD)
        tracemalloc.reset_peak()
        tally.add(client, packed)
        peak = tracemalloc.get_traced_memory()[1]
    signatures = {client: members[client].confirm(tally.survivors) for client in tally.survivors}
    shares = {client: members[client].reveal(signatures) for client in tally.survivors}
    tally.finish(shares)
    peak = max(peak, tracemalloc.get_traced_memory()[1])
    tracemalloc.stop()
    vector = few.space.zeros()[0].nbytes
    return Row(name="  server's memory, in vectors", value=peak / 1e6, unit="MB", baseline=vector / 1e6, goal="few")
