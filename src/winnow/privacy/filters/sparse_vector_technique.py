"""The sparse vector technique: a client shares a few of its changes, chosen and told with Laplace noise.

NVIDIA FLARE (section 3) offers it as a filter; the analysis is that of Lyu, Su and Li (2017), this is their
algorithm 7.
"""

from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from winnow.core import Arrays
from winnow.learn.algorithm_part import TOLD_BY_CLIENTS, EvidenceKind
from winnow.privacy.filters.update_vector import UpdateFilter, UpdateVector


class SparseVectorTechnique(UpdateFilter):
    """ε-differentially private *at the client*: for any two updates that it might have had, every reply is almost as
    likely under one as under the other, up to a factor e^ε.

    With changes truncated to [−γ, γ], |Δ_i| has a sensitivity of γ and Δ_i one of 2γ, whatever else of the update
    differs. Of d changes at most c = ⌈fraction·d⌉ are told:

        ρ = Lap(γ/ε₁);  i is told if |Δ_i| + Lap(2cγ/ε₂) ≥ τ + ρ, in a random order, until c are;
        what is told is Δ_i + Lap(2cγ/ε₃), truncated again.

    ε = ε₁ + ε₂ + ε₃ with ε₃ = ε/2 and ε₂/ε₁ = (2c)^⅔ (that paper's best allocation). It holds for one part of one
    reply; r replies cost r·ε, and a second part (control variates) as much again.
    """

    name: Literal["sparse-vector"] = "sparse-vector"
    epsilon: float = Field(gt=0)
    fraction: float = Field(default=0.1, gt=0, le=1)
    gamma: float = Field(default=0.01, gt=0)
    threshold: float = Field(default=0.0, ge=0)
    silent: ClassVar[bool] = True
    forbidden_evidence: ClassVar[frozenset[EvidenceKind]] = frozenset(TOLD_BY_CLIENTS)

    def altered(self, changes: UpdateVector, sent: Arrays, rng: np.random.Generator) -> UpdateVector:
        if not len(changes):
            return changes
        bounded = np.clip(changes.astype(np.float64), -self.gamma, self.gamma)
        most = int(np.ceil(self.fraction * len(bounded)))
        told = self._chosen(np.abs(bounded), most, rng)
        noise = rng.laplace(0.0, 4 * most * self.gamma / self.epsilon, len(told))
        altered = np.zeros(len(changes), np.float32)
        altered[told] = np.clip(bounded[told] + noise, -self.gamma, self.gamma)
        return altered

    def _chosen(self, sizes: NDArray[np.float64], most: int, rng: np.random.Generator) -> NDArray[np.int64]:
        """The places that pass the noisy threshold first. Noise for all at once is what noise for one after another is,
        since what comes after the last one told is not looked at.
        """
        budget, ratio = self.epsilon / 2, (2 * most) ** (2 / 3)
        first, second = budget / (1 + ratio), budget * ratio / (1 + ratio)
        bar = self.threshold + rng.laplace(0.0, self.gamma / first)
        order = rng.permutation(len(sizes))
        passes = sizes[order] + rng.laplace(0.0, 2 * most * self.gamma / second, len(sizes)) >= bar
        chosen: NDArray[np.int64] = order[passes][:most]
        return chosen

    def buffers(self, arrays: Arrays, sent: Arrays) -> Arrays:
        """Counters are not covered by the noise, so they come back as they were sent."""
        return {name: tensor for name, tensor in sent.items() if not tensor.is_floating_point()}

    def privacy_text(self) -> str:
        return (
            f"sparse-vector: the server learns at most {100 * self.fraction:g} % of each update's changes, chosen and "
            f"told with Laplace noise: ε = {self.epsilon:g} for each part of each reply, at the client, so that no "
            "trust in the server is needed; over r replies of a client ε adds up to r times that. The training's loss "
            "stays at the client; step counts, and profiles and losses of models where the algorithm asks for them, "
            "leave besides and are not covered. The noise is drawn in double precision, which is not hardened against "
            "attacks on its last bits. Accuracy suffers: the noise grows with the number of changes told."
        )
