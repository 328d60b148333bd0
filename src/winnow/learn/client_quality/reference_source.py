"""Where the reference summary comes from: the server's reference set, or clients that hold one."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import prod
from typing import Protocol

import numpy as np
import torch
from torch import Tensor

from winnow.core import Failure, Outcome, Payload, Reply, Task, WinnowError, Work, stream
from winnow.core.array_spec import spec_of
from winnow.core.federation import clients_of
from winnow.learn.client_quality.copied_rows import distinct_rows
from winnow.learn.client_quality.evidence import COLUMNS, REPRESENTATION
from winnow.learn.client_quality.evidence_pass import EvidencePass, SampleClasses
from winnow.learn.client_quality.reference_summary import ReferenceSummary
from winnow.learn.client_quality.resamples import DRAWS
from winnow.learn.learning_site import LearningSite, settings_of
from winnow.learn.representation_profile import SendTasks
from winnow.learn.stack import ModelState

SUMMARISE_REFERENCE = "summarise-reference"
SUMMARY = "summary"
"""The part of a holder's reply with its summary."""

MAX_ARRAYS, MAX_NUMBERS = 100, 1 << 24
"""The most arrays that a holder's summary has, and numbers in one: larger ones are not read."""

CONSTANT_DRAWS = 2 * DRAWS
"""For what is drawn once a run, and so has an error that no later assessment averages out."""

NORMAL_QUINTILES = (-0.8416212, -0.2533471, 0.2533471, 0.8416212)
"""Between the bins of a regression's targets, which are scaled to mean 0 and variance 1, where no reference set is at
hand whose quantiles could be taken.
"""


@dataclass(frozen=True, kw_only=True)
class SummarySettings:
    """Which blocks of features to summarise, by which classes, and where the resampling's randomness comes from."""

    blocks: tuple[str, ...]
    classes: int
    edges: tuple[float, ...]
    seed: int
    min_rows: int
    """Classes of which a holder has fewer samples are left out: the mean of one row is the row."""


class ReferenceSource(Protocol):
    """Whoever has reference samples."""

    def summary(self, state: ModelState, round: int, send_tasks: SendTasks) -> ReferenceSummary | None:
        """What the reference is like, seen through a model; None if nobody tells."""


class ReferenceRows:
    """Reference samples, looked at through one model after another. What is known whatever the model is, their columns
    and how many of them differ, is worked out once.
    """

    def __init__(self, evidence_pass: EvidencePass, x: Tensor, y: Tensor, settings: SummarySettings) -> None:
        self._evidence_pass, self._x, self._y, self._settings = evidence_pass, x, y, settings
        self._classes = SampleClasses(count=settings.classes, edges=settings.edges)

    def summary(self, state: ModelState, round: int) -> ReferenceSummary:
        by_model = tuple(block for block in self._settings.blocks if block != COLUMNS)
        return self._constant.beside(self._seen(state, by_model, round, DRAWS))

    @cached_property
    def _constant(self) -> ReferenceSummary:
        columns = tuple(block for block in self._settings.blocks if block == COLUMNS)
        distinct = distinct_rows(self._x) if REPRESENTATION in self._settings.blocks else None
        return replace(self._seen({}, columns, 0, CONSTANT_DRAWS), distinct_rows=distinct)

    def _seen(self, state: ModelState, blocks: tuple[str, ...], round: int, draws: int) -> ReferenceSummary:
        features = self._evidence_pass.features(state, self._x, self._y, self._classes, blocks)
        return ReferenceSummary.make(
            {block: values.cpu().numpy() for block, values in features.items()},
            self._classes.classes_of(self._y).cpu().numpy(),
            self._classes.count,
            stream(self._settings.seed, "reference-null", round),
            draws=draws,
        )


