"""A server that lies to the clients of secure aggregation about weights, members or scales: sites refuse, by name."""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from dataclasses import replace as changed
from functools import cached_property
from itertools import islice
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as hypothesis
from hypothesis import strategies as st
from numpy.typing import NDArray

from winnow.core import Failure, Outcome, Reply, Task, stream, wrap
from winnow.learn.client_round_method import TrainSettings
from winnow.learn.profile_comparison import SiteExtension
from winnow.learn.secure_randomness import secure_stream
from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.secagg.interrupted_session import close_statement
from winnow.privacy.secagg.modular_vectors import Segment, VectorGroup
from winnow.privacy.secagg.pairwise_server import PairwiseServer
from winnow.privacy.secagg.protocol_tasks import (
    ADVERTISE_KEYS,
    CLOSE_SESSION,
    CONSISTENCY_CHECK,
    DEPOSIT_SEED,
    ENCODING,
    MASKED_INPUT,
    SECURE,
    SHARE_KEYS,
    UNMASK,
    StepSettings,
    as_array,
    payload_bytes,
    session_inputs_payload,
)
from winnow.privacy.secagg.secure_collect import SecureAggregation
from winnow.privacy.secagg.session_inputs import SessionInputs
from winnow.privacy.secagg.session_terms import KeyAdvertisement, read_message, write_message
from winnow.privacy.secagg.simulated_identities import CachedIdentities, SimulatedIdentities, simulated_identities
from winnow.privacy.secagg.third_party_mask_keeper import MaskKeeper, SeedDeposit
from winnow.privacy.secagg.update_encoding_interface import DecodedSum, EncodingParameters
from winnow.privacy.secagg.update_layout import UpdateLayout

CLIENTS = 6
EVERYBODY = list(range(CLIENTS))
MODEL = {"w": torch.zeros(20, 10), "b": torch.zeros(10)}
ALIKE = [1.0] * CLIENTS
TINY = 2.0**-24


def update(client: int) -> dict[str, torch.Tensor]:
    rng = np.random.default_rng(client)
    return {name: torch.tensor(rng.normal(size=tuple(like.shape)), dtype=torch.float32) for name, like in MODEL.items()}


def train(tasks: Sequence[Task], site: object) -> list[Outcome]:
    return [Reply(task=task, payload={"model": update(task.client)}) for task in tasks]


@dataclass
class Server:
    """Sites, and a server that holds the conversation with them in its own way."""

    at: SiteExtension = field(default_factory=lambda: SecureAggregation().site_extension(stream))
    settings: SecureAggregation = field(default_factory=SecureAggregation)
    round: int = 1

    def __post_init__(self) -> None:
        self.session = os.urandom(16)
        self.terms = self.settings.terms(self.session, self.round)
        self.layout = UpdateLayout.of({"model": dict(sorted(MODEL.items()))})
        spread = [3 * np.ones(entry.shape) for entry in self.layout.entries]
        self.parameters = self.settings.encoding.first(self.layout, spread, 1)
        trained = TrainSettings(local=None, client=None, seed=7, profile=False, start_loss=False)
        for client in EVERYBODY:
            self.ask("train", client, {"model": MODEL}, settings=trained)

    def ask(
        self, name: str, client: int, payload: Mapping[str, Any], peer_messages: Any = None, settings: Any = None
    ) -> Reply:
        task = Task(
            name=name,
            client=client,
            round=self.round,
            version=0,
            payload=payload,
            settings=settings or StepSettings(session=self.session),
            peer_messages=peer_messages or {},
        )
        (outcome,) = wrap(self.at.handlers.get(name, train), self.at.filters)([task], None)
        if isinstance(outcome, Failure):
            raise ProtocolError(outcome.reason)
        return outcome

    def inputs(self, weights: Sequence[float], members: Sequence[int] = EVERYBODY, /, **more: Any) -> SessionInputs:
        parameters = changed(self.parameters, arrays={**self.parameters.arrays, **more})
        return SessionInputs(members=np.array(members), weights=np.array(weights), parameters=parameters)

    @cached_property
    def tally(self) -> PairwiseServer:
        asked = [self.ask(ADVERTISE_KEYS, client, {}) for client in EVERYBODY]
        advertised = [read_message(payload_bytes(reply.payload, "advertisement"), KeyAdvertisement) for reply in asked]
        tally = PairwiseServer(self.terms, self.settings.encoding.group(self.layout, CLIENTS), advertised)
        for client in EVERYBODY:
            payload = {SECURE: {"directory": as_array(write_message(tally.directory(client)))}}
            tally.add_encrypted_shares(client, self.ask(SHARE_KEYS, client, payload).peer_messages)
        return tally

    def mask(self, client: int, inputs: SessionInputs) -> None:
        self.tally.inputs_digest = inputs.digest(self.session, MODEL)
        reply = self.ask(MASKED_INPUT, client, session_inputs_payload(inputs), self.tally.encrypted_shares_to(client))
        self.tally.add(client, payload_bytes(reply.payload, "words"))

    def confirm(self, client: int, survivors: Sequence[int]) -> bytes:
        return payload_bytes(
            self.ask(CONSISTENCY_CHECK, client, {SECURE: {"survivors": np.array(survivors)}}).payload, "signature"
        )

    def deposit(self, client: int, inputs: SessionInputs, keeper: MaskKeeper) -> None:
        payload = session_inputs_payload(inputs)
        payload = {**payload, SECURE: {**payload[SECURE], "keeper": as_array(write_message(keeper.key(self.terms)))}}
        deposited = payload_bytes(self.ask(DEPOSIT_SEED, client, payload).payload, "deposit")
        keeper.deposit(self.terms, read_message(deposited, SeedDeposit))

    def sum(self) -> DecodedSum:
        """What an honest server gets."""
        for client in EVERYBODY:
            self.mask(client, self.inputs(ALIKE))
        signatures = {client: self.confirm(client, EVERYBODY) for client in EVERYBODY}
        payload = {SECURE: {"signatures": as_array(write_message(signatures))}}
        asked = {client: self.ask(UNMASK, client, payload) for client in EVERYBODY}
        shares = {
            client: read_message(payload_bytes(reply.payload, "shares"), dict[int, bytes])
            for client, reply in asked.items()
        }
        return self.settings.encoding.decode(self.layout, self.tally.finish(shares), self.parameters, CLIENTS, CLIENTS)


