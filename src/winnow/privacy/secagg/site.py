"""What a site does for its clients under secure aggregation: it holds their updates back, and answers the steps.

No update leaves but masked, and each is masked once: a second sum with the same update in it, over other clients, would
give the update away as the difference.
"""

import os
from typing import TYPE_CHECKING

from winnow.core import Randomness, Reply, Task
from winnow.learn.party_identities import PartyIdentities
from winnow.learn.profile_comparison import SiteExtension
from winnow.learn.update_filters import task_generator
from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.secagg.held_updates import HeldUpdate, HeldUpdateStore
from winnow.privacy.secagg.interrupted_session import SessionRecord, ballot, check_closed, close_statement
from winnow.privacy.secagg.mask_keeper import DepositContents, KeeperKey, group_digest, make_deposit
from winnow.privacy.secagg.masks import SEED_BYTES, add_mask
from winnow.privacy.secagg.modular_vectors import ModularVector, VectorGroup
from winnow.privacy.secagg.pairwise_client import PairwiseClient
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
    carried,
    read_numbers,
    read_session_inputs,
    reply_with,
    session_of,
    step_handler,
)
from winnow.privacy.secagg.secure_indexing import assignments_digest
from winnow.privacy.secagg.session_inputs import SessionInputs
from winnow.privacy.secagg.session_terms import KeyDirectory, SessionTerms, read, write
from winnow.privacy.secagg.update_layout import weighted_update

if TYPE_CHECKING:
    from winnow.privacy.secagg.collect import SecureAggregation


class SecureSite:
    """The clients' secrets of this process: updates that wait to be masked, and the sessions under way."""

    def __init__(self, settings: "SecureAggregation", identities: PartyIdentities, randomness: Randomness) -> None:
        """`randomness` decides how values are rounded; the server must not foresee it."""
        self._settings, self._identities, self._randomness = settings, identities, randomness
        self._updates = HeldUpdateStore(identities)
        self._members: dict[int, PairwiseClient] = {}
        self._told: dict[int, SessionInputs] = {}

    def extension(self) -> SiteExtension:
        """The steps of the way that the job's author chose: a server is not to have the other's assumptions instead."""
        pairwise = {
            ADVERTISE_KEYS: self._announce,
            CLOSE_SESSION: self._close,
            SHARE_KEYS: self._share,
            MASKED_INPUT: self._mask,
            CONSISTENCY_CHECK: self._confirm,
            UNMASK: self._reveal,
        }
        steps = {DEPOSIT_SEED: self._deposit} if self._settings.keeper else pairwise
        handlers = {name: step_handler(step) for name, step in steps.items()}
        return SiteExtension(
            handlers=handlers, filters=(self._updates.hold,), settings=dict.fromkeys(steps, StepSettings)
        )

    # The steps --------------------------------------------------------------------------------------------------------

    def _announce(self, task: Task) -> Reply:
        if note := self._identities.release_note(task.client, task.round):
            left = read(note, SessionRecord)
            if "closings" not in task.payload.get(SECURE, {}):
                return reply_with(task, left=write(left))
            closings = read(carried(task.payload, "closings"), dict[int, bytes])
            check_closed(left, self._terms(task, left.session), closings, self._identities)
            self._updates.call_back(task, note)
        self._updates.look(task)
        member = PairwiseClient(task.client, self._terms(task), self._identities)
        self._members[task.client] = member
        self._told.pop(task.client, None)
        return reply_with(task, announcement=write(member.announce()))

    def _close(self, task: Task) -> Reply:
        """Sign that this client has signed no list of survivors in the session, and never will."""
        member, terms = self._members.get(task.client), self._terms(task)
        if member is not None and member.terms.session == terms.session:
            if member.has_confirmed:
                raise ProtocolError("this client has already confirmed a survivor list in this session")
            del self._members[task.client]
        signature = self._identities.sign_once(task.client, close_statement(terms), ballot(terms))
        return reply_with(task, closing=signature)

    def _share(self, task: Task) -> Reply:
        letters = self._member(task).share(read(carried(task.payload, "directory"), KeyDirectory))
        return Reply(task=task, peer_messages=letters)

    def _mask(self, task: Task) -> Reply:
        member, held = self._member(task), self._updates.look(task)
        told = read_session_inputs(task.payload)
        if told.members.tolist() != member.members:
            raise ProtocolError("the weights do not match this session's members")
        vector, space = self._words(task, held, told)
        digest = told.digest(session_of(task), held.model)
        masked = member.mask(task.peer_messages, vector, space, digest)
        self._updates.let_out(task, write(member.left))
        self._told[task.client] = told
        return reply_with(task, words=masked, told=digest)

    def _confirm(self, task: Task) -> Reply:
        survivors, member = read_numbers(task.payload, "survivors").astype(int).tolist(), self._member(task)
        if task.client in self._told:
            self._told[task.client].check_survivors(survivors, self._settings.max_weight_share)
        return reply_with(task, signature=member.confirm(survivors))

    def _reveal(self, task: Task) -> Reply:
        signatures = read(carried(task.payload, "signatures"), dict[int, bytes])
        shares = self._member(task).reveal(signatures)
        del self._members[task.client], self._told[task.client]
        self._updates.forget(task.client)
        return reply_with(task, shares=write(shares))

    def _deposit(self, task: Task) -> Reply:
        """With a mask keeper: the vector under one mask, whose seed is sealed to the keeper."""
        held = self._updates.look(task)
        terms, told = self._terms(task), read_session_inputs(task.payload)
        key = read(carried(task.payload, "keeper"), KeeperKey)
        vector, space = self._words(task, held, told)
        space.check(vector)
        digest, seed = told.digest(session_of(task), held.model), os.urandom(SEED_BYTES)
        add_mask(vector, seed, space, sign=1)
        words = space.pack(space.reduce(vector))
        assigned = assignments_digest(words, space, self._settings.encoding.indexed(held.form))
        contents = DepositContents(
            seed=seed,
            members=len(told.members),
            told=digest,
            weight=told.weight_of(task.client, self._settings.max_weight_share),
            space=group_digest(space),
            assigned=assigned,
        )
        deposit = make_deposit(task.client, contents, key, terms, self._identities)
        self._updates.let_out(task)
        self._updates.forget(task.client)
        return reply_with(task, words=words, told=digest, deposit=write(deposit))

    # Besides ----------------------------------------------------------------------------------------------------------

    def _words(self, task: Task, held: HeldUpdate, told: SessionInputs) -> tuple[ModularVector, VectorGroup]:
        """The client's update times its weight, encoded."""
        encoding, members = self._settings.encoding, len(told.members)
        values = weighted_update(held.parts, held.model, told.weight_of(task.client, self._settings.max_weight_share))
        rng = task_generator(self._randomness, held.task, "secure rounding")
        vector = encoding.encode(held.form, values, told.parameters, members, rng)
        return vector, encoding.space(held.form, members)

    def _terms(self, task: Task, session: bytes | None = None) -> SessionTerms:
        return self._settings.terms(session or session_of(task), task.round)

    def _member(self, task: Task) -> PairwiseClient:
        member = self._members.get(task.client)
        if member is None or member.terms.session != session_of(task):
            raise ProtocolError("this client is not in this session")
        return member
