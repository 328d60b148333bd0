"""The server's side of a session as tasks of a federation: it computes the sum of a cohort's vectors, or nothing.

Vectors are added up as they arrive; replies are kept without their payload.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from winnow.core import Arrays, Payload, Reply, Task, Work
from winnow.learn.reply_checks import unexpected_fault
from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.secagg.interrupted_session import SessionRecord, read_session_record
from winnow.privacy.secagg.key_agreement import check_public
from winnow.privacy.secagg.modular_vectors import VectorGroup
from winnow.privacy.secagg.pairwise_server import PairwiseServer, SecureSum
from winnow.privacy.secagg.protocol_tasks import (
    ADVERTISE_KEYS,
    CLOSE_SESSION,
    CONSISTENCY_CHECK,
    DEPOSIT_SEED,
    MASKED_INPUT,
    SECURE,
    SHARE_KEYS,
    UNMASK,
    StepSettings,
    as_array,
    payload_bytes,
    session_inputs_payload,
)
from winnow.privacy.secagg.secure_indexing import assignments, read_histograms
from winnow.privacy.secagg.server_requests import StepDispatcher
from winnow.privacy.secagg.session_inputs import SessionInputs
from winnow.privacy.secagg.session_terms import KeyAdvertisement, SessionTerms, read_message, write_message
from winnow.privacy.secagg.third_party_mask_keeper import KeeperInterface, SeedDeposit
from winnow.privacy.secagg.update_encoding_interface import EncodingParameters

ADVERTISEMENT_BYTES = 180
SIGNATURE_BYTES = 64
DEPOSIT_BYTES = 300
DIGEST_BYTES = 32
PEER_MESSAGE_BYTES = 108
SHARE_BYTES = 42
"""Bytes of a key advertisement, a signature, a deposit, a digest, the shares for one peer, a revealed share."""


@dataclass(kw_only=True)
class ProtocolRunner(StepDispatcher):
    """One session with a cohort, over a federation."""

    terms: SessionTerms
    version: int
    weights: Mapping[int, float]
    """Of the clients that have trained; each is at most 1."""
    parameters: EncodingParameters
    model: Arrays
    """The model that was sent to them."""
    byte_scale: float = 1.0
    """How many simulated bytes a byte of a masked update stands for."""

    def sum_pairwise(self, group_for: Callable[[int], VectorGroup]) -> SecureSum:
        """The sum under pairwise masks and self-masks; only clients and server take part."""
        advertised = self._advertisements()
        inputs = self._session_inputs([each.client for each in advertised])
        server = PairwiseServer(self.terms, group_for(len(advertised)), advertised, self._digest(inputs))
        self._share_keys(server)
        self._collect_masked_inputs(server, inputs)
        total = server.finish(self._reveal_shares(server, self._check_consistency(server)))
        return SecureSum(total=total, members=len(server.members), survivors=server.survivors)

    def sum_with_keeper(
        self, keeper: KeeperInterface, group_for: Callable[[int], VectorGroup], indexed: int
    ) -> SecureSum:
        """The sum under one mask per client, which a mask keeper helps to remove; of the first `indexed` segments it
        returns histograms instead.
        """
        inputs, masked = self._session_inputs([*self.weights]), dict[int, bytes]()
        group, digest, common = group_for(len(inputs.members)), self._digest(inputs), session_inputs_payload(inputs)
        total, key = group.zeros(), as_array(write_message(keeper.key(self.terms)))
        work = Work(upload_bytes=self._upload(group) + DEPOSIT_BYTES, download_bytes=_nbytes(common) + key.nbytes)

        def inputs_for(_: int) -> Payload:
            return {**common, SECURE: {**common[SECURE], "keeper": key}}

        for client, reply in self._ask(DEPOSIT_SEED, [*self.weights], inputs_for, work):
            with self._refusing(client):
                words = _masked_input(reply, digest, group)
                vector = group.unpack(words)
                deposit = read_message(payload_bytes(reply.payload, "deposit"), SeedDeposit)
                if deposit.client != client:
                    raise ProtocolError("its deposit names another client")
                keeper.deposit(self.terms, deposit)
                group.add(total, vector)
                masked[client] = assignments(words, group, indexed)
        group.subtract(total, group.unpack(keeper.total(self.terms, [*masked], group)))
        total = group.reduce(total)
        if indexed:
            counted = keeper.histograms(self.terms, masked, group, indexed)
            total = [*read_histograms(counted, group, indexed), *total[indexed:]]
        return SecureSum(total=total, members=len(inputs.members), survivors=sorted(masked))

    # The steps --------------------------------------------------------------------------------------------------------

    def _advertisements(self) -> list[KeyAdvertisement]:
        """The key advertisements of all clients; an interrupted session of this round is closed first, if it can be."""
        found, interrupted = [], dict[int, SessionRecord]()
        work = Work(upload_bytes=ADVERTISEMENT_BYTES)
        for client, reply in self._ask(ADVERTISE_KEYS, [*self.weights], lambda _: {}, work):
            with self._refusing(client):
                if "interrupted" in reply.payload.get(SECURE, {}):
                    interrupted[client] = read_session_record(payload_bytes(reply.payload, "interrupted"), self.terms)
                else:
                    found.append(_advertisement(client, reply))
        if not interrupted:
            return found
        sessions = defaultdict[bytes, set[int]](set)
        for each in interrupted.values():
            sessions[each.session].update(each.members)
        closed = {session: self._close_signatures(session, members) for session, members in sessions.items()}

        def signatures_for(client: int) -> Payload:
            return {SECURE: {"close_signatures": as_array(write_message(closed[interrupted[client].session]))}}

        for client, reply in self._ask(ADVERTISE_KEYS, [*interrupted], signatures_for, work):
            with self._refusing(client):
                found.append(_advertisement(client, reply))
        return found

    def _close_signatures(self, session: bytes, members: set[int]) -> dict[int, bytes]:
        """Signatures of members of an interrupted session that they will never help to unmask its sum."""
        there = sorted(client for client in members if 0 <= client < len(self.federation.population))
        work, found, refused = Work(upload_bytes=SIGNATURE_BYTES), {}, len(self.refused)
        for client, reply in self._ask(CLOSE_SESSION, there, lambda _: {}, work, session=session):
            with self._refusing(client):
                found[client] = payload_bytes(reply.payload, "close_signature")
        del self.refused[refused:]  # they may still take part; what is missing is reported there
        return found

    def _share_keys(self, server: PairwiseServer) -> None:
        sizes = {client: len(server.directory(client).advertisements) for client in server.members}
        peers = max(sizes.values())
        work = Work(
            download_bytes=peers * ADVERTISEMENT_BYTES + 4 * len(sizes), upload_bytes=peers * PEER_MESSAGE_BYTES
        )

        def directory(client: int) -> Payload:
            return {SECURE: {"directory": as_array(write_message(server.directory(client)))}}

        for client, reply in self._ask(SHARE_KEYS, server.members, directory, work):
            with self._refusing(client):
                server.add_encrypted_shares(client, reply.peer_messages)

    def _collect_masked_inputs(self, server: PairwiseServer, inputs: SessionInputs) -> None:
        common = session_inputs_payload(inputs)
        most = max((len(server.encrypted_shares_to(client)) for client in server.sharers), default=0)
        work = Work(
            download_bytes=most * PEER_MESSAGE_BYTES + _nbytes(common),
            upload_bytes=self._upload(server.group) + DIGEST_BYTES,
        )

        def inputs_for(_: int) -> Payload:
            return {part: dict(arrays) for part, arrays in common.items()}  # a part of its own: one client at a time

        for client, reply in self._ask(MASKED_INPUT, server.sharers, inputs_for, work, server.encrypted_shares_to):
            with self._refusing(client):
                server.add(client, _masked_input(reply, server.inputs_digest, server.group))

    def _check_consistency(self, server: PairwiseServer) -> dict[int, bytes]:
        survivors = np.array(server.survivors, np.int64)
        payload: Payload = {SECURE: {"survivors": survivors}}
        work = Work(download_bytes=survivors.nbytes, upload_bytes=SIGNATURE_BYTES)
        signatures = {}
        for client, reply in self._ask(CONSISTENCY_CHECK, server.survivors, lambda _: payload, work):
            with self._refusing(client):
                signatures[client] = payload_bytes(reply.payload, "signature")
        return signatures

    def _reveal_shares(self, server: PairwiseServer, signatures: Mapping[int, bytes]) -> dict[int, dict[int, bytes]]:
        payload: Payload = {SECURE: {"signatures": as_array(write_message(signatures))}}
        peers = max((len(server.encrypted_shares_to(client)) for client in signatures), default=0)
        work = Work(download_bytes=payload[SECURE]["signatures"].nbytes, upload_bytes=peers * SHARE_BYTES)
        shares = {}
        for client, reply in self._ask(UNMASK, sorted(signatures), lambda _: payload, work):
            with self._refusing(client):
                shares[client] = read_message(payload_bytes(reply.payload, "shares"), dict[int, bytes])
        return shares

    # Besides ----------------------------------------------------------------------------------------------------------

    def _session_inputs(self, members: Sequence[int]) -> SessionInputs:
        ordered = sorted(members)
        return SessionInputs(
            members=np.array(ordered, np.int64),
            weights=np.array([self.weights[client] for client in ordered], np.float64),
            parameters=self.parameters,
        )

    def _upload(self, group: VectorGroup) -> int:
        return round(self.byte_scale * group.packed_bytes)

    def _digest(self, inputs: SessionInputs) -> bytes:
        return inputs.digest(self.terms.session, self.model)

    def _ask(
        self,
        name: str,
        clients: Sequence[int],
        payload: Callable[[int], Payload],
        work: Work,
        peer_messages: Callable[[int], Mapping[int, bytes]] = lambda _: {},
        session: bytes | None = None,
    ) -> Iterator[tuple[int, Reply]]:
        step = StepSettings(session=session or self.terms.session)
        tasks = [
            Task(
                name=name,
                client=client,
                round=self.terms.round,
                version=self.version,
                payload=payload(client),
                settings=step,
                work=work,
                peer_messages=peer_messages(client),
            )
            for client in clients
        ]
        return ((reply.task.client, reply) for reply in self.ask(tasks))

    @contextmanager
    def _refusing(self, client: int) -> Iterator[None]:
        """Refuse a client whose message is invalid, and continue with the others."""
        try:
            yield
        except ProtocolError as error:
            self.refuse(client, str(error))
        except Exception as error:
            self.refuse(client, unexpected_fault("its message cannot be used", client, error))


def _advertisement(client: int, reply: Reply) -> KeyAdvertisement:
    advertisement = read_message(payload_bytes(reply.payload, "advertisement"), KeyAdvertisement)
    if advertisement.client != client:
        raise ProtocolError("its key advertisement names another client")
    for key in (advertisement.sealing, advertisement.masking):
        check_public(key)
    return advertisement


def _masked_input(reply: Reply, inputs_digest: bytes, group: VectorGroup) -> bytes:
    """The masked vector of a client that received the same session inputs as all others."""
    if payload_bytes(reply.payload, "inputs_digest") != inputs_digest:
        raise ProtocolError("it received different session inputs, or a different model, than the server sent")
    return payload_bytes(reply.payload, "words", most=group.packed_bytes)


def _nbytes(payload: Payload) -> int:
    return sum(array.nbytes for arrays in payload.values() for array in arrays.values())
