"""Long steps are computed in batches, so that what a party receives at a time stays bounded."""

from collections.abc import Mapping
from dataclasses import replace
from hashlib import sha256
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.privacy.shares.party import SecureStep, StepParty


def step_party(step: SecureStep, me: int, values: NDArray[Any] | None) -> "StepParty | BatchedStep":
    return StepParty(step, me, values) if step.length <= step.batch_length else BatchedStep(step, me, values)


class BatchedStep:
    """A party of a step with many entries, or many owners: one `StepParty` after another."""

    def __init__(self, step: SecureStep, me: int, values: NDArray[Any] | None) -> None:
        size = step.batch_length
        self._me = me
        self._left = [
            (_part(step, first, size), None if values is None else values[first : first + size])
            for first in range(0, step.length, size)
        ]
        self._done: list[NDArray[Any]] = []
        self._party = self._next()
        self.opened: NDArray[Any] | None = None

    def _next(self) -> StepParty:
        step, values = self._left.pop(0)
        return StepParty(step, self._me, values)

    def first_messages(self) -> dict[int, bytes]:
        return self._party.first_messages()

    def receive(self, messages: Mapping[int, bytes]) -> dict[int, bytes]:
        written = self._party.receive(messages)
        if self._party.opened is None:
            return written
        self._done.append(self._party.opened)
        if not self._left:
            self.opened = np.concatenate(self._done)
            return {}
        self._party = self._next()
        return self._party.first_messages()


def _part(step: SecureStep, first: int, size: int) -> SecureStep:
    """Some entries of a step, under a digest of their own."""
    last = min(first + size, step.length)
    thresholds = None if step.thresholds is None else step.thresholds[first:last]
    digest = sha256(step.digest + first.to_bytes(8, "big")).digest()
    return replace(step, digest=digest, length=last - first, thresholds=thresholds)
