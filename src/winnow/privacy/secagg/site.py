"""The site's side of secure aggregation: it holds its clients' updates and answers the steps of the protocol.

An update leaves only masked, and is masked only once: a second sum that contains it, over other clients, would reveal
it as the difference.
"""

import os
from typing import TYPE_CHECKING

from winnow.core import Randomness, Reply, Task
from winnow.learn.party_signing_interface import PartyIdentities
from winnow.learn.profile_comparison import SiteExtension
from winnow.learn.update_filters import task_generator
from winnow.privacy.secagg.errors import ProtocolError
from winnow.privacy.secagg.interrupted_session import SessionRecord, ballot, check_closed, close_statement
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
    payload_bytes,
    read_session_inputs,
    read_vector,
    reply_with,
    session_of,
    step_handler,
)
from winnow.privacy.secagg.secure_indexing import assignments_digest
from winnow.privacy.secagg.session_inputs import SessionInputs
from winnow.privacy.secagg.session_terms import KeyDirectory, SessionTerms, read_message, write_message
from winnow.privacy.secagg.third_party_mask_keeper import DepositContents, KeeperKey, group_digest, make_deposit
from winnow.privacy.secagg.unreleased_site_updates import HeldUpdate, HeldUpdateStore
from winnow.privacy.secagg.update_layout import weighted_update

if TYPE_CHECKING:
    from winnow.privacy.secagg.secure_collect import SecureAggregation


class SecureSite:
    """The clients' secrets: updates that have not been masked, and open sessions."""

    def __init__(self, settings: "SecureAggregation", identities: PartyIdentities, randomness: Randomness) -> None:
        """`randomness` decides how values are rounded; the server must not be able to predict it."""
        self._settings, self._identities, self._randomness = settings, identities, randomness
        self._updates = HeldUpdateStore(identities)
        self._members: dict[int, PairwiseClient] = {}
        self._inputs: dict[int, SessionInputs] = {}

    def extension(self) -> SiteExtension:
        """Handlers only for the protocol that the job's author chose: the other one has other assumptions."""
        pairwise = {
            ADVERTISE_KEYS: self._advertise_keys,
            CLOSE_SESSION: self._close,
            SHARE_KEYS: self._share_keys,
            MASKED_INPUT: self._mask,
            CONSISTENCY_CHECK: self._check_consistency,
            UNMASK: self._reveal_shares,
        }
        steps = {DEPOSIT_SEED: self._deposit} if self._settings.keeper else pairwise
        handlers = {name: step_handler(step) for name, step in steps.items()}
        return SiteExtension(
            handlers=handlers, filters=(self._updates.hold,), settings=dict.fromkeys(steps, StepSettings)
        )

    # The steps --------------------------------------------------------------------------------------------------------

    def _advertise_keys(self, task: Task) -> Reply:
        if note := self._identities.release_note(task.client, task.round):
            interrupted = read_message(note, SessionRecord)
            if "close_signatures" not in task.payload.get(SECURE, {}):
                return reply_with(task, interrupted=write_message(interrupted))
            close_signatures = read_message(payload_bytes(task.payload, "close_signatures"), dict[int, bytes])
            check_closed(interrupted, self._terms(task, interrupted.session), close_signatures, self._identities)
            self._updates.void_release(task, note)
        self._updates.get(task)
        member = PairwiseClient(task.client, self._terms(task), self._identities)
        self._members[task.client] = member
        self._inputs.pop(task.client, None)
        return reply_with(task, advertisement=write_message(member.advertise_keys()))

    def _close(self, task: Task) -> Reply:
        """Sign that this client has signed no survivor list in the session and never will."""
        member, terms = self._members.get(task.client), self._terms(task)
        if member is not None and member.terms.session == terms.session:
            if member.has_confirmed:
                raise ProtocolError("this client has already confirmed a survivor list in this session")
            del self._members[task.client]
        signature = self._identities.sign_once(task.client, close_statement(terms), ballot(terms))
        return reply_with(task, close_signature=signature)

    def _share_keys(self, task: Task) -> Reply:
        shares = self._member(task).share_keys(read_message(payload_bytes(task.payload, "directory"), KeyDirectory))
        return Reply(task=task, peer_messages=shares)

    def _mask(self, task: Task) -> Reply:
        member, held = self._member(task), self._updates.get(task)
        inputs = read_session_inputs(task.payload)
        if inputs.members.tolist() != member.members:
            raise ProtocolError("the weights do not match this session's members")
        vector, group = self._encoded(task, held, inputs)
        digest = inputs.digest(session_of(task), held.model)
        masked = member.mask(task.peer_messages, vector, group, digest)
        self._updates.release(task, write_message(member.session_record))
        self._inputs[task.client] = inputs
        return reply_with(task, words=masked, inputs_digest=digest)

    def _check_consistency(self, task: Task) -> Reply:
        survivors, member = read_vector(task.payload, "survivors").astype(int).tolist(), self._member(task)
        if task.client in self._inputs:
            self._inputs[task.client].check_survivors(survivors, self._settings.max_weight_share)
        return reply_with(task, signature=member.confirm(survivors))

    def _reveal_shares(self, task: Task) -> Reply:
        signatures = read_message(payload_bytes(task.payload, "signatures"), dict[int, bytes])
        shares = self._member(task).reveal(signatures)
        del self._members[task.client], self._inputs[task.client]
        self._updates.forget(task.client)
        return reply_with(task, shares=write_message(shares))

    def _deposit(self, task: Task) -> Reply:
        """With a mask keeper: the vector under one mask, and its seed sealed to the keeper."""
        held = self._updates.get(task)
        terms, inputs = self._terms(task), read_session_inputs(task.payload)
        key = read_message(payload_bytes(task.payload, "keeper"), KeeperKey)
        vector, group = self._encoded(task, held, inputs)
        group.check(vector)
        digest, seed = inputs.digest(session_of(task), held.model), os.urandom(SEED_BYTES)
        add_mask(vector, seed, group, sign=1)
        words = group.pack(group.reduce(vector))
        assigned = assignments_digest(words, group, self._settings.encoding.indexed(held.layout))
        contents = DepositContents(
            seed=seed,
            members=len(inputs.members),
            inputs_digest=digest,
            weight=inputs.weight_of(task.client, self._settings.max_weight_share),
            group_digest=group_digest(group),
            assigned=assigned,
        )
        deposit = make_deposit(task.client, contents, key, terms, self._identities)
        self._updates.release(task)
        self._updates.forget(task.client)
        return reply_with(task, words=words, inputs_digest=digest, deposit=write_message(deposit))

    # Besides ----------------------------------------------------------------------------------------------------------

    def _encoded(self, task: Task, held: HeldUpdate, inputs: SessionInputs) -> tuple[ModularVector, VectorGroup]:
        """The client's weighted update, encoded, and its group."""
        encoding, members = self._settings.encoding, len(inputs.members)
        values = weighted_update(held.parts, held.model, inputs.weight_of(task.client, self._settings.max_weight_share))
        rng = task_generator(self._randomness, held.task, "secure rounding")
        vector = encoding.encode(held.layout, values, inputs.parameters, members, rng)
        return vector, encoding.group(held.layout, members)

    def _terms(self, task: Task, session: bytes | None = None) -> SessionTerms:
        return self._settings.terms(session or session_of(task), task.round)

    def _member(self, task: Task) -> PairwiseClient:
        member = self._members.get(task.client)
        if member is None or member.terms.session != session_of(task):
            raise ProtocolError("this client is not in this session")
        return member
