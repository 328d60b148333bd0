"""The mask keeper: sums of masks, one a session, and nothing else; here and in a process of its own."""

import os
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace

from keeper_process import KeeperProcess
from parties import AUTHORITY, plain_sum, random_vector, terms
from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.secagg.masks import add_mask
from winnow.privacy.secagg.modular_vectors import vector_group
from winnow.privacy.secagg.session_terms import SessionTerms
from winnow.privacy.secagg.simulated_identities import SimulatedIdentities
from winnow.privacy.secagg.third_party_mask_keeper import (
    MAX_OPEN_SESSIONS,
    DepositContents,
    KeeperInterface,
    MaskKeeper,
    SeedDeposit,
    group_digest,
    make_deposit,
)

GROUP = vector_group([(50, 11), (4, 64)])
OWN = {"threshold": 2 / 3, "min_clients": 3, "max_weight_share": 0.75}


@pytest.fixture(params=["object", "process"])
def keeper(request: pytest.FixtureRequest) -> Iterator[KeeperInterface]:
    if request.param == "object":
        yield MaskKeeper(AUTHORITY, **OWN)
    else:
        with KeeperProcess(AUTHORITY, **OWN) as process:
            yield process


def deposit(keeper: KeeperInterface, at: SessionTerms, client: int, seed: bytes, **others: Any) -> SeedDeposit:
    usual = {"members": 6, "inputs_digest": b"inputs", "weight": 1.0, "group_digest": group_digest(GROUP)}
    return make_deposit(client, DepositContents(seed=seed, **{**usual, **others}), keeper.key(at), at, AUTHORITY)


def filled(keeper: KeeperInterface, at: SessionTerms, weights: Sequence[float] = (1.0,) * 6) -> dict[int, bytes]:
    seeds = {client: os.urandom(32) for client in range(len(weights))}
    for client, seed in seeds.items():
        keeper.deposit(at, deposit(keeper, at, client, seed, weight=weights[client]))
    return seeds


@pytest.mark.parametrize("survivors", [[0, 1, 2, 3, 4, 5], [5, 0, 2, 3]])
def test_the_server_gets_the_sum_of_the_survivors_vectors(keeper: KeeperInterface, survivors: list[int]) -> None:
    at = terms()
    seeds, vectors = filled(keeper, at), {client: random_vector(GROUP, client) for client in range(6)}
    total = GROUP.zeros()
    for client in survivors:
        masked = [words.copy() for words in vectors[client]]
        add_mask(masked, seeds[client], GROUP, sign=1)
        assert not np.array_equal(GROUP.reduce(masked)[0], vectors[client][0])
        GROUP.add(total, masked)
    GROUP.subtract(total, GROUP.unpack(keeper.total(at, survivors, GROUP)))
    plain = plain_sum(GROUP, [vectors[client] for client in survivors])
    assert [words.tolist() for words in GROUP.reduce(total)] == plain


def test_a_session_has_one_sum(keeper: KeeperInterface) -> None:
    at = terms()
    filled(keeper, at)
    first = keeper.total(at, [0, 1, 2, 3, 4], GROUP)
    assert keeper.total(at, [4, 3, 2, 1, 0], GROUP) == first
    for survivors, group in (([0, 1, 2, 3], GROUP), ([0, 1, 2, 3, 4], vector_group([(50, 11)]))):
        with pytest.raises(ProtocolError, match="a different sum of this session was already released"):
            keeper.total(at, survivors, group)


@pytest.mark.parametrize(
    ("survivors", "reason"),
    [
        ([0, 1, 2], "3 survivors are too few for a sum, 4 are needed"),
        ([0, 1, 2, 2, 3], "a duplicate"),
        ([0, 1, 2, 9], "a client that deposited no seed"),
    ],
)
def test_a_list_that_cannot_be_gets_no_sum(keeper: KeeperInterface, survivors: list[int], reason: str) -> None:
    at = terms()
    filled(keeper, at)
    with pytest.raises(ProtocolError, match=reason):
        keeper.total(at, survivors, GROUP)
    assert keeper.total(at, [0, 1, 2, 3], GROUP)


def test_what_the_server_says_of_thresholds_does_not_count(keeper: KeeperInterface) -> None:
    at = terms(threshold=0.1, min_clients=2)
    filled(keeper, at)
    with pytest.raises(ProtocolError, match="2 survivors are too few for a sum, 4 are needed"):
        keeper.total(at, [0, 1], GROUP)


def test_a_seed_comes_once_signed_and_for_its_session(keeper: KeeperInterface) -> None:
    at = terms()
    made = deposit(keeper, at, 0, os.urandom(32))
    keeper.deposit(at, made)
    with pytest.raises(ProtocolError, match="client 0 has deposited a seed before"):
        keeper.deposit(at, made)
    another = terms()
    keeper.key(another)
    for session, forged in ((at, replace(made, client=1)), (another, made), (replace(at, round=2), made)):
        with pytest.raises(ProtocolError, match="is not signed by it"):
            keeper.deposit(session, forged)
    for seed, weight in ((b"short", 1.0), (os.urandom(32), float("nan")), (os.urandom(32), 2.0)):
        with pytest.raises(ProtocolError, match="client 1 holds no seed, or no weight"):
            keeper.deposit(at, deposit(keeper, at, 1, seed, weight=weight))


