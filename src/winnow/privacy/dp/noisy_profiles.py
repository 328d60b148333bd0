"""Profiles under differential privacy: bounded and made noisy by the client, before the server compares them."""

from collections.abc import Sequence
from math import sqrt
from typing import Any, ClassVar, Literal
from zlib import crc32

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray
from pydantic import Field

from winnow.core import ConfigError, Handler, Outcome, Randomness, Reply, Task
from winnow.learn.algorithm import Algorithm
from winnow.learn.algorithm_part import TOLD_BY_CLIENTS, DataSummary, EvidenceKind
from winnow.learn.profile_by_class import ClassProfile
from winnow.learn.profile_comparison import PlainComparison, SiteExtension
from winnow.learn.round_loop import SynchronousRounds
from winnow.privacy.dp.noisy_class_profiles import noisy_class_profile
from winnow.privacy.dp.settings import ClipNorm, Delta, NoiseMultiplier

SENSITIVITY = 2.0
"""See `NoisyProfiles`."""


class NoisyProfiles(PlainComparison):
    """A client releases its profile (μ, v) with noise that hides all of its data; z is `noise_multiplier`, C `clip`.

    Bound: all of the client's representations are scaled by one factor f = min(1, C/r), where r² = ‖μ‖² + Σ_i v_i is
    their mean square norm; so μ ← f·μ and v ← f²·v. What may be released, in units of C and C², is then the set

        S = {(m, u): ‖m‖² + ‖u‖₁ ≤ 1, u ≥ 0}.

    Sensitivity: two points of S are at most 2 apart. With a = ‖m‖ and b = ‖m'‖, ‖m − m'‖ ≤ a + b; as u, u' ≥ 0 have no
    negative inner product, ‖u − u'‖² ≤ ‖u‖² + ‖u'‖² ≤ (1 − a²)² + (1 − b²)². So the squared distance is at most
    (a + b)² + (1 − a²)² + (1 − b²)² = 2 − (a − b)² + a⁴ + b⁴ ≤ 4. Opposite means without variance attain it: a
    variance is released at no extra cost.

    Noise: N(0, (2z)²) on each element of both, in those units, which makes each release a Gaussian one of multiplier z
    towards anybody, the server included. Negative variances count as 0. What the server makes of it, divergences and
    whom it selects, costs nothing more. Profiles are in every ε that the run has; `delta` is for a run that has none.

    Profiles by class are bounded otherwise and have the same sensitivity: `noisy_class_profiles`.
    """

    name: Literal["noisy"] = "noisy"  # type: ignore[assignment]  # another member of the family
    forbidden_evidence: ClassVar[frozenset[EvidenceKind]] = frozenset(TOLD_BY_CLIENTS)
    noise_multiplier: NoiseMultiplier = Field(
        description="the noise's standard deviation over the bound of what it hides, such as 1.0"
    )
    clip: ClipNorm
    delta: Delta = 1e-5

    def check_data(self, data: DataSummary) -> None:
        if data.reference_clients:
            raise ConfigError(
                "reference_clients: clients that hold the reference set release a profile in every round, which "
                'select.profile_comparison = "noisy" does not count; let the server hold it'
            )

    def conflict(self, whole: Algorithm) -> str | None:
        if not isinstance(whole.schedule, SynchronousRounds):
            return 'select.profile_comparison = "noisy" is accounted for in rounds; write schedule.name = "rounds"'
        return None

    def site_extension(self, randomness: Randomness) -> SiteExtension:
        def add_noise(tasks: Sequence[Task], site: Any, call_next: Handler[Any]) -> list[Outcome]:
            return [self._released(outcome, site, randomness) for outcome in call_next(tasks, site)]

        return SiteExtension(filters=(add_noise,))

    def _released(self, outcome: Outcome, site: Any, randomness: Randomness) -> Outcome:
        if not isinstance(outcome, Reply) or "profile" not in outcome.payload:
            return outcome
        part, task = outcome.payload["profile"], outcome.task
        mean, variance = (np.asarray(part[name], np.float64) for name in ("mean", "variance"))
        # Tasks that ask for profiles carry no seed, so what is to be hidden names the stream of a simulation.
        rng = randomness(crc32(mean.tobytes()), "noisy profile", task.round, task.client)
        if "counts" in part:
            samples = int(site.data.sizes(np.array([task.client]))[0])
            profile = noisy_class_profile(ClassProfile.of(part), samples, self.clip, self.deviation, rng).arrays()
        else:
            mean, variance = self.noisy(mean, variance, rng)
            profile = {"mean": mean.astype(np.float32), "variance": variance.astype(np.float32)}
        return replace(outcome, payload={**outcome.payload, "profile": profile})

    @property
    def deviation(self) -> float:
        """The noise's standard deviation, in units of `clip` and its square."""
        return SENSITIVITY * self.noise_multiplier

    def noisy(
        self, mean: NDArray[np.float64], variance: NDArray[np.float64], rng: np.random.Generator
    ) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """What a client releases of its profile."""
        mean, variance = clip_profile(mean, variance, self.clip)
        noisy_mean = mean + self.clip * rng.normal(0.0, self.deviation, mean.shape)
        noisy_variance = variance + self.clip**2 * rng.normal(0.0, self.deviation, variance.shape)
        return noisy_mean, np.maximum(noisy_variance, 0.0)

    def privacy_text(self) -> str:
        return (
            f"noisy profiles: the server sees every profile scaled to a root mean square of at most {self.clip:g} and "
            f"with Gaussian noise of {self.noise_multiplier:g} times its sensitivity; this hides all data of a client, "
            "is counted in the run's ε, and costs the selection most of its sight. Selection by profile looks at data, "
            "so no amplification by sampling is claimed."
        )


def clip_profile(
    mean: NDArray[np.float64], variance: NDArray[np.float64], clip: float
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """(f·μ, f²·v): as if all representations were shortened by one factor to a mean square norm of at most clip²."""
    size = sqrt(float(mean @ mean) + float(variance.sum()))
    factor = min(1.0, clip / size) if size else 1.0
    return factor * mean, factor**2 * variance
