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


def random_vector(group: VectorGroup, seed: int) -> ModularVector:
    rng = np.random.default_rng(seed)
    return [rng.integers(0, s.top, s.count, dtype=s.dtype, endpoint=True) for s in group.segments]


def plain_sum(group: VectorGroup, vectors: Collection[ModularVector]) -> list[list[int]]:
    """Σ modulo 2^p, in Python's own numbers."""
    return [
        [sum(int(vector[i][j]) for vector in vectors) % (1 << segment.bits) for j in range(segment.count)]
        for i, segment in enumerate(group.segments)
    ]


@dataclass
class Session:
    """A session as far as it got, and all that the server saw of it."""

    terms: SessionTerms
    group: VectorGroup
    clients: list[int]
    members: dict[int, PairwiseClient] = field(init=False)
    vectors: dict[int, ModularVector] = field(init=False)
    masked: dict[int, bytes] = field(default_factory=dict)
    encrypted_shares: dict[int, Mapping[int, bytes]] = field(default_factory=dict)
    shares: dict[int, dict[int, bytes]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.members = {client: PairwiseClient(client, self.terms, AUTHORITY) for client in self.clients}
        self.vectors = {client: random_vector(self.group, client) for client in self.clients}
        advertised = [member.advertise_keys() for member in self.members.values()]
        self.advertised = {each.client: each for each in advertised}
        self.tally = PairwiseServer(self.terms, self.group, advertised, b"inputs")

    def share(self, gone: Collection[int] = ()) -> None:
        for client in sorted({*self.clients} - {*gone}):
            self.encrypted_shares[client] = self.members[client].share_keys(self.tally.directory(client))
            self.tally.add_encrypted_shares(client, self.encrypted_shares[client])

    def mask(self, gone: Collection[int] = ()) -> None:
        for client in sorted({*self.tally.sharers} - {*gone}):
            encrypted_shares = self.tally.encrypted_shares_to(client)
            self.masked[client] = self.members[client].mask(
                encrypted_shares, self.vectors[client], self.group, b"inputs"
            )
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
