"""Clip by norm: no client moves the model farther than a bound."""

from typing import Literal

import numpy as np
from pydantic import Field

from winnow.core import Arrays
from winnow.privacy.filters.update_vector import UpdateFilter, UpdateVector


class Clip(UpdateFilter):
    """Δ ← Δ · min(1, norm / ‖Δ‖₂), over all variables of a part together."""

    name: Literal["clip"] = "clip"
    norm: float = Field(gt=0)

    def altered(self, changes: UpdateVector, sent: Arrays, rng: np.random.Generator) -> UpdateVector:
        length = float(np.linalg.norm(changes.astype(np.float64)))
        if length <= self.norm:
            return changes
        shortened: UpdateVector = changes * np.float32(self.norm / length)
        return shortened

    def privacy_text(self) -> str:
        return (
            f"clip: the server sees every update, scaled down to a norm of at most {self.norm:g}. This bounds what one "
            "client can do to the model, and what noise has to hide; by itself it hides nothing. It costs no bytes; a "
            "bound below the usual norm slows learning."
        )
