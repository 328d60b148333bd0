"""What a site does under homomorphic aggregation: hold updates back, encrypt them once, and for the holder of the key
make one for each round, and open one sum with it.
"""

from collections.abc import Callable
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


class HomomorphicSite:
    """The updates that wait at this site, and the secret keys of rounds under way; both stay in memory."""

    def __init__(self, settings: "Homomorphic", identities: Identities) -> None:
        self._settings, self._identities = settings, identities
        self._updates = HeldUpdates(identities)
        self._secret: tuple[bytes, ckks.Context] | None = None

    def at_site(self) -> AtSites:
        steps = {MAKE_KEY: self._make_key, ENCRYPT: self._encrypt, DECRYPT: self._decrypt}
        handlers = {name: answering(_reading(step)) for name, step in steps.items()}
        return AtSites(handlers=handlers, filters=(self._updates.hold,))

    def _make_key(self, task: Task) -> Reply:
        """A key pair for this session; the public half leaves, signed."""
        if task.client != self._settings.holder:
            raise RefusedError("this client is not the holder of the key")
        session, secret = _session(task), cipher.make_keys()
        self._secret = (session, secret)
        public = ckks.public_part(secret, to_compute=False)
        signature = self._identities.sign(task.client, key_to_sign(session, public))
        return Reply(task=task, payload={SECURE: {"key": public, "signature": as_array(signature)}})

    def _encrypt(self, task: Task) -> Reply:
        """The update times its weight, under a key that the holder has signed; once."""
        held, session = self._updates.look(task), _session(task)
        key, signature = carried(task.payload, "key"), carried(task.payload, "signature")
        if not self._identities.verifies(self._settings.holder, key_to_sign(session, as_array(key)), signature):
            raise RefusedError("the key is not signed by its holder")
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
        if self._secret is None or self._secret[0] != _session(task):
            raise RefusedError("there is no key for this session, or it has opened a sum before")
        (_, secret), self._secret = self._secret, None
        count, encrypted = int(carried_numbers(task.payload, "count")[0]), task.payload.get(CIPHERTEXTS, {})
        return Reply(task=task, payload={SECURE: {"steps": cipher.decrypt(secret, encrypted, count)}})


def key_to_sign(session: bytes, key: ckks.Bytes) -> bytes:
    return msgspec.msgpack.encode(["winnow homomorphic key", session, key.tobytes()])


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
