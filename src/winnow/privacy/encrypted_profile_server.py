"""Profile matching under homomorphic encryption, the server's side (FedProf, appendix C.2).

The server has the keys to compute with, and none to decrypt with. It turns two sealed profiles into an encrypted
divergence, and asks the holder of the reference set, who made the keys, for the number in it.
"""

from collections.abc import Sequence
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from winnow.core import Arrays, ConfigError, Payload, Randomness, Reply, Task, Work
from winnow.core.array_spec import ArraySpec, spec_of
from winnow.learn.algorithm import Algorithm
from winnow.learn.algorithm_part import TOLD_BY_CLIENTS, DataSummary, EvidenceKind
from winnow.learn.handlers import SEED_BYTES
from winnow.learn.profile_by_class import class_weights, counts_fault, null_divergence
from winnow.learn.profile_comparison import ProfileComparison, ReferenceProfileBuilder, SiteExtension
from winnow.learn.representation_profile import ReferenceProfile, SendTasks
from winnow.learn.round_loop import SynchronousRounds
from winnow.privacy import ckks
from winnow.privacy.encrypted_profile import EncryptedProfile, compare_encrypted, read_profile
from winnow.privacy.encrypted_profile_site import EncryptedProfileSite

ENCRYPTED_PROFILE_BYTES = 414_000
"""What a ciphertext of means weighs: it is compressed, and varies by a few hundred bytes."""

KEYS_BYTES = 54_900_000
"""What the holder's public keys weigh together, most of it for rotations."""

DECRYPTION_BATCH = 64
"""Encrypted divergences in one message to the holder, 200 kB each."""

MIN_DIVERGENCE = -1e-3
"""No divergence is negative, and the noise of a decrypted number is far smaller than this."""


class EncryptedComparison(ProfileComparison):
    """Means are compared under encryption: the server sees none, and the holder of the reference set divergences only.

    The variances stay in the clear (equation 36).
    """

    name: Literal["encrypted"] = "encrypted"
    forbidden_evidence: ClassVar[frozenset[EvidenceKind]] = frozenset(TOLD_BY_CLIENTS)

    def check_data(self, data: DataSummary) -> None:
        holders, elements = data.reference_clients, data.profile_length
        ckks.library('select.profile_comparison = "encrypted"')
        if len(holders) != 1:
            number = f"names {len(holders)}" if holders else "names none"
            example = holders[0] if holders else 3
            raise ConfigError(
                'reference_clients: select.profile_comparison = "encrypted" needs one client, who holds the reference '
                f"set and the secret key; the list {number}: write reference_clients = [{example}]"
            )
        if elements > ckks.SLOTS:
            raise ConfigError(
                f"select.layer: a profile of this layer has {elements} elements, and at most {ckks.SLOTS} can be "
                "compared under encryption; choose a smaller layer"
            )

    def conflict(self, whole: Algorithm) -> str | None:
        if not isinstance(whole.schedule, SynchronousRounds):
            return 'select.profile_comparison = "encrypted" needs schedule.name = "rounds": a round is of one version'
        return None

    def privacy_text(self) -> str:
        return (
            "encrypted profiles: the server compares profiles without seeing their means; their variances, the "
            "divergences and the units of the means it sees. The holder of the reference set has the secret key and "
            "sees divergences times a factor that it is not told. This holds for a server that does as it should and "
            "does not collude with the holder. It costs 0.4 MB and 8 ms for each profile, and 28 ms at the server."
        )

    def profile_bytes(self, plain: int) -> int:
        return ENCRYPTED_PROFILE_BYTES + plain // 2 if plain else 0

    def start(
        self, holders: Sequence[int], clients: int, elements: int, classes: int | None
    ) -> ReferenceProfileBuilder:
        (holder,) = holders
        return _EncryptedMatcher(holder, clients, (elements,) if classes is None else (classes, elements))

    def site_extension(self, randomness: Randomness) -> SiteExtension:
        return EncryptedProfileSite().extension()


