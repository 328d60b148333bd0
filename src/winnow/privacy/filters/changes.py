"""An update as one vector of changes, which is what filters work on.

A reply carries a model, whose changes are its differences from the model that came with the task, and it may carry
other parts of the same shape (SCAFFOLD's control variates), which are changes already. Parts that the task did not
bring, such as FedNova's step counts, are a few numbers and pass as they are.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray

from winnow.core import Arrays, Failure, Filter, Handler, Outcome, Reply, Task
from winnow.learn.filters import Chance, Filtering, seeded

Vector: TypeAlias = NDArray[np.float32]


def changed_parts(reply: Reply, task: Task) -> list[str]:
    """The parts of a training client's reply that are shaped like what came with the task."""
    return [part for part in reply.payload if part in task.payload] if task.name == "train" else []


def real_names(part: Arrays) -> list[str]:
    return [name for name, tensor in part.items() if tensor.is_floating_point()]


def flatten(part: str, arrays: Arrays, sent: Arrays) -> Vector:
    """The changes of all real tensors, one after another."""
    names = real_names(sent)
    tensors = [arrays[name] - sent[name] if part == "model" else arrays[name] for name in names]
    if not tensors:
        return np.empty(0, np.float32)
    vector: Vector = torch.cat([tensor.reshape(-1).to(torch.float32) for tensor in tensors]).cpu().numpy()
    return vector


def unflatten(part: str, vector: Vector, sent: Arrays) -> dict[str, Any]:
    """The real tensors with these changes."""
    names = real_names(sent)
    pieces = torch.split(torch.from_numpy(vector), [sent[name].numel() for name in names])
    shaped = {name: piece.view(sent[name].shape).to(sent[name]) for name, piece in zip(names, pieces, strict=True)}
    return {name: sent[name] + change for name, change in shaped.items()} if part == "model" else shaped


def sizes_of(part: Arrays) -> NDArray[np.int64]:
    """How many values each real tensor has."""
    return np.array([part[name].numel() for name in real_names(part)], np.int64)


class OnChanges(Filtering):
    """A filter that turns changes into other changes of the same shape; the server has nothing to undo."""

    def at_site(self, chance: Chance = seeded) -> Filter[Any]:
        def apply(tasks: Sequence[Task], site: Any, call_next: Handler[Any]) -> list[Outcome]:
            return [self._applied(each, chance) for each in call_next(tasks, site)]

        return apply

    @abstractmethod
    def altered(self, changes: Vector, sent: Arrays, rng: np.random.Generator) -> Vector:
        """The changes that may leave; `sent` has the names and shapes. The same object, if nothing is to be altered."""

    def buffers(self, arrays: Arrays, sent: Arrays) -> Mapping[str, Any]:
        """The whole numbers that may leave (counters of batches); as they are, unless a filter knows better."""
        return {name: tensor for name, tensor in arrays.items() if not tensor.is_floating_point()}

    def _applied(self, outcome: Outcome, chance: Chance) -> Outcome:
        if not isinstance(outcome, Reply):
            return outcome
        payload: dict[str, Arrays] = dict(outcome.payload)
        for part in changed_parts(outcome, outcome.task):
            arrays, sent = outcome.payload[part], outcome.task.payload[part]
            changes = flatten(part, arrays, sent)
            if not np.isfinite(changes).all():
                return not_finite(outcome, "filtering")
            altered = self.altered(changes, sent, chance(outcome.task, f"{_name(self)}/{part}"))
            real = unflatten(part, altered, sent) if altered is not changes else {}
            payload[part] = in_order({**arrays, **self.buffers(arrays, sent), **real}, sent)
        return replace(outcome, payload=payload)


def not_finite(reply: Reply, doing: str) -> Failure:
    return Failure(task=reply.task, stage=f"{doing} its update", reason="the update is not finite")


def in_order(arrays: Arrays, like: Arrays) -> dict[str, Any]:
    return {name: arrays[name] for name in like}


def _name(filtering: Filtering) -> str:
    return str(getattr(filtering, "name", ""))
