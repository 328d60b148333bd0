"""Local differential privacy: the client itself bounds its update and adds noise, and need trust nobody."""

from typing import ClassVar, Literal

import numpy as np

from winnow.core import Arrays
from winnow.learn.algorithm import Algorithm
from winnow.learn.algorithm_part import TOLD_BY_CLIENTS, EvidenceKind
from winnow.learn.round_loop import SynchronousRounds
from winnow.privacy.dp.privacy_loss import AnyRelease, GaussianRelease, LaplaceRelease
from winnow.privacy.dp.settings import ClipNorm, Delta, EpsilonBudget, NoiseMultiplier
from winnow.privacy.filters.update_vector import UpdateFilter, UpdateVector


class LocalDp(UpdateFilter):
    """Δ ← Δ·min(1, C/‖Δ‖) + noise, at the client and in every reply; C is `clip`, in ‖·‖₂ or for Laplace in ‖·‖₁.

    Any two updates that a client might send are at most 2C apart, so that the noise is z·2C: Gaussian of that standard
    deviation, or Laplace of that scale.
    """

    name: Literal["local-dp"] = "local-dp"
    noise_multiplier: NoiseMultiplier
    clip: ClipNorm
    noise: Literal["gaussian", "laplace"] = "gaussian"
    delta: Delta = 1e-5
    epsilon: EpsilonBudget | None = None
    silent: ClassVar[bool] = True
    forbidden_evidence: ClassVar[frozenset[EvidenceKind]] = frozenset(TOLD_BY_CLIENTS)

    def altered(self, changes: UpdateVector, sent: Arrays, rng: np.random.Generator) -> UpdateVector:
        exact = changes.astype(np.float64)
        length = float(np.linalg.norm(exact, 1 if self.noise == "laplace" else 2))
        bounded = exact * min(1.0, self.clip / length) if length else exact
        scale = 2 * self.clip * self.noise_multiplier
        drawn = rng.laplace(0.0, scale, len(exact)) if self.noise == "laplace" else rng.normal(0.0, scale, len(exact))
        altered: UpdateVector = (bounded + drawn).astype(np.float32)
        return altered

    def buffers(self, arrays: Arrays, sent: Arrays) -> Arrays:
        """Counters are not covered by the noise, so they come back as they were sent."""
        return {name: tensor for name, tensor in sent.items() if not tensor.is_floating_point()}

    def releases(self, times: int, parts: int) -> list[AnyRelease]:
        """What a client has released that took part so often, with so many parts in each reply."""
        kind = LaplaceRelease if self.noise == "laplace" else GaussianRelease
        return [kind(noise=self.noise_multiplier, times=times * parts)]

    def conflict(self, whole: Algorithm) -> str | None:
        if not isinstance(whole.schedule, SynchronousRounds):
            return 'filters.name = "local-dp" is accounted for in rounds; write schedule.name = "rounds"'
        if getattr(whole.select, "stage_target", None) is not None:
            return 'filters.name = "local-dp" lets no losses out, by which select.stage_target goes; leave that out'
        return None

    def privacy_text(self) -> str:
        budget = "" if self.epsilon is None else f", and the run stops before that exceeds {self.epsilon:g}"
        return (
            f"local-dp: each client cuts its update to a norm of {self.clip:g} and adds {self.noise} noise of "
            f"{self.noise_multiplier:g} times the sensitivity, so that nobody need be trusted, the server included. "
            f"The ε of the client that took part most often is told after every round{budget}. The training's loss "
            "stays at the client; step counts, and profiles without noise and losses of models where the algorithm "
            "asks for them, leave besides and are not covered. No amplification is claimed: the server knows whose "
            "update it reads. It costs accuracy: the noise of all clients adds up."
        )
