"""The door through which replies enter a workflow: each is checked here, once, before anybody looks into it.

What was asked says what may come back: which parts, of which shapes and types, and which metrics. A reply that is
anything else is refused with a reason, and so is one over which the check itself fails: one client's reply never ends
the run of all others. Whoever works with a sound reply need not ask again whether something is there.
"""

import logging
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np
import torch
from msgspec.structs import replace
from numpy.typing import NDArray
from torch import Tensor

from winnow.core import Arrays, Failure, Outcome, Payload, Reply, Task
from winnow.core.array_spec import spec_of
from winnow.core.reported_number_checks import MAX_METRIC, is_plausible_cost, numbers_fault
from winnow.core.untrusted_text import error_line, one_line
from winnow.learn.client_quality.class_moments import TOO_FEW_TOLD, could_be_told
from winnow.learn.client_round_method import PREDICTIONS, TRAINING_METRICS, TrainSettings
from winnow.learn.handlers import (
    CONFUSION,
    LOSS_METRICS,
    PersonalEvaluationSettings,
    ProfileSettings,
    ReferenceEvaluationSettings,
)
from winnow.learn.metrics import METRICS, Metric
from winnow.learn.representation_profile import ReferenceProfile, ReplyCheck

log = logging.getLogger(__name__)

PROFILE = "profile"

MAX_TENSOR_NORM = 1e15
"""No tensor of a model that is of use is longer. Squares of what is left fit into a float32."""


MAX_ROUNDING = 1e-3
"""How far from one a row of probabilities may add up."""


@dataclass(frozen=True, kw_only=True)
class ExpectedReply:
    """What a valid reply looks like: parts (a model) of these shapes, a profile of this length."""

    parts: Payload
    reply_parts: tuple[str, ...]
    """The parts that the reply to a training task must have; it may have a profile besides."""
    reference: ReferenceProfile | None
    sizes: NDArray[np.int64] | None = None
    """How many samples each client has; needed where there is a reference."""
    exact_counts: bool = True
    """Whether profiles by class count as clients do; with noise, any count may come."""
    metrics: Mapping[str, Metric] = field(default_factory=lambda: METRICS)
    """The metrics that a reply may be asked for, by their names."""


@dataclass(frozen=True, kw_only=True)
class Rejection:
    client: int
    reason: str


class CheckedReplies(NamedTuple):
    """Sound replies, refusals with their reasons, and all replies whose cost counts."""

    sound: list[Reply]
    refused: list[Rejection]
    answered: list[Reply]


def check_replies(
    outcomes: Sequence[Outcome], expected: ExpectedReply, check: ReplyCheck | None = None
) -> CheckedReplies:
    """Tell sound replies from others. `check` is what whoever asked wants besides."""
    sifted = CheckedReplies([], [], [])
    for outcome in outcomes:
        fault = _fault(outcome, expected, check)
        if isinstance(outcome, Reply) and is_plausible_cost(outcome.cost):
            sifted.answered.append(outcome)
        if fault is None and isinstance(outcome, Reply):
            sifted.sound.append(_tame(outcome))
        else:
            sifted.refused.append(Rejection(client=outcome.task.client, reason=fault or ""))
    return sifted


def failure_reason(outcome: Failure) -> str:
    """Why a client did not answer, in its own words, as far as they fit one line."""
    return one_line(f"failed ({outcome.stage}): {outcome.reason}")


def unexpected_fault(what: str, client: int, error: Exception) -> str:
    """The reason of a refusal that no check foresaw; the log has all of it, for the fault may be ours."""
    log.warning("client %d: %s", client, what, exc_info=error)
    return f"{what} ({error_line(error)})"


def _fault(outcome: Outcome, expected: ExpectedReply, check: ReplyCheck | None) -> str | None:
    if isinstance(outcome, Failure):
        return failure_reason(outcome)
    try:
        fault = _parts_fault(outcome, expected) or numbers_fault(outcome) or _metrics_fault(outcome, expected)
        return check(outcome) if fault is None and check is not None else fault
    except Exception as error:
        return unexpected_fault("the reply cannot be read", outcome.task.client, error)


# Parts ----------------------------------------------------------------------------------------------------------------


def _parts_fault(reply: Reply, expected: ExpectedReply) -> str | None:
    wanted = _wanted(reply.task, expected)
    if wanted is None:
        return None
    for part in wanted:
        if part not in reply.payload:
            return f"the reply carries no {part}"
    for part, arrays in reply.payload.items():
        if part not in wanted and not (part == CONFUSION and _may_count(reply.task)):
            return one_line(f"the reply has an unexpected part {str(part)[:80]!r}")
        if part in expected.parts and (fault := _form_fault(part, arrays, expected.parts[part])):
            return fault
    if PREDICTIONS in wanted and not are_probabilities(reply.payload[PREDICTIONS][PREDICTIONS]):
        return "the predictions are not probabilities"
    if PROFILE in wanted and expected.reference is not None and reply.task.name != "evaluate-reference":
        assert expected.sizes is not None
        fault = expected.reference.fault(reply.payload[PROFILE], int(expected.sizes[reply.task.client]))
        return fault or (_told_fault(reply) if expected.exact_counts else None)
    return None


