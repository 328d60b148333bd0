"""Clients and a server of the pairwise protocol, put together by hand: who drops out when is the test's choice."""

import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from winnow.privacy.secagg.modular_vectors import ModularVector, VectorGroup
from winnow.privacy.secagg.pairwise_client import PairwiseClient
from winnow.privacy.secagg.pairwise_server import PairwiseServer
from winnow.privacy.secagg.session_terms import SessionTerms, roster_digest
from winnow.privacy.secagg.simulated_identities import SimulatedIdentities

AUTHORITY = SimulatedIdentities()


def terms(**changes: Any) -> SessionTerms:
    settings = {"threshold": 2 / 3, "min_clients": 2, "graph": "complete", "neighbours": None}
    return SessionTerms(session=os.urandom(16), round=1, **{**settings, **changes})


def random_vector(space: VectorGroup, seed: int) -> ModularVector:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, s.top, s.count, dtype=s.dtype, endpoint=True) for s in space.stretches]


def plain_sum(space: VectorGroup, vectors: Collection[ModularVector]) -> list[list[int]]:
    """Σ modulo 2^p, in Python's own numbers."""
    return [
        [sum(int(vector[i][j]) for vector in vectors) % (1 << stretch.bits) for j in range(stretch.count)]
        for i, stretch in enumerate(space.stretches)
    ]


@dataclass
class Session:
    """A session as far as it got, and all that the server saw of it."""

    terms: SessionTerms
    space: VectorGroup
    clients: list[int]
    members: dict[int, PairwiseClient] = field(init=False)
    vectors: dict[int, ModularVector] = field(init=False)
    masked: dict[int, bytes] = field(default_factory=dict)
    letters: dict[int, Mapping[int, bytes]] = field(default_factory=dict)
    shares: dict[int, dict[int, bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.members = {client: PairwiseClient(client, self.terms, AUTHORITY) for client in self.clients}
        self.vectors = {client: random_vector(self.space, client) for client in self.clients}
        announced = [member.announce() for member in self.members.values()]
        self.announced = {each.client: each for each in announced}
        self.tally = PairwiseServer(self.terms, self.space, announced, b"told")

    def share(self, gone: Collection[int] = ()) -> None:
        for client in sorted({*self.clients} - {*gone}):
            self.letters[client] = self.members[client].share(self.tally.directory(client))
            self.tally.take_letters(client, self.letters[client])

    def mask(self, gone: Collection[int] = ()) -> None:
        for client in sorted({*self.tally.sharing} - {*gone}):
            letters = self.tally.letters_to(client)
            self.masked[client] = self.members[client].mask(letters, self.vectors[client], self.space, b"told")
            self.tally.add(client, self.masked[client])

    def confirm(self, gone: Collection[int] = ()) -> dict[int, bytes]:
        survivors = self.tally.survivors
        return {client: self.members[client].confirm(survivors) for client in survivors if client not in gone}

    def reveal(self, signatures: Mapping[int, bytes], gone: Collection[int] = ()) -> None:
        for client in signatures:
            if client not in gone:
                self.shares[client] = self.members[client].reveal(signatures)

    def roster(self, members: Sequence[int] | None = None) -> bytes:
        found = self.clients if members is None else members
        return roster_digest(self.terms, found, [AUTHORITY.name(client) for client in found])

    def total(self) -> ModularVector:
        return self.tally.finish(self.shares)
