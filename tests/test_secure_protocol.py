"""The pairwise protocol: the right sum for every pattern of dropouts, and nothing else for anybody."""

import hashlib
from collections.abc import Collection
from itertools import combinations

import numpy as np
import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from scipy.stats import chisquare

from parties import AUTHORITY, Session, plain_sum, terms
from winnow.privacy.secagg import shamir
from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.secagg.key_agreement import KeyPair, mask_purpose, peer_message_purpose, seal_with, unseal_with
from winnow.privacy.secagg.masking_graph import (
    COLLUDING_SHARE,
    DROPOUT_SHARE,
    MaskingGraph,
    ring_shares_needed,
    safe_degree,
)
from winnow.privacy.secagg.masks import add_mask
from winnow.privacy.secagg.modular_vectors import ModularVector, vector_group
from winnow.privacy.secagg.pairwise_client import PairwiseClient
from winnow.privacy.secagg.pairwise_server import PairwiseServer
from winnow.privacy.secagg.session_terms import KeyDirectory, survivors_statement
from winnow.privacy.secagg.simulated_identities import SimulatedIdentities

GROUP = vector_group([(20, 13), (3, 40), (2, 64)])
STAYS, NO_SHARES, NO_VECTOR, NO_SIGNATURE, NO_REVEAL = range(5)


def session_with(pattern: list[int], **changes: object) -> Session:
    """A session in which client 3·i drops out before the step that its entry names."""
    clients = [3 * i for i in range(len(pattern))]
    gone = {step: [client for client, own in zip(clients, pattern, strict=True) if own == step] for step in range(5)}
    session = Session(terms(**changes), GROUP, clients)
    session.share(gone[NO_SHARES])
    session.mask(gone[NO_VECTOR])
    session.reveal(session.confirm(gone[NO_SIGNATURE]), gone[NO_REVEAL])
    return session


def assert_sum_of_survivors(session: Session) -> None:
    plain = plain_sum(GROUP, [session.vectors[client] for client in session.tally.survivors])
    assert [words.tolist() for words in session.total()] == plain


