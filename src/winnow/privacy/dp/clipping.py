"""Bounds: no client's share of a sum is longer than a norm, which may follow the updates from round to round."""

from dataclasses import dataclass
from math import exp, sqrt

import numpy as np
import torch
from torch import Tensor

from winnow.core import Arrays
from winnow.privacy.filters.update_vector import concatenate_tensors, split_into_tensors


def weighted_delta(model: Arrays, start: Arrays, weight: float) -> Tensor:
    """w·(θ_k − θ) over all real tensors, one after another, in double precision; 0 where that is not finite."""
    change = concatenate_tensors(model, start, torch.float64) - concatenate_tensors(start, start, torch.float64)
    return weight * change.nan_to_num_(nan=0.0, posinf=0.0, neginf=0.0)


def clip_to_norm(vector: Tensor, norm: float) -> tuple[Tensor, bool]:
    """v·min(1, norm/‖v‖₂), and whether v was within the bound as it came."""
    length = float(vector.norm())
    return (vector, True) if length <= norm else (vector * (norm / length), False)


def apply_delta(start: Arrays, change: Tensor) -> dict[str, Tensor]:
    """θ + change; whole numbers (counters of batches) stay as they are."""
    found = split_into_tensors(change, start)
    return {name: (t.double() + found[name]).to(t.dtype) if name in found else t for name, t in start.items()}


@dataclass(frozen=True, kw_only=True)
class AdaptiveClipping:
    """The bound follows a quantile γ of the updates' norms (Andrew et al., 2021, algorithm 1).

    How many updates are within the bound is released, too: Σ(b_k − ½) moves by ½ with a client, so that noise σ_b has
    the multiplier 2σ_b. Both releases together are one of multiplier z if the sum's own is

        z_Δ = (z⁻² − (2σ_b)⁻²)^(−½).
    """

    quantile: float
    rate: float
    count_noise: float

    @classmethod
    def of(cls, quantile: float, rate: float, noise: float, cohort: int) -> "AdaptiveClipping":
        """σ_b is a twentieth of the cohort, as its authors advise; and at least so much that z_Δ exceeds z by 5 %."""
        return cls(quantile=quantile, rate=rate, count_noise=max(cohort / 20, 1.6 * noise))

    def sum_noise(self, noise: float) -> float:
        return 1 / sqrt(noise**-2 - (2 * self.count_noise) ** -2)

    def next(self, bound: float, within: list[bool], cohort: int, rng: np.random.Generator) -> float:
        """C ← C·exp(−η(b̃ − γ)), where b̃ is the noisy share of the updates within the bound."""
        counted = sum(each - 0.5 for each in within) + rng.normal(0.0, self.count_noise)
        share = counted / cohort + 0.5
        return bound * exp(-self.rate * (share - self.quantile))
