"""The server's largest memory in a session: what vectors take, and what messages take."""

import tracemalloc
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TypeVar

from msgspec import msgpack

from bench.secure.sessions import INPUTS_DIGEST, World
from winnow.privacy.secagg.pairwise_client import PairwiseClient
from winnow.privacy.secagg.pairwise_server import PairwiseServer
from winnow.privacy.secagg.session_terms import KeyAdvertisement
from winnow.privacy.secagg.simulated_identities import CachedIdentities

DROPOUTS = 0.3
T = TypeVar("T")


@dataclass
class Memory:
    """Bytes at the server. Clients are in the same process, and what they hold is not counted."""

    messages: int = 0
    """Key advertisements, encrypted shares and revealed shares, which are kept."""
    vectors: int = 0
    """The most that all else took at a time."""
    _held: int = 0

    def received(self, message: object, kind: type[T]) -> T:
        """A message as the server has read it."""
        written = msgpack.encode(message)
        before = tracemalloc.get_traced_memory()[0]
        read = msgpack.decode(written, type=kind)
        self.messages += tracemalloc.get_traced_memory()[0] - before
        return read

    @contextmanager
    def working(self) -> Iterator[None]:
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        yield
        after, peak = tracemalloc.get_traced_memory()
        self.vectors = max(self.vectors, self._held + peak - before)
        self._held += after - before


def of_server(world: World) -> Memory:
    """All vectors come one after another, as bytes of which only one is there at a time; then masks are taken off."""
    memory, terms, known = Memory(), world.terms(), CachedIdentities(world.identities)
    members = {client: PairwiseClient(client, terms, known) for client in range(world.clients)}
    tracemalloc.start()
    advertised = [memory.received(member.advertise_keys(), KeyAdvertisement) for member in members.values()]
    with memory.working():
        server = PairwiseServer(terms, world.group, advertised, INPUTS_DIGEST)
    for client, member in members.items():
        encrypted = member.share_keys(server.directory(client))
        server.add_encrypted_shares(client, memory.received(encrypted, dict[int, bytes]))
    for client in range(round(DROPOUTS * world.clients), world.clients):
        packed = bytearray(
            members[client].mask(server.encrypted_shares_to(client), world.encoded(client), world.group, INPUTS_DIGEST)
        )
        with memory.working():
            server.add(client, bytes(packed))
    signatures = {client: members[client].confirm(server.survivors) for client in server.survivors}
    shares = {
        client: memory.received(members[client].reveal(signatures), dict[int, bytes]) for client in server.survivors
    }
    with memory.working():
        server.finish(shares)
    tracemalloc.stop()
    return memory