class _EncryptedMatcher(ReferenceProfileBuilder):
    """Fetches keys once a run. Secret keys do not outlive a process, so a resumed run begins with new ones."""

    def __init__(self, holder: int, clients: int, shape: tuple[int, ...]) -> None:
        self._holder, self._clients, self._shape = holder, clients, shape
        self._context: ckks.Context | None = None

    def prepare(self, ask: SendTasks) -> None:
        """A holder whose keys cannot be used is asked again before the next version."""
        if self._context is not None:
            return
        work = Work(download_bytes=SEED_BYTES, upload_bytes=KEYS_BYTES)
        for reply in ask([_task("profile-make-keys", self._holder, {}, work)], self._read_keys):
            assert isinstance(reply, Reply)
            key = reply.payload["keys"]["encrypt"]
            payload: Payload = {"keys": {"encrypt": key}}
            ask([_task("profile-set-key", k, payload, Work(download_bytes=key.nbytes)) for k in range(self._clients)])

    def _read_keys(self, reply: Reply) -> str | None:
        """What is wrong with the holder's keys; if nothing is, they are used from now on."""
        keys = reply.payload.get("keys", {})
        if keys.keys() != {"compute", "encrypt"}:
            return "the reply has no keys"
        try:
            ckks.read_context(ckks.byte_array(keys, "encrypt", ckks.MAX_KEY_BYTES))
            self._context = ckks.read_context(ckks.byte_array(keys, "compute", ckks.MAX_KEY_BYTES))
        except ckks.CiphertextError as error:
            return str(error)
        return None

    def fault(self, part: Arrays, samples: int) -> str | None:
        return _fault(part, self._shape, samples, self._context)

    def reference(self, replies: Sequence[Reply], sizes: Sequence[int]) -> "EncryptedReference":
        (reply,) = replies
        sealed = read_profile(reply.payload["profile"], self._shape, self._context)
        return EncryptedReference(sealed, self._holder, self._context)


class EncryptedReference(ReferenceProfile):
    """The reference profile of a version, sealed by its holder."""

    def __init__(self, sealed: EncryptedProfile, holder: int, context: ckks.Context) -> None:
        self._sealed, self._holder, self._context = sealed, holder, context

    @property
    def nbytes(self) -> int:
        counts = 0 if self._sealed.counts is None else self._sealed.counts.nbytes
        return ENCRYPTED_PROFILE_BYTES + self._sealed.variance.nbytes + counts

    def fault(self, part: Arrays, samples: int) -> str | None:
        return _fault(part, self._sealed.variance.shape, samples, self._context)

    def divergences(self, parts: Sequence[Arrays], ask: SendTasks) -> NDArray[np.float64]:
        if self._sealed.counts is None:
            return self._decrypted(parts, ask)
        counts = np.stack([np.asarray(part["counts"]) for part in parts])
        weights = class_weights(counts, self._sealed.counts)
        found, known = np.full(len(parts), np.nan), np.flatnonzero(~np.isnan(weights).any(1))
        found[known] = self._decrypted([parts[i] for i in known.tolist()], ask)
        return found - null_divergence(weights, counts, self._sealed.counts)

    def _decrypted(self, parts: Sequence[Arrays], ask: SendTasks) -> NDArray[np.float64]:
        starts = range(0, len(parts), DECRYPTION_BATCH)
        batches = [self._decrypted_batch(parts[i : i + DECRYPTION_BATCH], ask) for i in starts]
        return np.concatenate([np.zeros(0), *batches])

    def _decrypted_batch(self, parts: Sequence[Arrays], ask: SendTasks) -> NDArray[np.float64]:
        compared = [compare_encrypted(self._read(part), self._sealed) for part in parts]
        payload: Payload = {"divergences": {f"{i}": each.ciphertext for i, each in enumerate(compared)}}
        work = Work(download_bytes=sum(each.ciphertext.nbytes for each in compared), upload_bytes=8 * len(compared))
        found = ask(
            [_task("profile-decrypt", self._holder, payload, work)], lambda reply: _values_fault(reply, len(compared))
        )
        if not found:
            return np.full(len(compared), np.nan)
        assert isinstance(found[0], Reply)
        values = np.asarray(found[0].payload["divergences"]["values"])
        credible = (values > MIN_DIVERGENCE) & (values <= 2 * ckks.CAPACITY)
        divergences = np.clip(values, 0, 2 * ckks.CAPACITY) / np.array([each.factor for each in compared])
        result: NDArray[np.float64] = np.where(credible, divergences, np.nan)
        return result

    def state(self) -> Arrays:
        """Nothing: it is of no use without the secret key, which is gone when the run is resumed."""
        return {}

    def _read(self, part: Arrays) -> EncryptedProfile:
        return read_profile(part, self._sealed.variance.shape, self._context)


def _task(name: str, client: int, payload: Payload, work: Work) -> Task:
    """An exchange about keys and divergences, which belongs to no round or version."""
    return Task(name=name, client=client, round=0, version=0, payload=payload, work=work)


def _fault(part: Arrays, shape: tuple[int, ...], samples: int, context: ckks.Context | None) -> str | None:
    if context is None:
        return "cannot use the encrypted profile: the key holder has sent no keys"
    try:
        read_profile(part, shape, context)
    except ckks.CiphertextError as error:
        return f"cannot use the encrypted profile: {error}"
    fault = counts_fault(part, shape[0], samples) if len(shape) > 1 else None
    return fault and f"cannot use the encrypted profile: {fault}"


def _values_fault(reply: Reply, count: int) -> str | None:
    """What is wrong with the divergences that the holder of the secret key has decrypted."""
    part = reply.payload.get("divergences", {})
    if part.keys() != {"values"} or spec_of(part, "values") != ArraySpec("float64", (count,)):
        return f"the reply does not have {count} divergences"
    return None
