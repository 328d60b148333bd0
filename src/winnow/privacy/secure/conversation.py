"""The server's conversation with a cohort that has trained: out of it comes the sum of their vectors, or nothing.

Vectors are added up as they arrive, and replies are kept without what they carried.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from winnow.core import Arrays, Payload, Reply, Task, Work
from winnow.learn.replies import unexpected
from winnow.privacy.secure.asking import Asking
from winnow.privacy.secure.closing import Left, read_left
from winnow.privacy.secure.encoding import Parameters
from winnow.privacy.secure.group import Space
from winnow.privacy.secure.indexing import assignments, read_counts
from winnow.privacy.secure.keeper import Deposit, Keeper
from winnow.privacy.secure.keys import check_public
from winnow.privacy.secure.refusal import RefusedError
from winnow.privacy.secure.steps import (
    ANNOUNCE,
    CLOSE,
    CONFIRM,
    DEPOSIT,
    MASK,
    REVEAL,
    SECURE,
    SHARE,
    Step,
    as_array,
    carried,
    tell,
)
from winnow.privacy.secure.tally import Outcome, Tally
from winnow.privacy.secure.terms import Announcement, Terms, read, write
from winnow.privacy.secure.told import Told

ANNOUNCEMENT_BYTES = 180
SIGNATURE_BYTES = 64
DEPOSIT_BYTES = 300
DIGEST_BYTES = 32
LETTER_BYTES = 108
SHARE_BYTES = 42
"""What an announcement, a signature, a deposit, a digest, a letter and a revealed share weigh on the wire."""


@dataclass(kw_only=True)
class Conversation(Asking):
    """One session with a cohort, over a federation."""

    terms: Terms
    version: int
    weights: Mapping[int, float]
    """Those who have trained, and what each counts: at most one."""
    parameters: Parameters
    model: Arrays
    """The model that they were sent."""
    weighs: float = 1.0
    """What a byte of a masked update counts in a transfer."""

    def pairwise(self, space_for: Callable[[int], Space]) -> Outcome:
        """The sum under pairwise and self-masks, with nobody's help but the clients'."""
        announced = self._announcements()
        told = self._told([each.client for each in announced])
        tally = Tally(self.terms, space_for(len(announced)), announced, self._digest(told))
        self._share(tally)
        self._mask(tally, told)
        total = tally.finish(self._reveal(tally, self._confirm(tally)))
        return Outcome(total=total, members=len(tally.members), survivors=tally.survivors)

    def kept(self, keeper: Keeper, space_for: Callable[[int], Space], indexed: int) -> Outcome:
        """The sum under one mask a client, with a mask keeper's help; the first stretches, if any are `indexed`, are
        counted by it instead.
        """
        told, masked = self._told([*self.weights]), dict[int, bytes]()
        space, digest, common = space_for(len(told.members)), self._digest(told), tell(told)
        total, key = space.zeros(), as_array(write(keeper.key(self.terms)))
        work = Work(upload_bytes=self._upload(space) + DEPOSIT_BYTES, download_bytes=_weight(common) + key.nbytes)

        def telling(_: int) -> Payload:
            return {**common, SECURE: {**common[SECURE], "keeper": key}}

        for client, reply in self._ask(DEPOSIT, [*self.weights], telling, work):
            with self._refusing(client):
                words = _words(reply, digest, space)
                vector = space.unpack(words)
                deposit = read(carried(reply.payload, "deposit"), Deposit)
                if deposit.client != client:
                    raise RefusedError("its deposit is another client's")
                keeper.deposit(self.terms, deposit)
                space.add(total, vector)
                masked[client] = assignments(words, space, indexed)
        space.subtract(total, space.unpack(keeper.total(self.terms, [*masked], space)))
        total = space.reduce(total)
        if indexed:
            counted = keeper.histograms(self.terms, masked, space, indexed)
            total = [*read_counts(counted, space, indexed), *total[indexed:]]
        return Outcome(total=total, members=len(told.members), survivors=sorted(masked))

    # The steps --------------------------------------------------------------------------------------------------------

    def _announcements(self) -> list[Announcement]:
        """Those of all clients; an exchange of this round that was interrupted is closed first, if it can be."""
        found, left = [], dict[int, Left]()
        work = Work(upload_bytes=ANNOUNCEMENT_BYTES)
        for client, reply in self._ask(ANNOUNCE, [*self.weights], lambda _: {}, work):
            with self._refusing(client):
                if "left" in reply.payload.get(SECURE, {}):
                    left[client] = read_left(carried(reply.payload, "left"), self.terms)
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

        for client, reply in self._ask(ANNOUNCE, [*left], closings, work):
            with self._refusing(client):
                found.append(_announcement(client, reply))
        return found

    def _closings(self, session: bytes, members: set[int]) -> dict[int, bytes]:
        """Signatures of members of an interrupted session who will never help to open its sum."""
        there = sorted(client for client in members if 0 <= client < len(self.federation.population))
        work, found, refused = Work(upload_bytes=SIGNATURE_BYTES), {}, len(self.refused)
        for client, reply in self._ask(CLOSE, there, lambda _: {}, work, session=session):
            with self._refusing(client):
                found[client] = carried(reply.payload, "closing")
        del self.refused[refused:]  # who does not close may still take part; what is missing is said there
        return found

    def _share(self, tally: Tally) -> None:
        sizes = {client: len(tally.directory(client).announcements) for client in tally.members}
        peers = max(sizes.values())
        work = Work(download_bytes=peers * ANNOUNCEMENT_BYTES + 4 * len(sizes), upload_bytes=peers * LETTER_BYTES)

        def directory(client: int) -> Payload:
            return {SECURE: {"directory": as_array(write(tally.directory(client)))}}

        for client, reply in self._ask(SHARE, tally.members, directory, work):
            with self._refusing(client):
                tally.take_letters(client, reply.letters)

    def _mask(self, tally: Tally, told: Told) -> None:
        common = tell(told)
        most = max((len(tally.letters_to(client)) for client in tally.sharing), default=0)
        work = Work(
            download_bytes=most * LETTER_BYTES + _weight(common), upload_bytes=self._upload(tally.space) + DIGEST_BYTES
        )

        def telling(_: int) -> Payload:
            return {part: dict(arrays) for part, arrays in common.items()}  # a part of its own: one client at a time

        for client, reply in self._ask(MASK, tally.sharing, telling, work, tally.letters_to):
            with self._refusing(client):
                tally.add(client, _words(reply, tally.told, tally.space))

    def _confirm(self, tally: Tally) -> dict[int, bytes]:
        survivors = np.array(tally.survivors, np.int64)
        payload: Payload = {SECURE: {"survivors": survivors}}
        work = Work(download_bytes=survivors.nbytes, upload_bytes=SIGNATURE_BYTES)
        signatures = {}
        for client, reply in self._ask(CONFIRM, tally.survivors, lambda _: payload, work):
            with self._refusing(client):
                signatures[client] = carried(reply.payload, "signature")
        return signatures

    def _reveal(self, tally: Tally, signatures: Mapping[int, bytes]) -> dict[int, dict[int, bytes]]:
        payload: Payload = {SECURE: {"signatures": as_array(write(signatures))}}
        peers = max((len(tally.letters_to(client)) for client in signatures), default=0)
        work = Work(download_bytes=payload[SECURE]["signatures"].nbytes, upload_bytes=peers * SHARE_BYTES)
        shares = {}
        for client, reply in self._ask(REVEAL, sorted(signatures), lambda _: payload, work):
            with self._refusing(client):
                shares[client] = read(carried(reply.payload, "shares"), dict[int, bytes])
        return shares

    # Besides ----------------------------------------------------------------------------------------------------------

    def _told(self, members: Sequence[int]) -> Told:
        ordered = sorted(members)
        return Told(
            members=np.array(ordered, np.int64),
            weights=np.array([self.weights[client] for client in ordered], np.float64),
            parameters=self.parameters,
        )

    def _upload(self, space: Space) -> int:
        return round(self.weighs * space.packed_bytes)

    def _digest(self, told: Told) -> bytes:
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
        step = Step(session=session or self.terms.session)
        tasks = [
            Task(
                name=name,
                client=client,
                round=self.terms.round,
                version=self.version,
                payload=payload(client),
                settings=step,
                work=work,
                letters=letters(client),
            )
            for client in clients
        ]
        return ((reply.task.client, reply) for reply in self.ask(tasks))

    @contextmanager
    def _refusing(self, client: int) -> Iterator[None]:
        """What the client sent is refused if it cannot be used; the others go on."""
        try:
            yield
        except RefusedError as error:
            self.refuse(client, str(error))
        except Exception as error:
            self.refuse(client, unexpected("its message cannot be used", client, error))


def _announcement(client: int, reply: Reply) -> Announcement:
    announcement = read(carried(reply.payload, "announcement"), Announcement)
    if announcement.client != client:
        raise RefusedError("its announcement is another client's")
    for key in (announcement.sealing, announcement.masking):
        check_public(key)
    return announcement


def _words(reply: Reply, told: bytes, space: Space) -> bytes:
    """The masked vector of a client who was told what all were told."""
    if carried(reply.payload, "told") != told:
        raise RefusedError("it was told something else than the others, or has another model")
    return carried(reply.payload, "words", most=space.packed_bytes)


def _weight(payload: Payload) -> int:
    return sum(array.nbytes for arrays in payload.values() for array in arrays.values())
