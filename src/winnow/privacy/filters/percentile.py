"""Percentile privacy: only the largest changes are shared, and none beyond a bound (NVIDIA FLARE, section 3)."""

from typing import ClassVar, Literal

import numpy as np
from pydantic import Field

from winnow.core import Arrays
from winnow.learn.algorithm_part import TOLD_BY_CLIENTS, EvidenceKind
from winnow.privacy.filters.update_vector import UpdateFilter, UpdateVector


class PercentilePrivacy(UpdateFilter):
    """Changes whose size is below a percentile of all sizes are dropped; the others are truncated to [−γ, γ]."""

    name: Literal["percentile"] = "percentile"
    forbidden_evidence: ClassVar[frozenset[EvidenceKind]] = frozenset(TOLD_BY_CLIENTS)
    percentile: float = Field(default=90.0, ge=0, lt=100)
    gamma: float = Field(default=0.01, gt=0)

    def altered(self, changes: UpdateVector, sent: Arrays, rng: np.random.Generator) -> UpdateVector:
        if not len(changes):
            return changes
        sizes = np.abs(changes)
        large = sizes >= np.percentile(sizes, self.percentile)
        altered: UpdateVector = np.where(large, np.clip(changes, -self.gamma, self.gamma), np.float32(0))
        return altered

    def privacy_text(self) -> str:
        return (
            f"percentile: the server sees the largest {100 - self.percentile:g} % of each update's changes, truncated "
            f"to ±{self.gamma:g}, and which they are. This is a heuristic without a privacy guarantee. Small changes "
            "are lost; bytes are saved only where updates are also compressed."
        )