def are_probabilities(rows: Tensor) -> bool:
    """Whether every row has numbers from 0 to 1 that add up to one; NaN is none."""
    inside = bool(((rows >= 0) & (rows <= 1)).all())
    return inside and bool(((rows.sum(1) - 1).abs() <= MAX_ROUNDING).all())


def _told_fault(reply: Reply) -> str | None:
    """Whether a profile by class, sound otherwise, tells of classes of which nothing is told."""
    settings = reply.task.settings
    classes = settings.profile_classes if isinstance(settings, TrainSettings) else None
    classes = settings.classes if isinstance(settings, ProfileSettings) else classes
    if classes is None:
        return None
    counts = np.asarray(reply.payload[PROFILE]["counts"])
    told = could_be_told(counts, classes.min_rows, classes.count_step)
    return None if told else f"the profile by class {TOO_FEW_TOLD}"


def _wanted(task: Task, expected: ExpectedReply) -> tuple[str, ...] | None:
    """The parts of a reply to this task; None where only whoever asked knows."""
    if task.name == "train":
        profiled = isinstance(task.settings, TrainSettings) and task.settings.profile
        return (*expected.reply_parts, PROFILE) if profiled else expected.reply_parts
    if task.name == "profile" or (task.name == "evaluate-reference" and task.work.profile_bytes):
        return (PROFILE,)
    return () if task.name in ("evaluate-reference", "evaluate-loss", "evaluate-personal") else None


def _may_count(task: Task) -> bool:
    """Whether the reply may tell which class is taken for which. It need not: a site's policy may forbid it."""
    return isinstance(task.settings, PersonalEvaluationSettings) and task.settings.confusion_classes > 0


def _form_fault(part: str, arrays: Arrays, like: Arrays) -> str | None:
    what = "the update" if part == "model" else f"the update's part {part!r}"
    if arrays.keys() != like.keys():
        return f"{what}'s tensor names differ from the model's"
    for name in like:
        if spec_of(arrays, name) != spec_of(like, name) or not isinstance(arrays[name], Tensor):
            return f"{what}'s {name} has the wrong shape or type"
    return None


def is_bounded_update(reply: Reply) -> bool:
    """Whether every tensor that the client sends to be aggregated is within the bound."""
    return all(is_bounded(part) for name, part in reply.payload.items() if name != PROFILE)


def is_bounded(model: Arrays) -> bool:
    """Whether no tensor's norm exceeds `MAX_TENSOR_NORM`; then all values are finite."""
    real = [tensor for tensor in model.values() if tensor.is_floating_point()]
    return not real or bool((torch.stack(list(torch._foreach_norm(real))) <= MAX_TENSOR_NORM).all())


# Metrics and costs ----------------------------------------------------------------------------------------------------


def _metrics_fault(reply: Reply, expected: ExpectedReply) -> str | None:
    settings, named = reply.task.settings, _METRICS.get(reply.task.name)
    asked: list[Metric] = []
    if isinstance(settings, ReferenceEvaluationSettings | PersonalEvaluationSettings):
        asked = [expected.metrics[name] for name in settings.metrics]
        named = frozenset({*(metric.name for metric in asked), "loss"})
    for name in reply.metrics:
        if named is not None and name not in named:
            return one_line(f"the reply has an unexpected metric {str(name)[:80]!r}")
    return next((fault for metric in asked if (fault := _score_fault(reply, metric)) is not None), None)


_METRICS = {
    "train": TRAINING_METRICS,
    "evaluate-loss": LOSS_METRICS,
    "profile": frozenset[str](),
    "assess": frozenset[str](),
    "summarise-reference": frozenset[str](),
}


def _score_fault(reply: Reply, metric: Metric) -> str | None:
    """A score enters a mean over clients: one that is missing or cannot be would spoil it. One that a client's samples
    may leave undefined (the AUC of one class) may be NaN: means are taken without it.
    """
    for name in (metric.name, "loss"):
        if name not in reply.metrics:
            return f"the reply tells no {name}"
        undefined = name == metric.name and not metric.per_sample and math.isnan(reply.metrics[name])
        if not undefined and not abs(reply.metrics[name]) <= MAX_METRIC:
            return f"the reply's {name} is not finite"
    if reply.metrics[metric.name] < metric.lowest or reply.metrics[metric.name] > metric.highest:
        return f"the reply's {metric.name} is out of range"
    return None


def _tame(reply: Reply) -> Reply:
    """The reply with metrics that are numbers anybody can work with, or NaN, as diverging clients tell it."""
    if all(abs(value) <= MAX_METRIC for value in reply.metrics.values()):
        return reply
    metrics = {k: float(v) if abs(v) <= MAX_METRIC else math.nan for k, v in reply.metrics.items()}
    return replace(reply, metrics=metrics)
