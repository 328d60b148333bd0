"""What a site holds, and does, where profiles are compared under encryption.

Every site has the public key, and seals with it whatever profile leaves. The holder of the reference set also has the
secret key. It stays in this object's memory: no reply carries it, no checkpoint holds it.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from winnow.core import Failure, Handler, Outcome, Reply, Task
from winnow.learn.profile_by_class import restored_profile
from winnow.learn.profile_comparison import SiteExtension
from winnow.privacy import ckks
from winnow.privacy.encrypted_profile import seal_profile

SIGNIFICANT_BITS = 20
"""Binary digits of a decrypted number that leave the holder, at most so many of them behind the point."""


class EncryptedProfileSite:
    """A site's keys, and the tasks and the filter that use them."""

    def __init__(self) -> None:
        self._public: ckks.Context | None = None
        self._secret: dict[int, ckks.Context] = {}

    def extension(self) -> SiteExtension:
        handlers: dict[str, Handler[Any]] = {
            "profile-make-keys": self.make_keys,
            "profile-set-key": self.take_key,
            "profile-decrypt": self.decrypt,
        }
        return SiteExtension(handlers=handlers, filters=(self.seal,))

    def make_keys(self, tasks: Sequence[Task], site: object) -> list[Outcome]:
        """New keys, whatever there was before; what is public of them is sent."""
        outcomes: list[Outcome] = []
        for task in tasks:
            secret = self._secret[task.client] = ckks.make_keys()
            keys = {
                "encrypt": ckks.public_part(secret, to_compute=False),
                "compute": ckks.public_part(secret, to_compute=True),
            }
            outcomes.append(Reply(task=task, payload={"keys": keys}))
        return outcomes

    def take_key(self, tasks: Sequence[Task], site: object) -> list[Outcome]:
        """From now on, seal with this public key."""
        try:
            self._public = ckks.read_context(tasks[0].payload["keys"]["encrypt"])
        except ckks.CiphertextError as error:
            return [Failure(task=task, stage="taking a key", reason=str(error)) for task in tasks]
        return [Reply(task=task) for task in tasks]

    def decrypt(self, tasks: Sequence[Task], site: object) -> list[Outcome]:
        """The numbers in these ciphertexts; for whoever made the keys."""
        return [self._decrypted(task) for task in tasks]

    def seal(self, tasks: Sequence[Task], site: Any, call_next: Handler[Any]) -> list[Outcome]:
        """A filter: no profile leaves with its means in the clear, whatever the task was."""
        return [self._sealed(outcome) for outcome in call_next(tasks, site)]

    def _decrypted(self, task: Task) -> Outcome:
        secret = self._secret.get(task.client)
        if secret is None:
            return Failure(task=task, stage="decrypting", reason="this client has no secret key")
        try:
            values = np.array([ckks.decrypt(secret, data) for data in task.payload["divergences"].values()])
        except ckks.CiphertextError as error:
            return Failure(task=task, stage="decrypting", reason=str(error))
        return Reply(task=task, payload={"divergences": {"values": round_off_noise(values)}})

    def _sealed(self, outcome: Outcome) -> Outcome:
        if not isinstance(outcome, Reply) or "profile" not in outcome.payload:
            return outcome
        if self._public is None:
            return Failure(task=outcome.task, stage="sealing its profile", reason="it was given no key")
        sealed = seal_profile(restored_profile(outcome.payload["profile"]), self._public)
        return replace(outcome, payload={**outcome.payload, "profile": sealed})


def round_off_noise(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """The values without their last digits, which are noise.

    The noise of a CKKS decryption depends on the secret key, and enough of it would give the key away (Li and
    Micciancio, 2021), so it is not told. Besides, a run then repeats under its seed, though keys and ciphertexts are
    random.
    """
    _, exponent = np.frexp(values)
    step = np.ldexp(1.0, np.maximum(exponent, 0) - SIGNIFICANT_BITS)
    rounded: NDArray[np.float64] = np.round(values / step) * step
    return rounded
