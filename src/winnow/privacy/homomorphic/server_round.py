"""One round of homomorphic aggregation at the server: a key from its holder, ciphertexts from all, their sum opened."""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from winnow.core import Arrays, Payload, Reply, Task, Work
from winnow.core.array_spec import ArraySpec, spec_of
from winnow.learn.aggregation import LinearFold
from winnow.learn.collect import RoundContext
from winnow.learn.reply_checks import unexpected_fault
from winnow.learn.stack import ModelState
from winnow.privacy.ckks import CiphertextError
from winnow.privacy.homomorphic.encrypted_sum import (
    CIPHERTEXT_BYTES,
    KEY_BYTES,
    MAX_CLIENTS,
    STEP,
    EncryptedSum,
    ciphertext_count,
)
from winnow.privacy.homomorphic.site import CIPHERTEXTS, DECRYPT, ENCRYPT, MAKE_KEY
from winnow.privacy.secagg.errors import ProtocolError, too_few_error
from winnow.privacy.secagg.protocol_tasks import SECURE, as_array, payload_bytes
from winnow.privacy.secagg.server_requests import StepDispatcher
from winnow.privacy.secagg.session_terms import SESSION_BYTES
from winnow.privacy.secagg.update_layout import MODEL, UpdateLayout, mean_update

if TYPE_CHECKING:
    from winnow.privacy.homomorphic.collect import HomomorphicAggregation

WEIGHT_BYTES = 16
"""What a member's number and weight weigh. Keys vary in size, so what is charged for them is a constant."""


@dataclass(kw_only=True)
class HomomorphicRound(StepDispatcher):
    """A cohort that has trained, whose updates are all of one layout."""

    settings: "HomomorphicAggregation"
    fold: LinearFold
    context: RoundContext
    layout: UpdateLayout
    cohort: Mapping[int, Reply]
    folded: list[Reply] = field(default_factory=list)
    parts: Mapping[str, ModelState] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._session = as_array(os.urandom(SESSION_BYTES))
        self._count = sum(entry.count for entry in self.layout.entries)

    def sum_up(self) -> None:
        """Hold the conversation and fold the sum; or abandon the round, and tell everybody in it why."""
        if not self.cohort:
            return
        try:
            self._check_members(len(self.cohort))
            key = self._key()
            total, summed = self._encrypted_sum(key)
            steps = self._opened(total)
        except (ProtocolError, CiphertextError) as error:
            reason = f"the round was abandoned: {error}"
            for client in self.cohort:
                self.refuse(client, reason)
            return
        self._fold_sum(steps, summed)

    # The steps --------------------------------------------------------------------------------------------------------

    def _key(self) -> Arrays:
        """A public key from its holder, for this round alone."""
        asked: Payload = {SECURE: {"count": np.array([self._count])}}
        reply = self._ask_holder(MAKE_KEY, asked, Work(upload_bytes=KEY_BYTES))
        return {name: as_array(payload_bytes(reply.payload, name)) for name in ("key", "signature")}

    def _encrypted_sum(self, key: Arrays) -> tuple[EncryptedSum, list[int]]:
        """The sum of what arrives, and whose ciphertexts are in it."""
        members = sorted(self.cohort)
        common: Payload = {SECURE: {**key, **self._weights(members), "session": self._session}}
        work = Work(
            download_bytes=KEY_BYTES + WEIGHT_BYTES * len(members),
            upload_bytes=self._transfer(CIPHERTEXT_BYTES * ciphertext_count(self._count)),
        )
        total, summed = EncryptedSum(key["key"], self._count), []
        for reply in self._ask(ENCRYPT, members, common, work):
            client = reply.task.client
            try:
                total.add(reply.payload.get(CIPHERTEXTS, {}))
                summed.append(client)
            except CiphertextError as error:
                self.refuse(client, f"its ciphertexts cannot be used: {error}")
            except Exception as error:
                self.refuse(client, unexpected_fault("its ciphertexts cannot be used", client, error))
        self._check_members(len(summed))
        return total, sorted(summed)

    def _opened(self, total: EncryptedSum) -> NDArray[np.int64]:
        """The sum of each value, in steps, from the holder of the key."""
        size = CIPHERTEXT_BYTES * ciphertext_count(self._count)
        work = Work(download_bytes=self._transfer(size), upload_bytes=self._transfer(8 * self._count))
        opened = self._ask_holder(DECRYPT, {CIPHERTEXTS: total.parts()}, work).payload.get(SECURE, {})
        if "steps" not in opened or spec_of(opened, "steps") != ArraySpec("int64", (self._count,)):
            raise ProtocolError(f"the key holder did not return a sum of {self._count} values")
        return np.asarray(opened["steps"])

    def _fold_sum(self, steps: NDArray[np.int64], summed: Sequence[int]) -> None:
        ends = np.cumsum([entry.count for entry in self.layout.entries])[:-1]
        pieces = np.split(steps.astype(np.float64) * STEP, ends)
        sums = [piece.reshape(entry.shape) for piece, entry in zip(pieces, self.layout.entries, strict=True)]
        parts, weight = mean_update(self.layout, sums, self.context.expected.parts[MODEL], len(summed))
        self.fold.add_mean(parts.pop(MODEL), weight * self._unit)
        self.parts, self.folded = parts, [self.cohort[client] for client in summed]

    # Besides ----------------------------------------------------------------------------------------------------------

    def _transfer(self, size: int) -> int:
        return round(self.context.byte_scale * size)

    @property
    def _unit(self) -> float:
        """The largest weight: those that clients are told are shares of it."""
        return max(map(self._weight_of, self.cohort))

    def _weight_of(self, client: int) -> float:
        return self.fold.weight_of(client, self.context.counts[client])

    def _weights(self, members: Sequence[int]) -> dict[str, NDArray[np.float64]]:
        """Everybody in this round and what each counts, in whole steps."""
        weights = np.array([self._weight_of(client) for client in members]) / self._unit
        return {"members": np.array(members, np.float64), "weights": np.maximum(np.rint(weights / STEP), 1) * STEP}

    def _check_members(self, members: int) -> None:
        if members < self.settings.min_clients:
            raise too_few_error(members, "client", self.settings.min_clients)
        if members > MAX_CLIENTS:
            raise ProtocolError(f"at most {MAX_CLIENTS:,} clients can be added up in a round; select fewer")

    def _ask_holder(self, name: str, payload: Payload, work: Work) -> Reply:
        whole = {**payload, SECURE: {**payload.get(SECURE, {}), "session": self._session}}
        replies = list(self._ask(name, [self.settings.key_holder], whole, work))
        if not replies:
            raise ProtocolError(f"client {self.settings.key_holder}, who holds the key, did not answer {name}")
        return replies[0]

    def _ask(self, name: str, clients: Sequence[int], payload: Payload, work: Work) -> Iterator[Reply]:
        task = next(iter(self.cohort.values())).task
        return self.ask(
            [
                Task(name=name, client=client, round=task.round, version=task.version, payload=payload, work=work)
                for client in clients
            ]
        )
