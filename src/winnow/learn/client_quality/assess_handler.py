"""What a site answers about its clients' data: one pass of the model that it is sent over each client's samples."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from winnow.core import Arrays, Reply, Task
from winnow.core.federation import clients_of
from winnow.learn.client_quality.copied_rows import distinct_rows
from winnow.learn.client_quality.evidence_pass import SampleClasses, told_moments
from winnow.learn.learning_site import LearningSite, settings_of
from winnow.learn.stack import ModelState, TensorData

ASSESS = "assess"
ROWS, DISTINCT = "rows", "distinct"
"""The part of a reply that tells how many of the client's rows differ from one another, and its array."""

MAX_MOMENTS = 1 << 21
"""Clients are looked at together as long as their moments are no more numbers than this, for each feature."""


@dataclass(frozen=True, kw_only=True)
class AssessmentSettings:
    """Which blocks of features to tell, and how finely."""

    blocks: tuple[str, ...]
    classes: int
    edges: tuple[float, ...]
    """Between the bins of a regression."""
    min_rows: int
    count_step: int
    distinct_rows: bool


def assess_clients(tasks: Sequence[Task], site: LearningSite) -> list[Reply]:
    """Moments by class of the features of each client's samples, seen through one model."""
    settings, state = settings_of(tasks[0], AssessmentSettings), site.model_for(tasks[0])
    blocks = site.data.blocks(clients_of(tasks))
    told = (each for clients, data in blocks for each in _told(clients.tolist(), data, settings, state, site))
    return [Reply(task=task, payload=payload) for task, payload in zip(tasks, told, strict=True)]


def _told(
    clients: list[int], data: TensorData, settings: AssessmentSettings, state: ModelState, site: LearningSite
) -> Iterator[dict[str, Arrays]]:
    classes = SampleClasses(count=settings.classes, edges=settings.edges)
    together = max(1, MAX_MOMENTS // (classes.count * 512))
    for first in range(0, len(clients), together):
        rows = [torch.as_tensor(data.rows_of(k)) for k in clients[first : first + together]]
        found = site.evidence_pass.moments(state, data.x, data.y, rows, classes, settings.blocks)
        for own, moments in zip(rows, found, strict=True):
            payload = {
                block: told_moments(each, settings.min_rows, settings.count_step).arrays()
                for block, each in moments.items()
            }
            if settings.distinct_rows:
                payload[ROWS] = {DISTINCT: np.array([distinct_rows(data.x[own.to(data.device)])], np.int64)}
            yield payload