def with_keeper() -> Server:
    settings = SecureAggregation(keeper=True)
    return Server(at=settings.site_extension(stream), settings=settings)


def weights_of(decoded: DecodedSum) -> NDArray[np.float64]:
    return decoded.sums[1]


# Weights --------------------------------------------------------------------------------------------------------------

LOPSIDED = [1.0, *[0.02] * 5]
"""Of these weights the first is 0.91, and of their squares, as which updates add up, 0.998."""


@pytest.mark.parametrize("client", [0, 3])
def test_nobody_takes_part_where_one_client_has_nearly_all_the_weight(client: int) -> None:
    """Not only the heavy one refuses: if the others do not, its update is masked by nothing."""
    server = Server()
    with pytest.raises(
        ProtocolError, match=r"one client makes up 100% of the sum, and collect.max_weight_share is 75%"
    ):
        server.mask(client, server.inputs(LOPSIDED))
    server = with_keeper()
    keeper = MaskKeeper(simulated_identities(), threshold=2 / 3, min_clients=3, max_weight_share=0.75)
    with pytest.raises(ProtocolError, match="one client makes up 100% of the sum"):
        server.deposit(client, server.inputs(LOPSIDED), keeper)


def test_the_share_of_one_client_is_as_large_as_the_job_allows() -> None:
    weights = [1.0, *[0.3] * 5]  # 1 / (1 + 5 · 0.09) = 0.69
    Server().mask(0, Server().inputs(weights))
    strict = SecureAggregation(max_weight_share=0.6)
    server = Server(at=strict.site_extension(stream), settings=strict)
    with pytest.raises(ProtocolError, match=r"one client makes up 69% of the sum, and collect.max_weight_share is 60%"):
        server.mask(0, server.inputs(weights))


def test_nobody_confirms_survivors_of_whom_one_has_nearly_all_the_weight() -> None:
    """All together they were balanced; then the server calls the other heavy one a dropout."""
    server = Server()
    inputs = server.inputs([1.0, 1.0, TINY, TINY, TINY, TINY])
    for client in EVERYBODY:
        server.mask(client, inputs)
    for client in (0, 2, 3, 4, 5):
        with pytest.raises(ProtocolError, match="one client makes up 100% of the sum"):
            server.confirm(client, [0, 2, 3, 4, 5])
    assert all(server.confirm(client, EVERYBODY) for client in EVERYBODY)


def test_nor_does_the_keeper_tell_their_sum() -> None:
    server = with_keeper()
    keeper = MaskKeeper(simulated_identities(), threshold=2 / 3, min_clients=3, max_weight_share=0.75)
    for client in EVERYBODY:
        server.deposit(client, server.inputs([1.0, 1.0, TINY, TINY, TINY, TINY]), keeper)
    with pytest.raises(ProtocolError, match="one client makes up 100% of the sum"):
        keeper.total(server.terms, [0, 2, 3, 4, 5], server.settings.encoding.group(server.layout, CLIENTS))


