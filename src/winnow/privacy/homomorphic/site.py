"""What a site does under homomorphic aggregation: hold updates back, encrypt them once, and for the holder of the key
make one for each round, and open one sum with it.

A round has one key, whatever conversations the server begins in it: with a key for each update it would have them
opened one by one. That a key was made is noted as updates that leave are, by an agent that outlives this process.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from winnow.core import Reply, Task
from winnow.learn.party_signing_interface import PartyIdentities
from winnow.learn.profile_comparison import SiteExtension
from winnow.privacy import ckks
from winnow.privacy.homomorphic import encrypted_sum
from winnow.privacy.secagg.errors import ProtocolError, too_few_error
from winnow.privacy.secagg.protocol_tasks import SECURE, as_array, payload_bytes, read_vector, step_handler
from winnow.privacy.secagg.session_inputs import SessionInputs
from winnow.privacy.secagg.session_terms import SESSION_BYTES
from winnow.privacy.secagg.unreleased_site_updates import HeldUpdateStore
from winnow.privacy.secagg.update_encoding_interface import EncodingParameters
from winnow.privacy.secagg.update_layout import weighted_update

if TYPE_CHECKING:
    from winnow.privacy.homomorphic.homomorphic_collect import HomomorphicAggregation

MAKE_KEY = "homomorphic-key"
ENCRYPT = "homomorphic-encrypt"
DECRYPT = "homomorphic-decrypt"
CIPHERTEXTS = "ciphertexts"
MAX_NUMBERS = 1 << 40
ROUND_KEY = "key of a round"
"""What the holder has noted once a round."""


@dataclass(frozen=True, kw_only=True)
class RoundKey:
    """A round's key, which opens one sum of so many numbers: as many as an update has. It stays in memory."""

    round: int
    count: int
    context: ckks.Context


class HomomorphicSite:
    """The updates that wait at this site, and the secret key of the round under way."""

    def __init__(self, settings: "HomomorphicAggregation", identities: PartyIdentities) -> None:
        self._settings, self._identities = settings, identities
        self._updates = HeldUpdateStore(identities)
        self._secret: RoundKey | None = None
        self._last_round = -1

    def extension(self) -> SiteExtension:
        steps = {MAKE_KEY: self._make_key, ENCRYPT: self._encrypt, DECRYPT: self._decrypt}
        handlers = {name: step_handler(_reading(step)) for name, step in steps.items()}
        return SiteExtension(handlers=handlers, filters=(self._updates.hold,))

    def _make_key(self, task: Task) -> Reply:
        """The round's key pair, made at the first asking; the public half leaves, signed for this session."""
        if task.client != self._settings.key_holder:
            raise ProtocolError("this client is not the key holder")
        session, count = _session(task), int(read_vector(task.payload, "count")[0])
        if not 0 < count <= MAX_NUMBERS:
            raise ProtocolError(f"a key for sums of {count:g} numbers is no key for updates")
        if self._secret is None or (self._secret.round, self._secret.count) != (task.round, count):
            self._secret = self._new_secret(task, count)
        public = ckks.public_part(self._secret.context, to_compute=False)
        signature = self._identities.sign(task.client, signed_round_key(session, public, count))
        return Reply(task=task, payload={SECURE: {"key": public, "signature": as_array(signature)}})

    def _new_secret(self, task: Task, count: int) -> RoundKey:
        if task.round <= self._last_round or not self._identities.release(task.client, task.round, ROUND_KEY):
            raise ProtocolError("a key for this round or a later one already exists")
        self._last_round = task.round
        return RoundKey(round=task.round, count=count, context=encrypted_sum.make_keys())

    def _encrypt(self, task: Task) -> Reply:
        """The update times its weight, under a key that the holder has signed for as many numbers as it has; once."""
        held, session = self._updates.get(task), _session(task)
        key, signature = payload_bytes(task.payload, "key"), payload_bytes(task.payload, "signature")
        said = signed_round_key(session, as_array(key), sum(entry.count for entry in held.layout.entries))
        if not self._identities.verify(self._settings.key_holder, said, signature):
            raise ProtocolError("the key holder has not signed this key for an update of this size")
        inputs = SessionInputs(
            members=read_vector(task.payload, "members").astype(np.int64),
            weights=read_vector(task.payload, "weights"),
            parameters=EncodingParameters(version=task.round),
        )
        members = len(inputs.members)
        if members < self._settings.min_clients:
            raise too_few_error(members, "member", self._settings.min_clients)
        values = weighted_update(held.parts, held.model, inputs.weight_of(task.client, self._settings.max_weight_share))
        flat = np.concatenate([value.reshape(-1) for value in values])
        encrypted = encrypted_sum.encrypt(ckks.read_context(as_array(key)), encrypted_sum.round_to_steps(flat, members))
        self._updates.release(task)
        return Reply(task=task, payload={CIPHERTEXTS: encrypted})

    def _decrypt(self, task: Task) -> Reply:
        """The sum, in steps. The key is forgotten first: it opens one sum."""
        if task.client != self._settings.key_holder or self._secret is None or self._secret.round != task.round:
            raise ProtocolError("there is no key for this round, or it has already decrypted a sum")
        secret, self._secret = self._secret, None
        steps = encrypted_sum.decrypt(secret.context, task.payload.get(CIPHERTEXTS, {}), secret.count)
        return Reply(task=task, payload={SECURE: {"steps": steps}})


def signed_round_key(session: bytes, key: ckks.Bytes, count: int) -> bytes:
    """A key for sums of so many numbers."""
    return msgspec.msgpack.encode(["winnow homomorphic key", session, key.tobytes(), count])


def _session(task: Task) -> bytes:
    session = payload_bytes(task.payload, "session")
    if len(session) != SESSION_BYTES:
        raise ProtocolError("the task has no valid session id")
    return session


def _reading(step: Callable[[Task], Reply]) -> Callable[[Task], Reply]:
    """A step that refuses what cannot be read."""

    def answer(task: Task) -> Reply:
        try:
            return step(task)
        except ckks.CiphertextError as error:
            raise ProtocolError(str(error)) from error

    return answer