@pytest.mark.parametrize("other", [{"members": 60}, {"inputs_digest": b"something else"}, {"group_digest": b"another"}])
def test_clients_who_were_told_different_things_are_not_summed(
    keeper: KeeperInterface, other: dict[str, object]
) -> None:
    at = terms()
    keeper.deposit(at, deposit(keeper, at, 0, os.urandom(32)))
    with pytest.raises(ProtocolError, match="received different inputs"):
        keeper.deposit(at, deposit(keeper, at, 1, os.urandom(32), **other))


def test_a_client_gives_its_seed_to_no_other_keeper() -> None:
    stranger = MaskKeeper(SimulatedIdentities(), **OWN)
    with pytest.raises(ProtocolError, match="the mask keeper has not signed its key"):
        deposit(stranger, terms(), 0, os.urandom(32))
    honest = MaskKeeper(AUTHORITY, **OWN)
    with pytest.raises(ProtocolError, match="1 member is too few for a sum, 3 are needed"):
        deposit(honest, terms(min_clients=3), 0, os.urandom(32), members=1)
    of_another = honest.key(terms())
    contents = DepositContents(seed=os.urandom(32), members=6, inputs_digest=b"inputs", weight=1.0, group_digest=b"")
    with pytest.raises(ProtocolError, match="the mask keeper has not signed its key for this session"):
        make_deposit(0, contents, of_another, terms(), AUTHORITY)


def test_deposits_of_a_session_that_was_forgotten_are_of_no_use(keeper: KeeperInterface) -> None:
    """A server might open sessions until an old one is forgotten, and ask for another sum of the same masks."""
    old = terms()
    deposits = [deposit(keeper, old, client, os.urandom(32)) for client in range(6)]
    for each in deposits:
        keeper.deposit(old, each)
    keeper.total(old, [0, 1, 2, 3, 4, 5], GROUP)
    for _ in range(MAX_OPEN_SESSIONS):
        keeper.key(terms())
    with pytest.raises(ProtocolError, match="its key and seeds were deleted"):
        keeper.total(old, [1, 2, 3, 4, 5], GROUP)
    with pytest.raises(ProtocolError, match="its key and seeds were deleted"):
        keeper.deposit(old, deposits[0])
    keeper.key(old)
    for each in deposits:
        with pytest.raises(ProtocolError, match="cannot be decrypted"):
            keeper.deposit(old, each)


def test_only_its_key_opens_a_session(keeper: KeeperInterface) -> None:
    """Whatever else is asked for, no older session makes place for it."""
    at = terms()
    filled(keeper, at)
    for _ in range(2 * MAX_OPEN_SESSIONS):
        with pytest.raises(ProtocolError, match="the session does not exist"):
            keeper.total(terms(), [0], GROUP)
    assert keeper.total(at, [0, 1, 2, 3], GROUP)


def test_survivors_of_whom_one_has_nearly_all_the_weight_get_no_sum(keeper: KeeperInterface) -> None:
    """All together they were balanced; a server then calls the other heavy one a dropout."""
    at = terms()
    filled(keeper, at, weights=[1.0, 1.0, 0.1, 0.1, 0.1, 0.1])
    with pytest.raises(ProtocolError, match=r"one client makes up 96% of the sum, and collect.max_weight_share is 75%"):
        keeper.total(at, [0, 2, 3, 4, 5], GROUP)
    assert keeper.total(at, [0, 1, 2, 3, 4, 5], GROUP)


@pytest.mark.parametrize(
    "asked",
    [
        pytest.param(((1 << 60, 11),), id="huge"),
        pytest.param(((50, 12), (3, 64), (16, 1)), id="one bit more: the carry of every sum"),
        pytest.param(((4, 64), (50, 11)), id="another order"),
        pytest.param(((101, 8),), id="as many bytes, one by one"),
    ],
)
def test_a_sum_is_told_in_the_group_of_the_clients_vectors_and_in_no_other(
    keeper: KeeperInterface, asked: tuple[tuple[int, int], ...]
) -> None:
    """The size does not tell them apart: most of these are packed into as many bytes."""
    at = terms()
    filled(keeper, at)
    with pytest.raises(ProtocolError, match="a different group than the clients' vectors use"):
        keeper.total(at, [0, 1, 2, 3], vector_group(asked))
    assert keeper.total(at, [0, 1, 2, 3], GROUP)


def test_a_keeper_that_has_gone_is_named() -> None:
    with KeeperProcess(AUTHORITY, **OWN) as process:
        process.key(terms())
    with pytest.raises(ProtocolError, match="the mask keeper has gone"):
        process.key(terms())
