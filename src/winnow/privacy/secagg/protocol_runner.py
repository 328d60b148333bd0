"""The server's conversation with a cohort that has trained: out of it comes the sum of their vectors, or nothing.

Vectors are added up as they arrive, and replies are kept without what they carried.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from winnow.core import Arrays, Payload, Reply, Task, Work
from winnow.learn.reply_checks import unexpected_fault
from winnow.privacy.secagg.encoding import EncodingParameters
from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.secagg.interrupted_session import SessionRecord, read_session_record
from winnow.privacy.secagg.key_agreement import check_public
from winnow.privacy.secagg.mask_keeper import KeeperInterface, SeedDeposit
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
    carried,
    session_inputs_payload,
)
from winnow.privacy.secagg.secure_indexing import assignments, read_histograms
from winnow.privacy.secagg.server_requests import StepDispatcher
from winnow.privacy.secagg.session_inputs import SessionInputs
from winnow.privacy.secagg.session_terms import KeyAdvertisement, SessionTerms, read, write

ADVERTISEMENT_BYTES = 180
SIGNATURE_BYTES = 64
DEPOSIT_BYTES = 300
DIGEST_BYTES = 32
PEER_MESSAGE_BYTES = 108
SHARE_BYTES = 42
"""What an announcement, a signature, a deposit, a digest, a letter and a revealed share weigh on the wire."""


@dataclass(kw_only=True)
class ProtocolRunner(StepDispatcher):
    """One session with a cohort, over a federation."""

    terms: SessionTerms
    version: int
    weights: Mapping[int, float]
    """Those who have trained, and what each counts: at most one."""
    parameters: EncodingParameters
    model: Arrays
    """The model that they were sent."""
    weighs: float = 1.0
    """What a byte of a masked update counts in a transfer."""

    def pairwise(self, space_for: Callable[[int], VectorGroup]) -> SecureSum:
        """The sum under pairwise and self-masks, with nobody's help but the clients'."""
        announced = self._announcements()
        told = self._told([each.client for each in announced])
        tally = PairwiseServer(self.terms, space_for(len(announced)), announced, self._digest(told))
        self._share(tally)
        self._mask(tally, told)
        total = tally.finish(self._reveal(tally, self._confirm(tally)))
        return SecureSum(total=total, members=len(tally.members), survivors=tally.survivors)

    def kept(self, keeper: KeeperInterface, space_for: Callable[[int], VectorGroup], indexed: int) -> SecureSum:
        """The sum under one mask a client, with a mask keeper's help; the first stretches, if any are `indexed`, are
        counted by it instead.
        """
        told, masked = self._told([*self.weights]), dict[int, bytes]()
        space, digest, common = space_for(len(told.members)), self._digest(told), session_inputs_payload(told)
        total, key = space.zeros(), as_array(write(keeper.key(self.terms)))
        work = Work(upload_bytes=self._upload(space) + DEPOSIT_BYTES, download_bytes=_weight(common) + key.nbytes)

        def telling(_: int) -> Payload:
            return {**common, SECURE: {**common[SECURE], "keeper": key}}

        for client, reply in self._ask(DEPOSIT_SEED, [*self.weights], telling, work):
            with self._refusing(client):
                words = _words(reply, digest, space)
                vector = space.unpack(words)
                deposit = read(carried(reply.payload, "deposit"), SeedDeposit)
                if deposit.client != client:
                    raise ProtocolError("its deposit names another client")
                keeper.deposit(self.terms, deposit)
                space.add(total, vector)
                masked[client] = assignments(words, space, indexed)
        space.subtract(total, space.unpack(keeper.total(self.terms, [*masked], space)))
        total = space.reduce(total)
        if indexed:
            counted = keeper.histograms(self.terms, masked, space, indexed)
            total = [*read_histograms(counted, space, indexed), *total[indexed:]]
        return SecureSum(total=total, members=len(told.members), survivors=sorted(masked))

    # The steps --------------------------------------------------------------------------------------------------------

    def _announcements(self) -> list[KeyAdvertisement]:
        """Those of all clients; an exchange of this round that was interrupted is closed first, if it can be."""
        found, left = [], dict[int, SessionRecord]()
        work = Work(upload_bytes=ADVERTISEMENT_BYTES)
        for client, reply in self._ask(ADVERTISE_KEYS, [*self.weights], lambda _: {}, work):
            with self._refusing(client):
                if "left" in reply.payload.get(SECURE, {}):
                    left[client] = read_session_record(carried(reply.payload, "left"), self.terms)
                else:
                    found.append(_announcement(client, reply))
        if not left:
            return found
        sessions = defaultdict[bytes, set[int]](set)
        for each in left.values():
            sessions[each.session].update(each.members)
        closed = {session: self._closings(session, members) for session, members in sessions.items()}

        def closings(client: int) -> Payload:
            return {SECURE: {"closings": as_array(write(closed[left[client].session]))}}

        for client, reply in self._ask(ADVERTISE_KEYS, [*left], closings, work):
            with self._refusing(client):
                found.append(_announcement(client, reply))
        return found

    def _closings(self, session: bytes, members: set[int]) -> dict[int, bytes]:
        """Signatures of members of an interrupted session who will never help to open its sum."""
        there = sorted(client for client in members if 0 <= client < len(self.federation.population))
        work, found, refused = Work(upload_bytes=SIGNATURE_BYTES), {}, len(self.refused)
        for client, reply in self._ask(CLOSE_SESSION, there, lambda _: {}, work, session=session):
            with self._refusing(client):
                found[client] = carried(reply.payload, "closing")
        del self.refused[refused:]  # who does not close may still take part; what is missing is said there
        return found

    def _share(self, tally: PairwiseServer) -> None:
        sizes = {client: len(tally.directory(client).announcements) for client in tally.members}
        peers = max(sizes.values())
        work = Work(
            download_bytes=peers * ADVERTISEMENT_BYTES + 4 * len(sizes), upload_bytes=peers * PEER_MESSAGE_BYTES
        )

        def directory(client: int) -> Payload:
            return {SECURE: {"directory": as_array(write(tally.directory(client)))}}

        for client, reply in self._ask(SHARE_KEYS, tally.members, directory, work):
            with self._refusing(client):
                tally.take_letters(client, reply.peer_messages)

    def _mask(self, tally: PairwiseServer, told: SessionInputs) -> None:
        common = session_inputs_payload(told)
        most = max((len(tally.letters_to(client)) for client in tally.sharing), default=0)
        work = Work(
            download_bytes=most * PEER_MESSAGE_BYTES + _weight(common),
            upload_bytes=self._upload(tally.space) + DIGEST_BYTES,
        )

        def telling(_: int) -> Payload:
            return {part: dict(arrays) for part, arrays in common.items()}  # a part of its own: one client at a time

        for client, reply in self._ask(MASKED_INPUT, tally.sharing, telling, work, tally.letters_to):
            with self._refusing(client):
                tally.add(client, _words(reply, tally.told, tally.space))

    def _confirm(self, tally: PairwiseServer) -> dict[int, bytes]:
        survivors = np.array(tally.survivors, np.int64)
        payload: Payload = {SECURE: {"survivors": survivors}}
        work = Work(download_bytes=survivors.nbytes, upload_bytes=SIGNATURE_BYTES)
        signatures = {}
        for client, reply in self._ask(CONSISTENCY_CHECK, tally.survivors, lambda _: payload, work):
            with self._refusing(client):
                signatures[client] = carried(reply.payload, "signature")
        return signatures

    def _reveal(self, tally: PairwiseServer, signatures: Mapping[int, bytes]) -> dict[int, dict[int, bytes]]:
        payload: Payload = {SECURE: {"signatures": as_array(write(signatures))}}
        peers = max((len(tally.letters_to(client)) for client in signatures), default=0)
        work = Work(download_bytes=payload[SECURE]["signatures"].nbytes, upload_bytes=peers * SHARE_BYTES)
        shares = {}
        for client, reply in self._ask(UNMASK, sorted(signatures), lambda _: payload, work):
            with self._refusing(client):
                shares[client] = read(carried(reply.payload, "shares"), dict[int, bytes])
        return shares

    # Besides ----------------------------------------------------------------------------------------------------------

    def _told(self, members: Sequence[int]) -> SessionInputs:
        ordered = sorted(members)
        return SessionInputs(
            members=np.array(ordered, np.int64),
            weights=np.array([self.weights[client] for client in ordered], np.float64),
            parameters=self.parameters,
        )

    def _upload(self, space: VectorGroup) -> int:
        return round(self.weighs * space.packed_bytes)

    def _digest(self, told: SessionInputs) -> bytes:
        return told.digest(self.terms.session, self.model)

    def _ask(
        self,
        name: str,
        clients: Sequence[int],
        payload: Callable[[int], Payload],
        work: Work,
        letters: Callable[[int], Mapping[int, bytes]] = lambda _: {},
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
                peer_messages=letters(client),
            )
            for client in clients
        ]
        return ((reply.task.client, reply) for reply in self.ask(tasks))

    @contextmanager
    def _refusing(self, client: int) -> Iterator[None]:
        """What the client sent is refused if it cannot be used; the others go on."""
        try:
            yield
        except ProtocolError as error:
            self.refuse(client, str(error))
        except Exception as error:
            self.refuse(client, unexpected_fault("its message cannot be used", client, error))


def _announcement(client: int, reply: Reply) -> KeyAdvertisement:
    announcement = read(carried(reply.payload, "announcement"), KeyAdvertisement)
    if announcement.client != client:
        raise ProtocolError("its key advertisement names another client")
    for key in (announcement.sealing, announcement.masking):
        check_public(key)
    return announcement


def _words(reply: Reply, told: bytes, space: VectorGroup) -> bytes:
    """The masked vector of a client who was told what all were told."""
    if carried(reply.payload, "told") != told:
        raise ProtocolError("it received different session inputs, or a different model, than the server sent")
    return carried(reply.payload, "words", most=space.packed_bytes)


def _weight(payload: Payload) -> int:
    return sum(array.nbytes for arrays in payload.values() for array in arrays.values())
