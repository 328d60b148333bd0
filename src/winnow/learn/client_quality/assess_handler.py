"""What a site answers about its clients' data: one pass of the model that it is sent over each client's samples."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from winnow.core import Arrays, Reply, Task
from winnow.core.federation import clients_of
from winnow.learn.client_quality.class_moments import ClassMoments
from winnow.learn.client_quality.copied_rows import distinct_rows
from winnow.learn.client_quality.evidence import COLUMNS
from winnow.learn.client_quality.evidence_pass import SampleClasses
from winnow.learn.learning_site import LearningSite, settings_of
from winnow.learn.stack import ModelState, TensorData

ASSESS = "assess"
ROWS, DISTINCT = "rows", "distinct"
"""The part of a reply that tells how many of the client's rows differ from one another, and its array."""

CLASSES_TOGETHER = 1 << 12
"""Clients are looked at together as long as they have no more classes in all: their moments stay small."""


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
    by_model = tuple(block for block in settings.blocks if block != COLUMNS)
    together = max(1, CLASSES_TOGETHER // classes.count)
    for first in range(0, len(clients), together):
        some = clients[first : first + together]
        rows = [torch.as_tensor(data.rows_of(k)) for k in some]
        seen = site.evidence_pass.moments(state, data.x, data.y, rows, classes, by_model)
        for client, own, moments in zip(some, rows, seen, strict=True):
            columns, distinct = _constant(client, own, data, settings, classes, site)
            found = {**moments, COLUMNS: columns} if columns is not None else moments
            payload = {
                block: each.coarse(settings.min_rows, settings.count_step).arrays() for block, each in found.items()
            }
            yield payload if distinct is None else {**payload, ROWS: {DISTINCT: np.array([distinct], np.int64)}}


def _constant(
    client: int,
    rows: Tensor,
    data: TensorData,
    settings: AssessmentSettings,
    classes: SampleClasses,
    site: LearningSite,
) -> tuple[ClassMoments | None, int | None]:
    """What is told of a client whatever the model is, and so worked out once: its columns, and how many rows differ."""
    kept, place = site.evidence_pass.constant, (client, COLUMNS in settings.blocks, settings.distinct_rows, classes)
    if place not in kept:
        blocks = (COLUMNS,) if COLUMNS in settings.blocks else ()
        (found,) = site.evidence_pass.moments({}, data.x, data.y, [rows], classes, blocks)
        distinct = distinct_rows(data.x[rows.to(data.device)]) if settings.distinct_rows else None
        kept[place] = found.get(COLUMNS), distinct
    return kept[place]
