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
from winnow.learn.matching import AtSites
from winnow.learn.parties import Identities
from winnow.privacy import ckks
from winnow.privacy.homomorphic import cipher
from winnow.privacy.secure.encoding import Parameters
from winnow.privacy.secure.form import departures
from winnow.privacy.secure.held import HeldUpdates
from winnow.privacy.secure.refusal import RefusedError, too_few
from winnow.privacy.secure.steps import SECURE, answering, as_array, carried, carried_numbers
from winnow.privacy.secure.terms import SESSION_BYTES
from winnow.privacy.secure.told import Told

if TYPE_CHECKING:
    from winnow.privacy.homomorphic.collect import Homomorphic

MAKE_KEY = "homomorphic-key"
ENCRYPT = "homomorphic-encrypt"
DECRYPT = "homomorphic-decrypt"
CIPHERTEXTS = "ciphertexts"
MOST_NUMBERS = 1 << 40
KEY = "key of a round"
"""What the holder has noted once a round."""


@dataclass(frozen=True, kw_only=True)
class Secret:
    """A round's key, which opens one sum of so many numbers: as many as an update has. It stays in memory."""

    round: int
    count: int
    context: ckks.Context


class HomomorphicSite:
    """The updates that wait at this site, and the secret key of the round under way."""

    def __init__(self, settings: "Homomorphic", identities: Identities) -> None:
        self._settings, self._identities = settings, identities
        self._updates = HeldUpdates(identities)
        self._secret: Secret | None = None
        self._last_round = -1

    def at_site(self) -> AtSites:
        steps = {MAKE_KEY: self._make_key, ENCRYPT: self._encrypt, DECRYPT: self._decrypt}
        handlers = {name: answering(_reading(step)) for name, step in steps.items()}
        return AtSites(handlers=handlers, filters=(self._updates.hold,))

    def _make_key(self, task: Task) -> Reply:
        """The round's key pair, made at the first asking; the public half leaves, signed for this session."""
        if task.client != self._settings.holder:
            raise RefusedError("this client is not the holder of the key")
        session, count = _session(task), int(carried_numbers(task.payload, "count")[0])
        if not 0 < count <= MOST_NUMBERS:
            raise RefusedError(f"a key for sums of {count:g} numbers is no key for updates")
        if self._secret is None or (self._secret.round, self._secret.count) != (task.round, count):
            self._secret = self._new_secret(task, count)
        public = ckks.public_part(self._secret.context, to_compute=False)
        signature = self._identities.sign(task.client, key_to_sign(session, public, count))
        return Reply(task=task, payload={SECURE: {"key": public, "signature": as_array(signature)}})

    def _new_secret(self, task: Task, count: int) -> Secret:
        if task.round <= self._last_round or not self._identities.release(task.client, task.round, KEY):
            raise RefusedError("a key of this round, or of a later one, was made before")
        self._last_round = task.round
        return Secret(round=task.round, count=count, context=cipher.make_keys())

    def _encrypt(self, task: Task) -> Reply:
        """The update times its weight, under a key that the holder has signed for as many numbers as it has; once."""
        held, session = self._updates.look(task), _session(task)
        key, signature = carried(task.payload, "key"), carried(task.payload, "signature")
        said = key_to_sign(session, as_array(key), sum(entry.count for entry in held.form.entries))
        if not self._identities.verifies(self._settings.holder, said, signature):
            raise RefusedError("the key is not signed by its holder, or not for an update of this size")
        told = Told(
            members=carried_numbers(task.payload, "members").astype(np.int64),
            weights=carried_numbers(task.payload, "weights"),
            parameters=Parameters(version=task.round),
        )
        members = len(told.members)
        if members < self._settings.fewest:
            raise too_few(members, "member", self._settings.fewest)
        values = departures(held.parts, held.model, told.weight_of(task.client, self._settings.heaviest))
        flat = np.concatenate([value.reshape(-1) for value in values])
        encrypted = cipher.encrypt(ckks.read_context(as_array(key)), cipher.rounded(flat, members))
        self._updates.let_out(task)
        return Reply(task=task, payload={CIPHERTEXTS: encrypted})

    def _decrypt(self, task: Task) -> Reply:
        """The sum, in steps. The key is forgotten first: it opens one sum."""
        if task.client != self._settings.holder or self._secret is None or self._secret.round != task.round:
            raise RefusedError("there is no key of this round, or it has opened a sum before")
        secret, self._secret = self._secret, None
        steps = cipher.decrypt(secret.context, task.payload.get(CIPHERTEXTS, {}), secret.count)
        return Reply(task=task, payload={SECURE: {"steps": steps}})


def key_to_sign(session: bytes, key: ckks.Bytes, count: int) -> bytes:
    """A key for sums of so many numbers."""
    return msgspec.msgpack.encode(["winnow homomorphic key", session, key.tobytes(), count])


def _session(task: Task) -> bytes:
    session = carried(task.payload, "session")
    if len(session) != SESSION_BYTES:
        raise RefusedError("the task belongs to no session")
    return session


def _reading(step: Callable[[Task], Reply]) -> Callable[[Task], Reply]:
    """A step that refuses what cannot be read."""

    def answer(task: Task) -> Reply:
        try:
            return step(task)
        except ckks.UnreadableError as error:
            raise RefusedError(str(error)) from error

    return answer