def tellable(x: Tensor, y: Tensor, settings: SummarySettings) -> tuple[Tensor, Tensor]:
    """Without the samples of classes that have few: from moments of all and of the others, theirs would follow."""
    classes = SampleClasses(count=settings.classes, edges=settings.edges).classes_of(y)
    many = torch.bincount(classes, minlength=settings.classes)[classes] >= settings.min_rows
    return x[many], y[many]


class ServerReference:
    """The reference set at the server."""

    def __init__(self, evidence_pass: EvidencePass, x: Tensor, y: Tensor, settings: SummarySettings) -> None:
        self._rows = ReferenceRows(evidence_pass, x, y, settings)
        x, y = tellable(x, y, settings)
        self._rows_for_owners = ReferenceRows(evidence_pass, x, y, settings) if len(x) else None

    def summary(self, state: ModelState, round: int, send_tasks: SendTasks) -> ReferenceSummary:
        return self._rows.summary(state, round)

    def summary_for_owners(self, state: ModelState) -> ReferenceSummary | None:
        """What everybody may read; None where every class has few samples."""
        return None if self._rows_for_owners is None else self._rows_for_owners.summary(state, round=0)


class HeldReference:
    """Clients hold the reference set: each summarises its own, and no row leaves."""

    def __init__(
        self,
        holders: Sequence[int],
        settings: SummarySettings,
        widths: Mapping[str, int],
        *,
        private: frozenset[str],
        message_bytes: int,
    ) -> None:
        self._holders, self._settings, self._widths = holders, settings, widths
        self._private, self._message_bytes = private, message_bytes

    def summary(self, state: ModelState, round: int, send_tasks: SendTasks) -> ReferenceSummary | None:
        shared: Payload = {"model": {name: tensor for name, tensor in state.items() if name not in self._private}}
        work = Work(profiling_passes=1, download_bytes=self._message_bytes)
        tasks = [
            Task(
                name=SUMMARISE_REFERENCE,
                client=k,
                round=round,
                version=round,
                payload=shared,
                settings=self._settings,
                work=work,
            )
            for k in self._holders
        ]
        replies = [outcome for outcome in send_tasks(tasks, self.fault) if isinstance(outcome, Reply)]
        found = [ReferenceSummary.of(reply.payload[SUMMARY]) for reply in replies]
        return ReferenceSummary.merged(found) if found else None

    def fault(self, reply: Reply) -> str | None:
        """What is wrong with a holder's summary; None if clients can be compared with it."""
        if reply.payload.keys() != {SUMMARY}:
            return "the reply carries no summary of the reference"
        part = reply.payload[SUMMARY]
        if len(part) > MAX_ARRAYS or any(prod(spec_of(part, name).shape) > MAX_NUMBERS for name in part):
            return "the summary of the reference is larger than it can be"
        try:
            found = ReferenceSummary.of(part)
        except WinnowError as error:
            return str(error)
        shapes = {block: moments.mean.shape for block, moments in found.moments.items()}
        wanted = {block: (self._settings.classes, self._widths[block]) for block in self._settings.blocks}
        return None if shapes == wanted else "the summary of the reference has other features or classes"


def summarise_reference(tasks: Sequence[Task], site: LearningSite) -> list[Outcome]:
    """Summaries of clients' own data, for clients that hold the reference set."""
    settings, state = settings_of(tasks[0], SummarySettings), site.model_for(tasks[0])
    outcomes: list[Outcome] = []
    for task in tasks:
        data = site.data.cohort(clients_of([task]))
        rows = torch.as_tensor(data.rows_of(task.client)).to(data.device)
        x, y = tellable(data.x[rows], data.y[rows], settings)
        if not len(x):
            reason = f"no class has {settings.min_rows} samples or more (quality.min_rows)"
            outcomes.append(Failure(task=task, stage="summary", reason=reason))
            continue
        found = ReferenceRows(site.evidence_pass, x, y, settings).summary(state, task.round)
        arrays = {name: np.asarray(array) for name, array in found.arrays().items()}
        outcomes.append(Reply(task=task, payload={SUMMARY: arrays}))
    return outcomes
