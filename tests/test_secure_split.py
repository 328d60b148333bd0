"""A server that runs one session and tells its clients different things about it: other members, other survivors, other
weights, or other sites behind the same numbers. It never gets both secrets of a client, which would bare its vector.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import TypeVar

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from parties import AUTHORITY, Session, random_vector, terms
from winnow.learn.party_signing_interface import PartyIdentities
from winnow.privacy.secagg import pairwise_client as module
from winnow.privacy.secagg import shamir
from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.secagg.key_agreement import KeyPair
from winnow.privacy.secagg.modular_vectors import vector_group
from winnow.privacy.secagg.pairwise_client import PairwiseClient, commitment
from winnow.privacy.secagg.session_terms import KeyAdvertisement, KeyDirectory, SessionTerms
from winnow.privacy.secagg.simulated_identities import SimulatedIdentities

T = TypeVar("T")

GROUP = vector_group([(4, 13)])
VICTIM = 0
COMPLETE = {"graph": "complete", "neighbours": None}
RING = {"graph": "ring", "neighbours": 10}
SEED, KEY = "self-mask seed", "masking key"


@dataclass(frozen=True, kw_only=True)
class View:
    """What one client is told."""

    members: Sequence[int]
    survivors: Sequence[int]
    inputs_digest: bytes = b"inputs"


@dataclass
class Split:
    """A session in which each party has a view of its own. The server passes on all that anybody would accept.

    A party is known to the others by its number, and there may be several of one number: `at` says which one a party
    takes for another's.
    """

    terms: SessionTerms
    views: Mapping[str, View]
    numbers: Mapping[str, int]
    at: Callable[[str, int], str] = lambda _, number: str(number)
    identities: Callable[[str], PartyIdentities] = lambda _: AUTHORITY
    known: dict[str, set[str]] = field(default_factory=dict)
    """Which secrets the server could put together, of each party that has masked its vector."""

    def __post_init__(self) -> None:
        self.members = {
            party: PairwiseClient(self.numbers[party], self.terms, self.identities(party)) for party in self.views
        }
        self.advertised = {party: member.advertise_keys() for party, member in self.members.items()}
        shares = self._each(self._share)
        self.masked = self._each(lambda party: self._mask(party, shares))
        signatures = self._each(lambda party: self.members[party].confirm(self.views[party].survivors))
        self.revealed = self._each(lambda party: self.members[party].reveal(self._seen(party, signatures)))
        self.known = {party: self._secrets(party) for party in self.masked}

    def _each(self, step: Callable[[str], T]) -> dict[str, T]:
        """What those did who did not refuse."""
        found = {}
        for party in self.views:
            with suppress(ProtocolError):
                found[party] = step(party)
        return found

    def _seen(self, party: str, said: Mapping[str, T]) -> dict[int, T]:
        """What others said, by their numbers, as the party knows them."""
        whom = ((number, self.at(party, number)) for number in {*self.numbers.values()})
        return {number: said[other] for number, other in whom if other in said}

    def _share(self, party: str) -> dict[int, bytes]:
        own = self.views[party]
        around = self.terms.masking_graph(own.members).neighbours(self.numbers[party])
        known: dict[int, KeyAdvertisement] = self._seen(party, self.advertised)
        directory = KeyDirectory(members=[*own.members], advertisements=[known[number] for number in around])
        return self.members[party].share_keys(directory)

    def _mask(self, party: str, shares: Mapping[str, Mapping[int, bytes]]) -> bytes:
        own, number = self.views[party], self.numbers[party]
        around = self.terms.masking_graph(own.members).neighbours(number)
        to_me = {other: sent[number] for other, sent in self._seen(party, shares).items() if number in sent}
        inbox = {other: share for other, share in to_me.items() if other in around}
        return self.members[party].mask(inbox, random_vector(GROUP, number), GROUP, own.inputs_digest)

    def _secrets(self, owner: str) -> set[str]:
        """Those of a party that enough of its holders have revealed, checked against what it advertised."""
        number, advertised = self.numbers[owner], self.advertised[owner]
        graph = self.terms.masking_graph(self.views[owner].members)
        holders = graph.holders(number)
        needed = self.terms.shares_needed(graph, len(holders))
        shares: dict[str, dict[int, bytes]] = {SEED: {}, KEY: {}}
        for party, own in self.revealed.items():
            if number in own and self.numbers[party] in holders:
                what = SEED if number in self.views[party].survivors else KEY
                shares[what][self.numbers[party]] = own[number]
        found = set()
        for what, given_ in shares.items():
            with suppress(ProtocolError):
                secret = shamir.combine(given_, needed)
                fits = commitment(secret) == advertised.commitment
                if fits if what == SEED else KeyPair(secret).public == advertised.masking:
                    found.add(what)
        return found


def split(views: Mapping[int, View], graph: Mapping[str, object]) -> Split:
    named = {str(number): view for number, view in views.items()}
    return Split(terms(**graph), named, {party: int(party) for party in named})


def two_lists(first: Sequence[int], second: Sequence[int]) -> dict[int, View]:
    """The attack: the victim is told of everybody. To the first it survived, to the second it dropped out, and either
    half knows of no other members but itself and the victim.
    """
    everyone = sorted({VICTIM, *first, *second})
    views = {VICTIM: View(members=everyone, survivors=everyone)}
    views |= dict.fromkeys(first, View(members=[VICTIM, *first], survivors=[VICTIM, *first]))
    return views | dict.fromkeys(second, View(members=[VICTIM, *second], survivors=[*second]))


def both(found: Split) -> list[str]:
    return [party for party, secrets in found.known.items() if secrets == {SEED, KEY}]


# Members --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("graph", [RING, COMPLETE])
def test_two_lists_of_members_give_no_secret_of_a_client_away(graph: Mapping[str, object]) -> None:
    found = split(two_lists(range(1, 6), range(6, 12)), graph)
    assert "0" in found.masked
    assert found.known["0"] == set()
    assert both(found) == []


def test_a_hundred_clients_in_a_ring_as_it_is_by_default() -> None:
    graph = {"graph": "ring", "neighbours": None}
    everyone = [*range(100)]
    around = terms(**graph).masking_graph(everyone).neighbours(VICTIM)
    views = two_lists(around[:22], around[22:])
    found = split({**views, VICTIM: View(members=everyone, survivors=everyone)}, graph)
    assert "0" in found.masked
    assert both(found) == []


@pytest.mark.parametrize(("first", "second"), [(5, 6), (4, 7)])
def test_the_test_can_fail_where_nothing_binds_the_members(
    first: int, second: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "roster_digest", lambda *_: b"")
    found = split(two_lists(range(1, 1 + first), range(1 + first, 12)), RING)
    assert both(found) == (["0"] if first == 5 else [])


def test_where_all_are_told_the_same_the_server_gets_each_seed_and_no_key() -> None:
    everyone = [*range(12)]
    found = split(dict.fromkeys(everyone, View(members=everyone, survivors=everyone)), RING)
    assert found.known == {str(client): {SEED} for client in everyone}


@st.composite
def splits(draw: st.DrawFn) -> tuple[dict[int, View], dict[str, object]]:
    """The attack on two parts of the members, in any shares; some of whom are told something else again."""
    count = draw(st.integers(8, 14))
    everyone = [*range(count)]
    shuffled = draw(st.permutations(everyone[1:]))
    half = draw(st.integers(count // 3, 2 * count // 3))
    views = two_lists(sorted(shuffled[:half]), sorted(shuffled[half:]))
    for client in draw(st.sets(st.integers(0, count - 1), max_size=3)):
        members = draw(st.sampled_from([views[client].members, everyone]))
        gone = draw(st.sets(st.sampled_from(everyone), max_size=count // 3)) - {client}
        digest = draw(st.sampled_from([b"inputs", b"something else"]))
        views[client] = View(
            members=members, survivors=[each for each in members if each not in gone], inputs_digest=digest
        )
    ring = {"graph": "ring", "neighbours": draw(st.integers(2, count // 2 - 1)) * 2}
    return views, draw(st.sampled_from([ring, ring, COMPLETE]))


@example((two_lists(range(1, 6), range(6, 12)), RING))
@settings(max_examples=25, deadline=None)
@given(splits())
def test_no_split_gives_both_secrets_of_anybody(case: tuple[dict[int, View], dict[str, object]]) -> None:
    assert both(split(*case)) == []


@pytest.mark.slow(part="attacks")
@settings(max_examples=1_000, deadline=None)
@given(splits())
def test_nor_do_thousands_of_splits(case: tuple[dict[int, View], dict[str, object]]) -> None:
    assert both(split(*case)) == []


# What is told, and who survived ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("graph", [RING, COMPLETE])
def test_nobody_counts_signatures_of_those_who_were_told_something_else(graph: Mapping[str, object]) -> None:
    everyone = [*range(12)]
    same = View(members=everyone, survivors=everyone)
    found = split(
        {client: replace(same, inputs_digest=b"one" if client < 6 else b"another") for client in everyone}, graph
    )
    assert len(found.masked) == 12
    assert found.revealed == {}


@settings(max_examples=25, deadline=None)
@given(
    dropped=st.sets(st.integers(1, 11), min_size=1, max_size=4),
    halves=st.lists(st.booleans(), min_size=12, max_size=12),
    graph=st.sampled_from([RING, COMPLETE]),
)
def test_two_lists_of_survivors_are_not_both_followed(
    dropped: set[int], halves: list[bool], graph: Mapping[str, object]
) -> None:
    everyone = [*range(12)]
    shorter = [client for client in everyone if client not in dropped]
    views = {
        client: View(members=everyone, survivors=shorter if half and client in shorter else everyone)
        for client, half in zip(everyone, halves, strict=True)
    }
    found = split(views, graph)
    assert len({len(views[int(party)].survivors) for party in found.revealed}) <= 1
    assert both(found) == []


# Numbers --------------------------------------------------------------------------------------------------------------


class Behind(SimulatedIdentities):
    """The parties as one of them knows them: who is behind a number is what the server told it."""

    def __init__(self, own: str, numbers: Mapping[str, int], at: Callable[[str, int], str]) -> None:
        self._own, self._numbers, self._at = own, numbers, at

    def sign(self, party: int, message: bytes) -> bytes:
        return AUTHORITY.sign(self._stands_for(self._own), message)

    def verify(self, party: int, message: bytes, signature: bytes) -> bool:
        return AUTHORITY.verify(self._stands_for(self._at(self._own, party)), message, signature)

    def name(self, party: int) -> str:
        return self._at(self._own, party)

    def _stands_for(self, party: str) -> int:
        return [*self._numbers].index(party)


def test_one_number_does_not_stand_for_two_clients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Numbers 12 to 40 are given to two honest clients each. The holders of the victim's secrets know either these or
    those, so that each of two lists of survivors has the signatures of two thirds of all numbers.
    """
    count, holders = 41, terms(graph="ring", neighbours=10)
    everyone = [*range(count)]
    around = holders.masking_graph(everyone).neighbours(VICTIM)
    halves = {number: "ab"[number in around[:5] or number == VICTIM] for number in (VICTIM, *around)}
    twice = [number for number in everyone if number not in halves]
    numbers = {str(number): number for number in halves} | {f"{n}{side}": n for n in twice for side in "ab"}

    def at(party: str, number: int) -> str:
        side = party[-1] if party[-1] in "ab" else halves[int(party)]
        return f"{number}{side}" if number in twice else str(number)

    without = [number for number in everyone if number != VICTIM]
    views = {}
    for party in numbers:
        survived = (party[-1] if party[-1] in "ab" else halves[int(party)]) == "b"
        views[party] = View(members=everyone, survivors=everyone if survived else without)

    def attack() -> Split:
        return Split(holders, views, numbers, at, lambda party: Behind(party, numbers, at))

    assert both(attack()) == []
    monkeypatch.setattr(Behind, "name", lambda self, party: str(party))
    assert both(attack()) == ["0"], "so that the test could fail"


def test_members_whom_nobody_vouches_for_are_no_members() -> None:
    class Elsewhere(SimulatedIdentities):
        def name(self, party: int) -> str:
            raise ProtocolError(f"client {party} is at no site")

    session = Session(terms(), GROUP, [*range(4)])
    stranger = PairwiseClient(0, session.terms, Elsewhere())
    stranger._identities.verify = AUTHORITY.verify  # type: ignore[method-assign]
    with pytest.raises(ProtocolError, match="client 0 is at no site"):
        stranger.share_keys(session.tally.directory(0))
    with pytest.raises(ProtocolError, match="has not shared its keys"):
        stranger.mask({}, random_vector(GROUP, 0), GROUP)
