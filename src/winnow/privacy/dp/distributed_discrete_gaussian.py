"""Noise inside secure aggregation: each client adds its share, and the sum alone, which nobody else sees, has enough.

The distributed discrete Gaussian mechanism (Kairouz, Liu and Steinke, 2021), without their rotation, as an encoding.
"""

from math import ceil, sqrt
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

from winnow.core import ConfigError
from winnow.privacy.concentrated_privacy import discrete_gaussian
from winnow.privacy.dp.privacy_loss import ConcentratedRelease
from winnow.privacy.dp.settings import ClipNorm, Delta, EpsilonBudget, NoiseMultiplier
from winnow.privacy.secagg.modular_vectors import ModularVector, VectorGroup, vector_group
from winnow.privacy.secagg.scalar_quantisation import MAX_CLIENTS, WIDE_BITS, WIDE_STEP
from winnow.privacy.secagg.update_encoding_interface import DecodedSum, Encoding, EncodingParameters
from winnow.privacy.secagg.update_layout import WEIGHT, UpdateLayout, UpdateValues

NOISE, WEIGHTS = range(2)
"""The segments of a vector."""

NOISE_TAIL = 10
"""The group has room for sums whose noise is so many standard deviations."""

MIN_DEVIATION = 3.0
"""In steps, at each client. Above it, a sum of discrete Gaussians is one but for less than e^−80 (their section 4)."""


class DiscreteGaussian(Encoding):
    """Bound w·Δ to ‖·‖₂ ≤ C, round it to steps of C/`levels`, and add discrete Gaussian noise, in the group.

    Rounding by chance may lengthen a vector of d numbers; it is repeated until the length is at most D steps, with

        D² = min((L + √d)², L² + d/4 + L + √d/2),   L = levels   (their proposition 26, β = e^(−1/2)).

    The noise in the sum has at least z·D steps, z being `noise_multiplier`, if `honest_fraction` of the members add
    theirs; so every client's is z·D/√(honest_fraction·members). Each sum is then 1/(2z²)-zCDP towards everybody, the
    server included. Weights are public: the server itself has told them. A client counts what it does whoever else
    comes, as a share of what the largest of all clients would; and the sum is divided by a public number, never by what
    came.
    """

    name: Literal["discrete-gaussian"] = "discrete-gaussian"
    noise_multiplier: NoiseMultiplier
    clip: ClipNorm
    levels: int = Field(default=4096, ge=16, le=1 << 20)
    honest_fraction: float = Field(default=0.5, gt=0, le=1)
    delta: Delta = 1e-5
    epsilon: EpsilonBudget | None = None
    private: ClassVar[bool] = True

    def privacy_text(self) -> str:
        budget = "" if self.epsilon is None else f", and the run stops before that exceeds {self.epsilon:g}"
        return (
            "discrete-gaussian: each client adds its share of noise, so that every sum hides what a client "
            f"contributed, from the server too, if {100 * self.honest_fraction:.0f} % of the members add theirs. For ε "
            "this limit counts beside the one that holds for masks, whichever is reached first: who colludes with the "
            "server takes noise off. Who took part the server knows. Losses stay at the clients. ε, at δ = "
            f"{self.delta:g}, is told after every round{budget}. It costs accuracy, as noise in the clear would."
        )

    def first(self, layout: UpdateLayout, public: UpdateValues, round: int) -> EncodingParameters:
        return EncodingParameters(version=round)

    def refresh(
        self, layout: UpdateLayout, before: EncodingParameters, decoded: DecodedSum, round: int
    ) -> EncodingParameters:
        return before

    def group(self, layout: UpdateLayout, members: int) -> VectorGroup:
        if members > MAX_CLIENTS:
            raise ConfigError(f"collect: at most {MAX_CLIENTS:,} clients can be added up in a round; select fewer")
        count = _count(layout)
        reach = members * (self.levels + 1) + NOISE_TAIL * sqrt(members) * self.deviation(count, members)
        room = max(1, members - 1).bit_length()
        return vector_group([(count, ceil(2 * reach).bit_length()), (1, WIDE_BITS + room)])

    def sensitivity(self, count: int) -> float:
        """D: how many steps long a client's rounded vector of so many numbers can be."""
        levels, root = float(self.levels), sqrt(count)
        return sqrt(min((levels + root) ** 2, levels**2 + count / 4 + levels + root / 2))

    def deviation(self, count: int, members: int) -> float:
        """The standard deviation of one client's noise, in steps."""
        deviation = self.noise_multiplier * self.sensitivity(count) / sqrt(max(1, ceil(self.honest_fraction * members)))
        if deviation < MIN_DEVIATION:
            raise ConfigError(f"collect.encoding.levels = {self.levels} is too coarse for {members} clients; raise it")
        return deviation

    def releases(self, times: int) -> list[ConcentratedRelease]:
        return [ConcentratedRelease(rho=1 / (2 * self.noise_multiplier**2), times=times)]

    def encode(
        self,
        layout: UpdateLayout,
        values: UpdateValues,
        parameters: EncodingParameters,
        members: int,
        rng: np.random.Generator,
    ) -> ModularVector:
        group, vector = self.group(layout, members), _flat(layout, values)
        rounded = self._rounded(vector, rng)
        noise = discrete_gaussian(self.deviation(len(vector), members), len(vector), rng)
        words = (rounded + noise).astype(np.uint64)
        weight = np.array([round(float(values[-1]) / WIDE_STEP)]).astype(np.uint64)
        return group.reduce([words.astype(group.segments[NOISE].dtype), weight.astype(group.segments[WEIGHTS].dtype)])

    def decode(
        self, layout: UpdateLayout, total: ModularVector, parameters: EncodingParameters, members: int, clients: int
    ) -> DecodedSum:
        bits = self.group(layout, members).segments[NOISE].bits
        shift = np.int64(64 - bits)
        steps = (total[NOISE].astype(np.uint64) << np.uint64(shift)).view(np.int64) >> shift
        sums, at = [], 0
        for entry in layout.entries:
            if entry.part == WEIGHT:
                sums.append(np.array(float(total[WEIGHTS][0]) * WIDE_STEP))
            elif entry.is_real:
                sums.append((self.clip / self.levels * steps[at : at + entry.count]).reshape(entry.shape))
                at += entry.count
            else:
                sums.append(np.zeros(entry.shape))
        return DecodedSum(sums=sums, clipped=None, overflowed=0.0, statistics={})

    def _rounded(self, vector: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.int64]:
        length = float(np.linalg.norm(vector))
        scaled = vector * (self.levels / self.clip * min(1.0, self.clip / length) if length else 1.0)
        longest = self.sensitivity(len(vector))
        while True:
            rounded = np.floor(scaled + rng.random(len(scaled))).astype(np.int64)
            if np.linalg.norm(rounded) <= longest:
                return rounded


def _count(layout: UpdateLayout) -> int:
    return sum(entry.count for entry in layout.entries if entry.part != WEIGHT and entry.is_real)


def _flat(layout: UpdateLayout, values: UpdateValues) -> NDArray[np.float64]:
    """All real numbers of an update but its weight; whole ones (counters) are not sent."""
    real = [
        value.reshape(-1).astype(np.float64)
        for entry, value in zip(layout.entries, values, strict=True)
        if entry.part != WEIGHT and entry.is_real
    ]
    return np.concatenate(real) if real else np.zeros(0)
