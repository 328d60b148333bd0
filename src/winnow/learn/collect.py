"""How replies become an aggregate. The plain way hands every sound update to the fold; others may only reveal sums."""

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from operator import not_
from typing import Literal

import numpy as np
import torch

from winnow.core import Arrays, Choice, Failure, Federation, Outcome, Reply, Task, Until
from winnow.learn.aggregate import Fold
from winnow.learn.profile import Profile
from winnow.learn.stack import ModelState


@dataclass(frozen=True, kw_only=True)
class Expected:
    """What a sound reply looks like: a model of these shapes, a profile of this length."""

    model: ModelState
    reference: Profile | None


@dataclass(frozen=True, kw_only=True)
class Refusal:
    client: int
    reason: str


@dataclass(frozen=True, kw_only=True)
class Gathered:
    """The aggregated model, the replies that were folded, those whose reports (loss, profile) can be trusted though
    their update may not, those that were refused, and all whose cost counts.
    """

    model: ModelState
    folded: list[Reply]
    reported: list[Reply]
    refused: list[Refusal]
    answered: list[Reply]


class Collect(Choice):
    """One round's conversation with the invited, out of which an aggregate comes."""

    @abstractmethod
    def gather(
        self,
        federation: Federation,
        tasks: Sequence[Task],
        *,
        until: Until,
        counts: Mapping[int, int],
        begin: Callable[[], Fold],
        expected: Expected,
    ) -> Gathered:
        """Hold the conversation; `begin` starts the aggregation, `counts` says how often each client was drawn."""


class Plain(Collect):
    """The server sees every update. Those that are unsound are refused, whatever the algorithm."""

    name: Literal["plain"] = "plain"

    def gather(
        self,
        federation: Federation,
        tasks: Sequence[Task],
        *,
        until: Until,
        counts: Mapping[int, int],
        begin: Callable[[], Fold],
        expected: Expected,
    ) -> Gathered:
        with federation.dispatch(tasks, until) as exchange:
            outcomes = sorted(exchange, key=lambda outcome: outcome.task.client)
        sound, refused = sift(outcomes, expected)
        folded, model = sound, _fold(sound, counts, begin)
        if not _finite(model):
            # One value that is not finite spoils the sum, so looking at the sum is enough until it is spoilt.
            finite = [_finite(reply.payload["model"]) for reply in sound]
            refused += [
                Refusal(client=reply.task.client, reason="the update is not finite")
                for reply in compress(sound, map(not_, finite))
            ]
            folded = list(compress(sound, finite))
            model = _fold(folded, counts, begin)
        answered = [outcome for outcome in outcomes if isinstance(outcome, Reply)]
        return Gathered(model=model, folded=folded, reported=sound, refused=refused, answered=answered)


def _fold(replies: Sequence[Reply], counts: Mapping[int, int], begin: Callable[[], Fold]) -> ModelState:
    fold = begin()
    for reply in replies:
        fold.add(reply.payload["model"], reply.task.client, counts[reply.task.client])
    return fold.finish()


def _finite(model: Arrays) -> bool:
    norms = torch._foreach_norm([tensor for tensor in model.values() if tensor.is_floating_point()])
    return bool(torch.isfinite(torch.stack(list(norms))).all())


def sift(outcomes: Sequence[Outcome], expected: Expected) -> tuple[list[Reply], list[Refusal]]:
    """Sound replies, and refusals with their reasons."""
    sound, refused = [], []
    for outcome in outcomes:
        fault = _fault(outcome, expected)
        if fault is None and isinstance(outcome, Reply):
            sound.append(outcome)
        else:
            refused.append(Refusal(client=outcome.task.client, reason=fault or ""))
    return sound, refused


def _fault(outcome: Outcome, expected: Expected) -> str | None:
    if isinstance(outcome, Failure):
        return f"failed while {outcome.stage}: {outcome.reason}"
    if "model" in outcome.payload:
        fault = _model_fault(outcome.payload["model"], expected.model)
        if fault:
            return fault
    if "profile" in outcome.payload and expected.reference is not None:
        return _profile_fault(outcome.payload["profile"], expected.reference)
    return None


def _model_fault(model: Arrays, like: ModelState) -> str | None:
    if model.keys() != like.keys():
        return "the update has other tensors than the model"
    for name, tensor in like.items():
        if model[name].shape != tensor.shape or model[name].dtype != tensor.dtype:
            return f"the update's {name} has the wrong shape or type"
    return None


def _profile_fault(part: Arrays, reference: Profile) -> str | None:
    mean, variance = np.asarray(part.get("mean")), np.asarray(part.get("variance"))
    if mean.shape != reference.mean.shape or variance.shape != reference.mean.shape:
        return "the profile has the wrong length"
    if not (np.isfinite(mean).all() and np.isfinite(variance).all() and (variance >= 0).all()):
        return "the profile is not finite"
    return None