def test_nor_a_sum_in_another_group_than_the_clients_vectors() -> None:
    """With a bit more a word, the sum of the masks shows every carry: how many of the clients' masks were large."""
    server = with_keeper()
    keeper = MaskKeeper(simulated_identities(), threshold=2 / 3, min_clients=3, max_weight_share=0.75)
    for client in EVERYBODY:
        server.deposit(client, server.inputs(ALIKE), keeper)
    own = server.settings.encoding.group(server.layout, CLIENTS)
    wider = VectorGroup(tuple(Segment(each.count, min(64, each.bits + 1)) for each in own.segments))
    as_long = VectorGroup((Segment(own.packed_bytes, 8),))
    for other in (wider, as_long):
        with pytest.raises(ProtocolError, match="a different group than the clients' vectors use"):
            keeper.total(server.terms, EVERYBODY, other)
    assert keeper.total(server.terms, EVERYBODY, own)


def test_weights_are_those_of_the_sessions_members() -> None:
    """Others could be named who balance a heavy one, and are not in the sum at all."""
    server = Server()
    assert server.tally.members == EVERYBODY
    with pytest.raises(ProtocolError, match="the weights do not match this session's members"):
        server.mask(0, server.inputs([1.0, *[TINY] * 5, 1.0], [*EVERYBODY, 77]))
    with pytest.raises(ProtocolError, match="the weights do not match this session's members"):
        server.mask(0, server.inputs([1.0] * 3, [0, 1, 2]))


# Session inputs -------------------------------------------------------------------------------------------------------


def test_a_digest_tells_everything_apart_that_clients_are_told() -> None:
    server = Server()
    inputs = server.inputs(ALIKE)
    scales = {"scale": 2 * server.parameters.arrays["scale"]}
    moved = {**MODEL, "b": MODEL["b"] + 1}
    digests = [
        inputs.digest(server.session, MODEL),
        inputs.digest(os.urandom(16), MODEL),
        inputs.digest(server.session, moved),
        inputs.digest(server.session, {"b": MODEL["b"], "w": MODEL["w"].reshape(10, 20)}),
        server.inputs([*ALIKE[:-1], 0.5]).digest(server.session, MODEL),
        server.inputs(ALIKE, [*EVERYBODY[:-1], 9]).digest(server.session, MODEL),
        server.inputs(ALIKE, **scales).digest(server.session, MODEL),
        changed(inputs, parameters=changed(inputs.parameters, version=5)).digest(server.session, MODEL),
    ]
    assert len({*digests}) == len(digests)
    assert inputs.digest(server.session, dict(reversed(MODEL.items()))) == digests[0]


def test_parameters_that_are_called_weights_do_not_stand_for_weights() -> None:
    """They once did in the digest: every client could be told weights of its own, and none the wiser."""
    server = Server()
    named = {"members": np.arange(6.0), "weights": np.array(ALIKE)}
    one, other = server.inputs(ALIKE, **named), server.inputs([1.0, *[0.5] * 5], **named)
    assert one.digest(server.session, MODEL) != other.digest(server.session, MODEL)
    with pytest.raises(ProtocolError, match="the encoding's parameters do not fit"):
        server.mask(0, one)


@pytest.mark.parametrize(
    "wrong",
    [
        {"zero": np.array([0.0])},
        {"zero": np.array([np.nan])},
        {"scale": np.array([np.inf])},
        {"scale": np.array([[0.1]])},
        {"bias": np.array([1.0])},
    ],
)
def test_parameters_that_no_honest_server_tells_are_refused(wrong: dict[str, Any]) -> None:
    server = Server()
    with pytest.raises(ProtocolError, match="the encoding's parameters do not fit"):
        server.mask(0, server.inputs(ALIKE, **wrong))


@pytest.mark.parametrize(
    ("part", "name", "numbers", "reason"),
    [
        (SECURE, "weights", np.array([1.0, np.nan, 1, 1, 1, 1]), "the message has no valid weights"),
        (SECURE, "members", np.array([0.0, np.inf, 2, 3, 4, 5]), "the message has no valid members"),
        (ENCODING, "version", np.array([np.nan]), "the encoding parameters have no version"),
        (ENCODING, "version", np.zeros(0), "the encoding parameters have no version"),
    ],
)
def test_numbers_that_are_none_are_refused(part: str, name: str, numbers: Any, reason: str) -> None:
    server = Server()
    payload = session_inputs_payload(server.inputs(ALIKE))
    payload = {**payload, part: {**payload[part], name: numbers}}
    with pytest.raises(ProtocolError, match=reason):
        server.ask(MASKED_INPUT, 0, payload, server.tally.encrypted_shares_to(0))


