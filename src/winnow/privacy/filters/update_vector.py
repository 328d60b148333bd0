"""An update as one vector of changes, which is what filters work on.

A reply carries a model, whose changes are its differences from the model that came with the task, and it may carry
other parts of the same shape (SCAFFOLD's control variates), which are changes already. Parts that the task did not
bring, such as FedNova's step counts, are a few numbers and pass as they are; with more of them a reply does not leave.
"""

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, TypeAlias

import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray

from winnow.core import Arrays, Failure, Filter, Handler, Outcome, Randomness, Reply, Task
from winnow.learn.update_filters import TwoSidedFilter, task_generator, without_training_loss

UpdateVector: TypeAlias = NDArray[np.float32]


def update_parts(reply: Reply, task: Task) -> list[str]:
    """The parts of a training client's reply that are shaped like what came with the task."""
    return [part for part in reply.payload if part in task.payload] if task.name == "train" else []


MAX_UNFILTERED_NUMBERS = 16
"""So many numbers (how many steps were taken) need no filter."""


def is_large(part: Arrays) -> bool:
    """Whether a part that did not come with the task is more than a few numbers."""
    return sum(int(np.prod(array.shape)) for array in part.values()) > MAX_UNFILTERED_NUMBERS


def float_names(part: Arrays) -> list[str]:
    """In an order of their own: a model that has crossed a wire or a disk need not have its names in the module's."""
    return sorted(name for name, tensor in part.items() if tensor.is_floating_point())


def concatenate_tensors(arrays: Arrays, like: Arrays, dtype: torch.dtype) -> torch.Tensor:
    """All real tensors, one after another."""
    pieces = [arrays[name].reshape(-1).to(dtype) for name in float_names(like)]
    return torch.cat(pieces) if pieces else torch.zeros(0, dtype=dtype)


def split_into_tensors(vector: torch.Tensor, like: Arrays) -> dict[str, torch.Tensor]:
    """The real tensors of which a vector is made."""
    names = float_names(like)
    pieces = torch.split(vector, [like[name].numel() for name in names])
    return {name: piece.view(like[name].shape) for name, piece in zip(names, pieces, strict=True)}


def flatten(part: str, arrays: Arrays, sent: Arrays) -> UpdateVector:
    """The changes of all real tensors, one after another."""
    model = part == "model"
    changes = {name: arrays[name] - sent[name] if model else arrays[name] for name in float_names(sent)}
    vector: UpdateVector = concatenate_tensors(changes, sent, torch.float32).cpu().numpy()
    return vector


def finite_or_zero(changes: UpdateVector) -> UpdateVector:
    """No change where one is not finite.

    Whether an update is finite is an exact answer to whoever chose the model: it may be so with one sample, and not
    without. So nothing is refused for that. The same object comes back if all changes are finite.
    """
    return changes if np.isfinite(changes).all() else np.nan_to_num(changes, nan=0.0, posinf=0.0, neginf=0.0)


def unflatten(part: str, vector: UpdateVector, sent: Arrays) -> dict[str, Any]:
    """The real tensors with these changes."""
    changes = {
        name: change.to(sent[name]) for name, change in split_into_tensors(torch.from_numpy(vector), sent).items()
    }
    return {name: sent[name] + change for name, change in changes.items()} if part == "model" else changes


def tensor_sizes(part: Arrays) -> NDArray[np.int64]:
    """How many values each real tensor has."""
    return np.array([part[name].numel() for name in float_names(part)], np.int64)


class UpdateFilter(TwoSidedFilter):
    """A filter that turns changes into other changes of the same shape; the server has nothing to undo."""

    def at_site(self, randomness: Randomness) -> Filter[Any]:
        def apply(tasks: Sequence[Task], site: Any, call_next: Handler[Any]) -> list[Outcome]:
            return [self._applied(each, randomness) for each in call_next(tasks, site)]

        return apply

    silent: ClassVar[bool] = False
    """Whether it promises to hide a client's data: then the loss of the training does not leave either."""

    @abstractmethod
    def altered(self, changes: UpdateVector, sent: Arrays, rng: np.random.Generator) -> UpdateVector:
        """The changes that may leave: one flat vector, array after array in the order `sorted(sent)`, with the shapes
        that `sent` has. The same object, if nothing is to be altered.
        """

    def buffers(self, arrays: Arrays, sent: Arrays) -> Mapping[str, Any]:
        """The whole numbers that may leave (counters of batches); as they are, unless a filter knows better."""
        return {name: tensor for name, tensor in arrays.items() if not tensor.is_floating_point()}

    def _applied(self, outcome: Outcome, randomness: Randomness) -> Outcome:
        if not isinstance(outcome, Reply):
            return outcome
        if (fault := _fault(outcome)) is not None:
            return Failure(task=outcome.task, stage="filtering its update", reason=fault)
        payload: dict[str, Arrays] = dict(outcome.payload)
        for part in update_parts(outcome, outcome.task):
            arrays, sent = outcome.payload[part], outcome.task.payload[part]
            changes = flatten(part, arrays, sent)
            rng = task_generator(randomness, outcome.task, f"{_name(self)}/{part}")
            altered = self.altered(finite_or_zero(changes), sent, rng)
            real = unflatten(part, altered, sent) if altered is not changes else {}
            payload[part] = ordered_like({**arrays, **self.buffers(arrays, sent), **real}, sent)
        filtered = replace(outcome, payload=payload)
        return without_training_loss(filtered) if self.silent else filtered


def _fault(reply: Reply) -> str | None:
    """Why the changes of an update cannot be told, so that it must not leave; None if they can."""
    if reply.task.name != "train":
        return None
    for part, arrays in reply.payload.items():
        sent = reply.task.payload.get(part)
        if sent is None:
            if part != "profile" and is_large(arrays):
                return f"its part {part!r} was not in the task, so its change cannot be computed"
        elif not all(name in arrays and _alike(arrays[name], tensor) for name, tensor in sent.items()):
            return f"its part {part!r} has other shapes or types than what came with the task"
    return None


def _alike(one: torch.Tensor, other: torch.Tensor) -> bool:
    return one.shape == other.shape and one.is_floating_point() == other.is_floating_point()


def ordered_like(arrays: Arrays, like: Arrays) -> dict[str, Any]:
    return {name: arrays[name] for name in like}


def _name(filtering: TwoSidedFilter) -> str:
    return str(getattr(filtering, "name", ""))
