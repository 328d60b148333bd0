"""What a client tells of its data: features of its samples, by class, from one pass through a model."""

from collections.abc import Mapping
from dataclasses import dataclass

from winnow.learn.algorithm_part import EvidenceKind
from winnow.learn.client_quality.class_moments import ClassMoments

REPRESENTATION = "representation"
"""The output of the profiled layer, each number z as z / (1 + |z|): a table's long tails would make moments random."""
COLUMNS = "columns"
"""The features of a table as its preprocessing made them; for images, a few statistics of each."""
MAX_COLUMNS = 512
"""Of a table with more features, the first."""
OUTCOMES = "outcomes"
"""What the model makes of a sample: which class it predicts (one-hot; residuals in a regression), and the loss."""

BLOCK_OF: dict[EvidenceKind, str] = {"inputs": REPRESENTATION, "columns": COLUMNS, "labels": OUTCOMES}
"""The block of features from which each kind of evidence comes that clients are asked for."""


@dataclass(frozen=True, kw_only=True)
class ClientEvidence:
    """The evidence of one client, under one version of the model."""

    rows: int
    distinct_rows: int | None
    """How many of its rows differ from one another; None where that was not asked for."""
    blocks: Mapping[str, ClassMoments]
    """By name, blocks of features: `REPRESENTATION`, `COLUMNS`, `OUTCOMES`; those that were asked for."""