# Two sessions in a round ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("step", [ADVERTISE_KEYS, SHARE_KEYS, MASKED_INPUT, CONSISTENCY_CHECK, UNMASK])
def test_who_has_masked_in_one_session_of_a_round_takes_no_step_in_another(step: str) -> None:
    """Sessions are the server's choice: it could run as many at once as it likes."""
    server = Server()
    server.mask(0, server.inputs(ALIKE))
    first, server.session = server.session, os.urandom(16)
    directory = as_array(write_message(server.tally.directory(0)))
    payload = {"directory": directory, "survivors": np.array(EVERYBODY), "signatures": as_array(write_message({}))}
    with pytest.raises(ProtocolError, match=r"was already sent|is not in this session"):
        server.ask(
            step,
            0,
            {
                **session_inputs_payload(server.inputs(ALIKE)),
                SECURE: {**session_inputs_payload(server.inputs(ALIKE))[SECURE], **payload},
            },
        )
    server.session = first
    assert server.confirm(0, EVERYBODY), "and goes on in the first"


def test_keys_that_were_announced_anew_have_nothing_to_do_with_the_old_ones() -> None:
    """Before it has masked a client may be asked to begin again, in the same session even."""
    server = Server()
    peer_messages = server.tally.encrypted_shares_to(0)
    server.ask(ADVERTISE_KEYS, 0, {})
    with pytest.raises(ProtocolError, match="do not match this session's members"):
        server.ask(MASKED_INPUT, 0, session_inputs_payload(server.inputs(ALIKE)), peer_messages)


# A round that is held again -------------------------------------------------------------------------------------------


class Remembered(SimulatedIdentities):
    """Remembers what has left and what was signed, as a site's agent does."""

    def __init__(self) -> None:
        super().__init__()
        self.notes: dict[int, bytes] = {}
        self.ballots: dict[tuple[int, bytes], bytes] = {}

    def sign_once(self, party: int, message: bytes, ballot: bytes) -> bytes:
        if self.ballots.setdefault((party, ballot), message) != message:
            raise ProtocolError("something else was signed for this ballot before")
        return self.sign(party, message)

    def release(self, party: int, round: int, what: str = "update", note: bytes = b"", instead_of: bytes = b"") -> int:
        if self.notes.get(party, b"") != instead_of:
            return 0
        self.notes[party] = note
        return 1

    def release_note(self, party: int, round: int) -> bytes:
        return self.notes.get(party, b"")


def asked_again(server: Server, client: int, close_signatures: Mapping[int, bytes]) -> KeyAdvertisement:
    """In a new session."""
    payload = {SECURE: {"close_signatures": as_array(write_message(dict(close_signatures)))}}
    return read_message(
        payload_bytes(server.ask(ADVERTISE_KEYS, client, payload).payload, "advertisement"), KeyAdvertisement
    )


def masked_by_all() -> tuple[Server, Remembered]:
    own = Remembered()
    server = Server(at=SecureAggregation().site_extension(secure_stream, own))
    for client in EVERYBODY:
        server.mask(client, server.inputs(ALIKE))
    return server, own


def close_signatures(server: Server, clients: Iterable[int]) -> dict[int, bytes]:
    found = {}
    for client in clients:
        with suppress(ProtocolError):
            found[client] = payload_bytes(server.ask(CLOSE_SESSION, client, {}).payload, "close_signature")
    return found


def test_a_server_that_has_opened_a_sum_cannot_call_it_interrupted() -> None:
    own = Remembered()
    server = Server(at=SecureAggregation().site_extension(secure_stream, own))
    server.sum()
    closed = close_signatures(server, EVERYBODY)
    assert closed == {}
    server.session = os.urandom(16)
    for client in EVERYBODY:
        with pytest.raises(ProtocolError, match="0 of its 6 members have closed it, and it takes 4"):
            asked_again(server, client, closed)