# Sums -----------------------------------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(pattern=st.lists(st.sampled_from([STAYS, STAYS, *range(5)]), min_size=3, max_size=10))
def test_the_sum_is_exact_for_every_pattern_of_dropouts_above_the_threshold(pattern: list[int]) -> None:
    needed = -(-2 * len(pattern) // 3)
    assume(pattern.count(STAYS) >= needed)
    assert_sum_of_survivors(session_with(pattern))


@settings(max_examples=25, deadline=None)
@given(
    pattern=st.lists(st.sampled_from([STAYS] * 5 + [*range(5)]), min_size=9, max_size=16),
    neighbours=st.sampled_from([4, 6]),
)
def test_so_is_that_of_a_ring(pattern: list[int], neighbours: int) -> None:
    try:
        session = session_with(pattern, graph="ring", neighbours=neighbours)
        total = session.total()
    except ProtocolError:
        reject()  # somebody has too few neighbours left
    plain = plain_sum(GROUP, [session.vectors[client] for client in session.tally.survivors])
    assert [words.tolist() for words in total] == plain


def test_a_ring_without_dropouts_gives_its_sum() -> None:
    assert_sum_of_survivors(session_with([STAYS] * 15, graph="ring", neighbours=4))


@pytest.mark.parametrize("pattern", [[NO_VECTOR] * 2 + [STAYS] * 3, [NO_SHARES] * 2 + [STAYS] * 3])
def test_too_few_survivors_reveal_nothing(pattern: list[int]) -> None:
    with pytest.raises(ProtocolError, match=r"too few|it takes"):
        session_with(pattern)


def test_too_few_who_reveal_give_no_sum() -> None:
    session = session_with([NO_REVEAL] * 3 + [STAYS] * 3)
    with pytest.raises(ProtocolError, match="3 shares of client 0's self-mask seed are too few, 4 are needed"):
        session.total()


# What others see ------------------------------------------------------------------------------------------------------

WIDE = vector_group([(60_000, 6)])


def looks_uniform(words: "np.ndarray[tuple[int], np.dtype[np.unsignedinteger]]") -> bool:
    return bool(chisquare(np.bincount(words, minlength=64)).pvalue > 1e-5)


def zeros_session(clients: int, **changes: object) -> Session:
    """Everybody's vector is zero, so whatever is left of a vector without its masks is plain to see."""
    session = Session(terms(**changes), WIDE, list(range(clients)))
    session.vectors = {client: WIDE.zeros() for client in session.clients}
    return session


def test_a_masked_vector_is_uniform() -> None:
    session = zeros_session(4)
    session.share()
    session.mask()
    for packed in session.masked.values():
        assert looks_uniform(WIDE.unpack(packed)[0])


def without_what_colluders_know(session: Session, victim: int, colluders: Collection[int]) -> ModularVector:
    """A victim's masked vector after the colluders have taken off every mask that they have in common with it.

    The server helps them: it hands out all that was revealed to it. Its view of the survivors' self-mask seeds is what
    the protocol gives it, so those go as well.
    """
    left = WIDE.unpack(session.masked[victim])
    shares = {holder: own[victim] for holder, own in session.shares.items() if victim in own}
    graph = session.terms.masking_graph(session.clients)
    holders = graph.holders(victim)
    needed = session.terms.shares_needed(graph, len(holders))
    add_mask(left, shamir.combine({h: s for h, s in shares.items() if h in holders}, needed), WIDE, sign=-1)
    for peer in {*colluders} & {*graph.neighbours(victim)}:
        pair = session.members[peer]._masking
        seed = pair.agree(
            session.advertised[victim].masking, mask_purpose(victim, peer, b"inputs"), session.terms.session
        )
        add_mask(left, seed, WIDE, sign=-1 if victim < peer else 1)
    return WIDE.reduce(left)


@pytest.mark.parametrize(
    ("clients", "colluders", "changes"),
    [(6, [4, 5], {}), (9, [0, 3, 5], {}), (12, [0, 1, 2], {"graph": "ring", "neighbours": 6})],
)
def test_honest_vectors_stay_uniform_without_the_masks_that_colluders_can_compute(
    clients: int, colluders: list[int], changes: dict[str, object]
) -> None:
    session = zeros_session(clients, **changes)
    session.share()
    session.mask()
    session.reveal(session.confirm())
    honest = [client for client in session.clients if client not in colluders]
    left = {client: without_what_colluders_know(session, client, colluders) for client in honest}
    assert all(looks_uniform(words[0]) for words in left.values())
    for some in combinations(honest, 2):  # nor do two of them cancel each other's masks
        pair = WIDE.zeros()
        for client in some:
            WIDE.add(pair, left[client])
        assert looks_uniform(WIDE.reduce(pair)[0])
    everything = WIDE.zeros()
    for words in left.values():
        WIDE.add(everything, words)
    assert not WIDE.reduce(everything)[0].any()  # all together they are the honest clients' sum: that is the purpose


def test_the_test_can_fail_if_all_but_one_collude_the_vector_is_bare() -> None:
    session = zeros_session(4)
    session.share()
    session.mask()
    session.reveal(session.confirm())
    assert not without_what_colluders_know(session, 0, [1, 2, 3])[0].any()


def test_fewer_shares_than_the_threshold_say_nothing_of_a_secret() -> None:
    """Two shares of a secret that takes three are as likely under any secret: their values are uniform."""
    found = np.array(
        [np.frombuffer(b"".join([*shamir.split(bytes(32), range(5), 3).values()][:2]), "<u4") for _ in range(3_000)]
    )
    for column in found.T:
        counts, _ = np.histogram(column, bins=16, range=(0, int(shamir.PRIME)))
        assert chisquare(counts).pvalue > 1e-6


def test_clients_who_were_told_different_things_have_masks_that_do_not_cancel() -> None:
    session = zeros_session(4)
    session.share()
    for client, member in session.members.items():
        inputs_digest = b"inputs" if client else b"something else"
        session.tally.add(
            client, member.mask(session.tally.encrypted_shares_to(client), WIDE.zeros(), WIDE, inputs_digest)
        )
    signatures = session.confirm()
    with pytest.raises(ProtocolError, match="1 members have signed this client's list of survivors, 3 are needed"):
        session.members[0].reveal(signatures)
    session.reveal(signatures, gone=[0])
    assert looks_uniform(session.total()[0])


# A lying server -------------------------------------------------------------------------------------------------------


def masked_session(clients: int = 6) -> Session:
    session = Session(terms(), GROUP, list(range(clients)))
    session.share()
    session.mask()
    return session


def test_a_client_confirms_one_list_a_session() -> None:
    session = masked_session()
    member = session.members[0]
    member.confirm([0, 1, 2, 3, 4, 5])
    assert member.confirm([5, 4, 3, 2, 1, 0])  # the same list in another order
    with pytest.raises(ProtocolError, match="a different survivor list was already confirmed"):
        member.confirm([0, 1, 2, 3])


def test_a_server_that_shows_different_lists_learns_no_share() -> None:
    """To one half of the clients, client 5 dropped out; to the other it survived."""
    session = masked_session()
    without, everyone = [0, 1, 2, 3, 4], [0, 1, 2, 3, 4, 5]
    lists = {0: without, 1: without, 2: without, 3: everyone, 4: everyone, 5: everyone}
    signatures = {client: session.members[client].confirm(own) for client, own in lists.items()}
    for client in lists:
        with pytest.raises(ProtocolError, match="3 members have signed this client's list of survivors, 4 are needed"):
            session.members[client].reveal(signatures)


def test_a_signature_does_not_count_for_another_client_session_round_or_list() -> None:
    session = masked_session()
    survivors = session.tally.survivors
    signatures = session.confirm()
    forged = dict.fromkeys(survivors, signatures[0])
    roster, changed = session.roster(), replace(session.terms, round=2)

    def signed_by(authority: SimulatedIdentities, *content: object) -> dict[int, bytes]:
        return {client: authority.sign(client, survivors_statement(*content)) for client in survivors}

    assert signed_by(AUTHORITY, session.terms, roster, b"inputs", survivors) == signatures
    other = signed_by(AUTHORITY, terms(), roster, b"inputs", survivors)
    later = signed_by(AUTHORITY, changed, roster, b"inputs", survivors)
    shorter = signed_by(AUTHORITY, session.terms, roster, b"inputs", survivors[1:])
    among_others = signed_by(AUTHORITY, session.terms, session.roster([*survivors, 9]), b"inputs", survivors)
    told_else = signed_by(AUTHORITY, session.terms, roster, b"something else", survivors)
    unknown = signed_by(SimulatedIdentities(), session.terms, roster, b"inputs", survivors)
    for wrong in (forged, other, later, shorter, among_others, told_else, unknown):
        with pytest.raises(ProtocolError, match="members have signed"):
            session.members[0].reveal(wrong)
    assert session.members[0].reveal(signatures)


def test_shares_are_revealed_once_and_never_both_of_one_client() -> None:
    session = masked_session()
    signatures = session.confirm()
    revealed = session.members[0].reveal(signatures)
    assert sorted(revealed) == [0, 1, 2, 3, 4, 5]
    assert all(len(share) == shamir.SHARE_BYTES for share in revealed.values())
    with pytest.raises(ProtocolError, match="shares were already revealed"):
        session.members[0].reveal(signatures)


@pytest.mark.parametrize(
    ("survivors", "reason"),
    [
        ([0, 1, 2], "3 survivors are too few for a sum, 4 are needed"),
        ([1, 2, 3, 4, 5], "or lacks this client"),
        ([0, 0, 1, 2, 3, 4], "a duplicate"),
        ([0, 1, 2, 3, 4, 5, 6], "has a non-member"),
    ],
)
def test_a_list_that_cannot_be_is_not_confirmed(survivors: list[int], reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        masked_session().members[0].confirm(survivors)


def test_one_who_never_shared_secrets_is_no_survivor() -> None:
    session = Session(terms(), GROUP, list(range(6)))
    session.share(gone=[5])
    session.mask()
    with pytest.raises(ProtocolError, match="client 5 is called a survivor and has shared no secrets"):
        session.members[0].confirm([0, 1, 2, 3, 4, 5])


def test_a_forged_announcement_is_refused() -> None:
    session = Session(terms(), GROUP, list(range(4)))
    directory = session.tally.directory(0)
    mine = replace(directory.advertisements[0], masking=KeyPair().public)
    forged = KeyDirectory(members=directory.members, advertisements=[mine, *directory.advertisements[1:]])
    with pytest.raises(ProtocolError, match="client 1 did not sign its key advertisement"):
        session.members[0].share_keys(forged)
    later = PairwiseClient(0, replace(session.terms, round=2), AUTHORITY)
    with pytest.raises(ProtocolError, match="client 1 did not sign its key advertisement"):
        later.share_keys(directory)


@pytest.mark.parametrize(
    ("members", "advertised", "reason"),
    [
        ([0, 1], [1], "2 members are too few for a sum, 3 are needed"),
        ([1, 2, 3], [1, 2, 3], "lacks this client"),
        ([0, 1, 2, 3], [1, 2], "not those of this client's neighbours"),
    ],
)
def test_a_directory_that_cannot_be_is_refused(members: list[int], advertised: list[int], reason: str) -> None:
    session = Session(terms(min_clients=3), GROUP, list(range(4)))
    given_ = [session.advertised[client] for client in advertised]
    with pytest.raises(ProtocolError, match=reason):
        session.members[0].share_keys(KeyDirectory(members=members, advertisements=given_))


def test_steps_are_taken_in_order_and_once() -> None:
    session = Session(terms(), GROUP, list(range(4)))
    member, vector = session.members[0], session.vectors[0]
    for step, reason in (
        (lambda: member.mask({}, vector, GROUP), "has not shared its keys"),
        (lambda: member.confirm([0, 1, 2, 3]), "no vector was masked"),
        (lambda: member.reveal({}), "no list of survivors was confirmed"),
    ):
        with pytest.raises(ProtocolError, match=reason):
            step()
    session.share()
    with pytest.raises(ProtocolError, match="has already shared its keys"):
        member.share_keys(session.tally.directory(0))
    session.mask()
    with pytest.raises(ProtocolError, match="has already masked a vector"):
        member.mask(session.tally.encrypted_shares_to(0), vector, GROUP)


def test_messages_from_strangers_or_from_too_few_are_refused() -> None:
    session = Session(terms(), GROUP, list(range(6)))
    session.share()
    encrypted_shares = session.tally.encrypted_shares_to(0)
    with pytest.raises(ProtocolError, match="a message from client 9, who shares no masks"):
        session.members[0].mask({**encrypted_shares, 9: b""}, session.vectors[0], GROUP)
    with pytest.raises(ProtocolError, match="3 clients hold shares of this one's secrets, and it takes 4"):
        session.members[0].mask({1: encrypted_shares[1], 2: encrypted_shares[2]}, session.vectors[0], GROUP)


def cut_out(session: Session, block: int) -> list[int]:
    """Those who are left if k/2 members on either side of a block of so many are called dropouts, who did not."""
    graph = session.terms.masking_graph(session.clients)
    order, half = graph._order, graph.degree // 2
    gone = {*order[block : block + half], *order[-half:]}
    return sorted({*session.clients} - gone)


@pytest.mark.parametrize("block", [2, 4, 5, 6])
def test_a_server_cannot_cut_a_piece_out_of_the_ring(block: int) -> None:
    """Those in it would share masks with one another alone, so the sum over them could be told from that of all.

    Most of them have more than half of their neighbours left, so that it takes a look at the whole ring.
    """
    session = Session(terms(graph="ring", neighbours=6), GROUP, list(range(30)))
    session.share()
    session.mask()
    survivors = cut_out(session, block)
    assert len(survivors) >= session.tally.needed
    for client in survivors:
        with pytest.raises(ProtocolError, match="too many consecutive neighbours are listed as dropouts"):
            session.members[client].confirm(survivors)


@settings(max_examples=200, deadline=None)
@given(gone=st.sets(st.integers(0, 23), max_size=12), neighbours=st.sampled_from([2, 4, 6, 8]))
def test_a_ring_that_is_not_torn_is_in_one_piece(gone: set[int], neighbours: int) -> None:
    graph = MaskingGraph(tuple(range(24)), 1, neighbours)
    survivors = {*range(24)} - gone
    if graph.may_be_disconnected(survivors):
        return
    reached = edge = {min(survivors)}
    while edge:
        edge = {peer for member in edge for peer in graph.neighbours(member)} & survivors - reached
        reached = reached | edge
    assert reached == survivors


@pytest.mark.parametrize("start", range(24))
def test_a_ring_is_torn_wherever_too_few_in_a_row_are_left(start: int) -> None:
    graph = MaskingGraph(tuple(range(24)), 1, 10)
    row = [graph._order[(start + step) % 24] for step in range(5)]
    assert graph.may_be_disconnected({*range(24)} - {*row})
    assert graph.may_be_disconnected({*range(24)} - {*row[1:]})
    assert not graph.may_be_disconnected({*range(24)} - {*row[2:]})  # two of five are more than a quarter


@pytest.mark.parametrize("clients", [100, 1_000])
def test_a_ring_is_hardly_ever_torn_by_chance(clients: int) -> None:
    rng, graph = np.random.default_rng(clients), MaskingGraph(tuple(range(clients)), 1, safe_degree(clients))
    staying = round((1 - DROPOUT_SHARE) * clients)
    assert not any(graph.may_be_disconnected(rng.choice(clients, staying, replace=False)) for _ in range(200))


# Bad clients ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("which", ["sealing", "masking"])
def test_whoever_announces_a_key_that_is_none_is_named(which: str) -> None:
    session = Session(terms(), GROUP, list(range(6)))
    bad = replace(session.advertised[2], **{which: bytes(32)})
    bad = replace(bad, signature=AUTHORITY.sign(2, bad.signed(session.terms)))
    session.tally = PairwiseServer(session.terms, GROUP, [*({**session.advertised, 2: bad}).values()], b"inputs")

    def go_on() -> None:
        session.share()
        session.mask()

    with pytest.raises(ProtocolError, match="client 2 advertised an invalid public key"):
        go_on()


def test_a_vector_comes_once_from_a_member_and_fits() -> None:
    session = masked_session()
    with pytest.raises(ProtocolError, match="its vector is in the sum already"):
        session.tally.add(0, session.masked[0])
    with pytest.raises(ProtocolError, match="it has not shared its keys"):
        session.tally.add(77, session.masked[0])
    other = Session(terms(), GROUP, list(range(6)))
    other.share()
    with pytest.raises(ProtocolError, match="bytes, not"):
        other.tally.add(0, session.masked[0][:-1])
    assert other.tally.survivors == []


def test_one_wrong_share_is_worked_around() -> None:
    session = masked_session()
    session.reveal(session.confirm())
    session.shares[0] = {member: bytes(shamir.SHARE_BYTES) for member in session.shares[0]}
    assert_sum_of_survivors(session)


def test_too_many_wrong_shares_give_no_sum() -> None:
    session = masked_session()
    session.reveal(session.confirm())
    for liar in (0, 1, 2):
        session.shares[liar] = {member: bytes(shamir.SHARE_BYTES) for member in session.shares[liar]}
    with pytest.raises(ProtocolError, match="do not fit: one of its holders sent a wrong one"):
        session.total()


def test_whoever_sent_shares_that_cannot_be_decrypted_is_named() -> None:
    session = Session(terms(), GROUP, list(range(6)))
    session.share()
    session.tally.add_encrypted_shares(5, dict.fromkeys(range(5), b"nonsense" * 12))
    session.mask()
    session.reveal(session.confirm())
    assert all(5 not in shares for client, shares in session.shares.items() if client != 5)
    with pytest.raises(ProtocolError, match="shares of client 5's self-mask seed are too few"):
        session.total()


def test_a_client_announces_once_and_to_its_neighbours() -> None:
    session = Session(terms(), GROUP, list(range(4)))
    with pytest.raises(ProtocolError, match="advertised its keys twice"):
        PairwiseServer(session.terms, GROUP, [*session.advertised.values(), session.advertised[0]])
    with pytest.raises(ProtocolError, match="1 client is too few for a sum, 2 are needed"):
        PairwiseServer(session.terms, GROUP, [session.advertised[0]])
    with pytest.raises(ProtocolError, match="its messages are not addressed to its neighbours"):
        session.tally.add_encrypted_shares(0, {1: b""})


# Shares, key agreement, rings -----------------------------------------------------------------------------------------


@settings(max_examples=60, deadline=None)
@given(data=st.data(), secret=st.binary(min_size=32, max_size=32), holders=st.integers(1, 30))
def test_any_t_shares_give_the_secret(data: st.DataObject, secret: bytes, holders: int) -> None:
    numbers = data.draw(st.lists(st.integers(0, 10**6), min_size=holders, max_size=holders, unique=True))
    threshold = data.draw(st.integers(1, holders))
    shares = shamir.split(secret, numbers, threshold)
    chosen = data.draw(st.permutations(numbers))[:threshold]
    assert shamir.combine({number: shares[number] for number in chosen}, threshold) == secret
    with pytest.raises(ProtocolError, match="are too few"):
        shamir.combine({number: shares[number] for number in chosen[:-1]}, threshold)


@pytest.mark.parametrize(
    ("share", "reason"),
    [(b"short", "a share has 36 bytes, not 5"), (b"\xff" * 36, "a share has a value outside the field")],
)
def test_a_share_that_is_none_is_refused(share: bytes, reason: str) -> None:
    with pytest.raises(ProtocolError, match=reason):
        shamir.combine({0: share}, 1)


def test_a_message_is_for_its_addressee_alone() -> None:
    one, two = KeyPair(), KeyPair()
    purpose = peer_message_purpose(1, 2, b"roster")
    sealed = seal_with(one.agree(two.public, purpose, b"session"), b"shares", purpose)
    assert unseal_with(two.agree(one.public, purpose, b"session"), sealed, purpose) == b"shares"
    for about, session in (
        (peer_message_purpose(2, 1, b"roster"), b"session"),
        (peer_message_purpose(1, 2, b"another"), b"session"),
        (purpose, b"another"),
    ):
        key = two.agree(one.public, about, session)
        with pytest.raises(ProtocolError, match="a message that cannot be decrypted"):
            unseal_with(key, sealed, purpose)
    with pytest.raises(ProtocolError, match="an invalid public key"):
        one.agree(bytes(32), purpose, b"session")


@given(count=st.integers(3, 60), degree=st.sampled_from([2, 4, 8]), round=st.integers(1, 5))
def test_in_a_ring_everybody_has_k_neighbours_who_say_so_too(count: int, degree: int, round: int) -> None:
    graph = MaskingGraph(tuple(range(0, 7 * count, 7)), round, degree)
    around = {member: graph.neighbours(member) for member in graph.members}
    assert all(len(peers) == min(degree, count - 1) for peers in around.values())
    assert all(member in around[peer] for member, peers in around.items() for peer in peers)
    reached, edge = {0}, [0]
    while edge:
        edge = [peer for member in edge for peer in around[member] if peer not in reached]
        reached |= {*edge}
    assert len(reached) == count


def test_rings_change_with_the_round_and_the_members() -> None:
    members = tuple(range(40))
    seen = {
        hashlib.sha256(
            str([MaskingGraph(own, number, 4).neighbours(7) for own in (members, members[:-1])]).encode()
        ).digest()
        for number in range(5)
    }
    assert len(seen) == 5


@pytest.mark.parametrize("clients", [100, 300])
def test_the_degree_keeps_its_promises_in_a_drawn_world(clients: int) -> None:
    """Drawn corrupt and dropped clients never come near the thresholds that hold but for one case in a million."""
    degree, rng = safe_degree(clients), np.random.default_rng(clients)
    needed = ring_shares_needed(degree + 1)
    for number in range(10):
        graph = MaskingGraph(tuple(range(clients)), number, degree)
        corrupt = {*rng.choice(clients, int(COLLUDING_SHARE * clients), replace=False).tolist()}
        dropped = {*rng.choice(clients, int(DROPOUT_SHARE * clients), replace=False).tolist()}
        for member in range(clients):
            around = graph.neighbours(member)
            assert len(corrupt.intersection(around)) < needed
            assert len(around) - len(dropped.intersection(around)) >= needed


def test_the_degree_grows_slowly() -> None:
    assert safe_degree(10) == 9
    assert [safe_degree(n) for n in (100, 1_000, 10_000)] == [44, 88, 106]
