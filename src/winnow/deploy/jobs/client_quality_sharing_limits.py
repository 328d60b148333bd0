"""What a site tells of its clients' data when the server assesses them: as the job's author signed it, as far as the
site's policy shares it.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from math import inf
from typing import Any

from msgspec.structs import replace as replace_struct

from winnow.config.schema import Experiment
from winnow.core import Failure, Handler, Outcome, Task
from winnow.deploy.jobs.refuse_changed_questions import FirstQuestions
from winnow.experiment.model_folder import digest_of_state
from winnow.learn.algorithm_part import TOLD_BY_CLIENTS
from winnow.learn.client_quality.assess_handler import AssessmentSettings
from winnow.learn.client_quality.evidence import BLOCK_OF, REPRESENTATION
from winnow.learn.client_quality.evidence_pass import SampleClasses
from winnow.learn.client_quality.reference_source import SummarySettings
from winnow.learn.profile_by_class import TARGET_BINS

NOT_SHARED = "the site does not share this evidence (share_evidence in its policy)"
NOT_SIGNED = "the server's questions about the data differ from those the job's author signed"
OTHER_MODEL = "the server has asked about the data before, after this round and with another model"
MOVED_BINS = "the server has moved the bins of the targets since it first asked"


class EvidenceLimits:
    """A filter around the handlers that tell of clients' data.

    A class is told only with enough samples; but whoever could move the bins of a regression between two questions
    would learn of a single sample from their difference. So they stay where they are in the first question. And after
    a round, data are seen through one model: each further one would be a further question.
    """

    def __init__(
        self,
        experiment: Experiment,
        classes: int | None,
        questions: FirstQuestions,
        *,
        sequences: bool,
        shared: Sequence[str],
    ) -> None:
        self._questions, self._seed = questions, experiment.seed
        self._quality, self._holders = experiment.quality, experiment.reference_clients
        kinds = experiment.quality.kinds(experiment.composed(), experiment.filters)
        self._signed = {BLOCK_OF[kind] for kind in kinds if kind in TOLD_BY_CLIENTS}
        self._shared = {BLOCK_OF[kind] for kind in TOLD_BY_CLIENTS if kind in shared}
        self._rounds = experiment.quality.assessment_rounds(experiment.rounds)
        self._classes = None if classes is None else SampleClasses.of(classes, sequences)

    def __call__(self, tasks: Sequence[Task], site: Any, call_next: Handler[Any]) -> Sequence[Outcome]:
        asked = tasks[0].settings
        if not isinstance(asked, AssessmentSettings | SummarySettings):
            return call_next(tasks, site)
        if (reason := self._fault(tasks, asked)) is not None:
            return [Failure(task=task, stage="admission", reason=reason) for task in tasks]
        blocks = tuple(block for block in asked.blocks if block in self._shared)
        if not blocks or (isinstance(asked, SummarySettings) and blocks != asked.blocks):
            return [Failure(task=task, stage="admission", reason=NOT_SHARED) for task in tasks]
        if isinstance(asked, AssessmentSettings):
            copies = asked.distinct_rows and REPRESENTATION in blocks
            told = replace(asked, blocks=blocks, distinct_rows=copies)
            tasks = [replace_struct(task, settings=told) for task in tasks]
        model = digest_of_state(tasks[0].payload.get("model", {}))
        if not self._questions.stands(f"model of {tasks[0].name} {tasks[0].round}", model):
            return [Failure(task=task, stage="admission", reason=OTHER_MODEL) for task in tasks]
        return call_next(tasks, site)

    def _fault(self, tasks: Sequence[Task], asked: AssessmentSettings | SummarySettings) -> str | None:
        if not self._signed.issuperset(asked.blocks) or tasks[0].round not in self._rounds:
            return NOT_SIGNED
        if isinstance(asked, SummarySettings):
            signed = all(task.client in self._holders for task in tasks)
            signed = signed and (asked.min_rows, asked.seed) == (self._quality.min_rows, self._seed)
        else:
            signed = (asked.min_rows, asked.count_step) == (self._quality.min_rows, self._quality.count_step)
            signed = signed and (not asked.distinct_rows or REPRESENTATION in self._signed)
        if not signed:
            return NOT_SIGNED
        return self._classes_fault(asked.classes, asked.edges)

    def _classes_fault(self, classes: int, edges: tuple[float, ...]) -> str | None:
        if self._classes is not None:
            return None if (classes, edges) == (self._classes.count, ()) else NOT_SIGNED
        rising = all(low < high for low, high in pairwise((-inf, *edges, inf)))
        if classes != len(edges) + 1 or classes > TARGET_BINS or not rising:
            return NOT_SIGNED
        return None if self._questions.stands("bins", repr(edges)) else MOVED_BINS