@hypothesis(max_examples=12, deadline=None)
@given(first=st.lists(st.booleans(), min_size=CLIENTS, max_size=CLIENTS), restarted=st.booleans())
def test_a_sum_is_opened_or_its_session_closed_and_never_both(first: list[bool], restarted: bool) -> None:
    """Each client is first asked for the one or for the other, and then for both; its process may have died between."""
    server, own = masked_by_all()
    closed = close_signatures(server, [client for client in EVERYBODY if not first[client]])
    lists, old = {}, server.session
    for client in EVERYBODY:
        with suppress(ProtocolError):
            lists[client] = server.confirm(client, EVERYBODY)
    if restarted:
        server.at = SecureAggregation().site_extension(secure_stream, own)
    closed |= close_signatures(server, EVERYBODY)
    assert not {*closed} & {*lists}
    opened, again = [], []
    for client in EVERYBODY:
        with suppress(ProtocolError):
            server.ask(UNMASK, client, {SECURE: {"signatures": as_array(write_message(lists))}})
            opened.append(client)
    server = Server(at=server.at, settings=server.settings)
    assert server.session != old
    for client in EVERYBODY:
        with suppress(ProtocolError):
            again.append(asked_again(server, client, closed))
    assert not (opened and again)
    assert bool(again) == (len(closed) >= 4)


@pytest.mark.parametrize(
    "wrong",
    [
        lambda server, own, good: dict(islice(good.items(), 3)),
        lambda server, own, good: dict.fromkeys(EVERYBODY, good[0]),
        lambda server, own, good: {client + 100: each for client, each in good.items()},
        lambda server, own, good: {
            c: own.sign(c, close_statement(SecureAggregation().terms(bytes(16), 1))) for c in EVERYBODY
        },
        lambda server, own, good: {
            c: own.sign(c, close_statement(SecureAggregation().terms(server.session, 2))) for c in EVERYBODY
        },
    ],
)
def test_close_signatures_of_others_or_of_too_few_do_not_count(wrong: Callable[..., dict[int, bytes]]) -> None:
    server, own = masked_by_all()
    good = close_signatures(server, EVERYBODY)
    bad = wrong(server, own, good)
    server.session = os.urandom(16)
    with pytest.raises(ProtocolError, match="members have closed it, and it takes 4"):
        asked_again(server, 0, bad)
    assert asked_again(server, 0, good)


def test_an_update_leaves_again_for_the_one_exchange_that_was_closed() -> None:
    """The same close_signatures do not serve twice."""
    server, _ = masked_by_all()
    good = close_signatures(server, EVERYBODY)
    server.session = os.urandom(16)
    server.terms = server.settings.terms(server.session, server.round)
    advertised = [asked_again(server, client, good) for client in EVERYBODY]
    server.tally = PairwiseServer(server.terms, server.settings.encoding.group(server.layout, CLIENTS), advertised)
    for client in EVERYBODY:
        payload = {SECURE: {"directory": as_array(write_message(server.tally.directory(client)))}}
        server.tally.add_encrypted_shares(client, server.ask(SHARE_KEYS, client, payload).peer_messages)
    server.mask(0, server.inputs(ALIKE))
    with pytest.raises(ProtocolError, match="0 of its 6 members have closed it"):
        asked_again(server, 0, good)


def test_a_round_with_a_keeper_is_not_held_again_by_closing_another_session() -> None:
    """A server would have pairwise sessions closed in which nothing was summed, and then have the keeper tell as many
    sums with the same update as it likes.
    """
    pairwise, kept = Server().at.handlers.keys(), with_keeper().at.handlers.keys()
    assert kept == {DEPOSIT_SEED}
    assert pairwise == {ADVERTISE_KEYS, CLOSE_SESSION, SHARE_KEYS, MASKED_INPUT, CONSISTENCY_CHECK, UNMASK}


# Chance ---------------------------------------------------------------------------------------------------------------


def test_rounding_repeats_in_a_simulation_and_is_unforeseeable_anywhere_else() -> None:
    """A server that knows the run's seed must not know which values were rounded up: with a coarse scale it could tell
    whose value made a sum go up.
    """
    right = sum(update(client)["w"].double().numpy() for client in EVERYBODY)
    simulated = [weights_of(Server().sum()) for _ in range(2)]
    deployed = [
        weights_of(
            Server(at=SecureAggregation().site_extension(secure_stream, CachedIdentities(SimulatedIdentities()))).sum()
        )
        for _ in range(2)
    ]
    assert np.array_equal(*simulated)
    assert not np.array_equal(*deployed)
    assert not np.array_equal(simulated[0], deployed[0])
    step = Server().parameters.arrays["scale"][0]
    assert all(np.abs(found - right).max() <= CLIENTS * step for found in (*simulated, *deployed))


def test_parameters_read_what_they_wrote() -> None:
    parameters = Server().parameters
    again = EncodingParameters.of(parameters.as_arrays())
    assert again.version == parameters.version
    assert {*again.arrays} == {*parameters.arrays}
