"""SRPFL with linear models (algorithm 2): y = w*ᵢᵀ B*ᵀ x + z, where clients share the columns of B* and differ in w*ᵢ.

All clients that take part in a round are computed at once: x is [n, m, d], y is [n, m], heads are [n, k]. FedRep is the
same algorithm with everyone in every round.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self, TypeAlias

import numpy as np
from numpy.typing import NDArray

from winnow.core import ConfigError, stream

Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class LinearCase:
    """Sizes of a problem. The defaults keep what theorem 4.5 asks for, up to its constants.

    `first_stage_clients` is n₀, about 2d / log N for the populations of interest; `samples` is m, well above
    max(log N, d/n₀); `rate` is η, below 1/(8 σ̄²_max,*), since the heads make (1/N) W*ᵀW* about the identity.
    `initial_clients` says how many clients estimate the first representation: algorithm 2 asks all of them, None.
    """

    clients: int
    dimension: int = 40
    rank: int = 2
    samples: int = 20
    noise: float = 1.0
    rate: float = 0.1
    first_stage_clients: int = 16
    initial_clients: int | None = None

    def __post_init__(self) -> None:
        if not 0 < self.rank < min(self.dimension, self.samples):
            raise ConfigError(f"rank = {self.rank} must be above 0 and below the dimension and the samples per client")
        if not self.rank <= self.first_stage_clients <= self.clients:
            raise ConfigError(
                f"first_stage_clients = {self.first_stage_clients} must be from the rank to {self.clients}, all clients"
            )


@dataclass(frozen=True, kw_only=True, eq=False)
class LinearGroundTruth:
    """What is to be learned: B* with orthonormal columns, and heads of length √k (assumption 4.4)."""

    representation: Floats
    heads: Floats

    @classmethod
    def draw(cls, case: LinearCase, seed: int) -> Self:
        rng = stream(seed, "linear", "truth")
        basis, _ = np.linalg.qr(rng.standard_normal((case.dimension, case.rank)))
        heads = rng.standard_normal((case.clients, case.rank))
        return cls(
            representation=basis,
            heads=heads * np.sqrt(case.rank) / np.linalg.norm(heads, axis=1, keepdims=True),
        )

    def batch(self, case: LinearCase, clients: NDArray[np.int64], rng: np.random.Generator) -> tuple[Floats, Floats]:
        """m fresh samples of each of these clients (assumption 4.2: standard normal features)."""
        x = rng.standard_normal((len(clients), case.samples, case.dimension))
        directions = self.heads[clients] @ self.representation.T
        y = (x @ directions[:, :, None])[:, :, 0]
        return x, y + case.noise * rng.standard_normal(y.shape)


def estimate_representation(x: Floats, y: Floats, rank: int) -> Floats:
    """The method of moments (lines 2 and 3): the first singular vectors of the mean of y² x xᵀ over all samples."""
    rows = x.reshape(-1, x.shape[-1])
    mean = (rows * y.reshape(-1, 1) ** 2).T @ rows / len(rows)
    left, _, _ = np.linalg.svd(mean)
    return left[:, :rank]


def fedrep_round(basis: Floats, x: Floats, y: Floats, rate: float) -> Floats:
    """A round at the clients and the server (lines 10 to 14): the best heads for this representation by least squares,
    one gradient step of the representation at each client, their mean, made orthonormal again.
    """
    seen = x @ basis
    heads = np.linalg.solve(seen.mT @ seen, seen.mT @ y[:, :, None])
    residuals = seen @ heads - y[:, :, None]
    gradients = residuals * heads.mT
    mean = x.reshape(-1, x.shape[-1]).T @ gradients.reshape(-1, basis.shape[1]) / y.size
    orthonormal, _ = np.linalg.qr(basis - rate * mean)
    return orthonormal


def principal_angle_distance(basis: Floats, truth: Floats) -> float:
    """The principal-angle distance of definition 4.1 between the spans of matrices with orthonormal columns."""
    outside = basis - truth @ (truth.T @ basis)
    return float(np.linalg.norm(outside, ord=2))


@dataclass(frozen=True, kw_only=True, eq=False)
class ConvergenceHistory:
    """How near the representation was, and how late it was, after each round; both begin before the first one."""

    distances: Floats
    seconds: Floats

    def first_round_below(self, target: float) -> int | None:
        """The first round after which the distance is at most the target."""
        below = np.flatnonzero(self.distances <= target)
        return int(below[0]) if len(below) else None


def run_linear_case(
    case: LinearCase, seed: int, participants: Iterable[int], *, until: float = 0.0
) -> ConvergenceHistory:
    """Run the algorithm with so many participants in each round, the fastest ones, until a distance is reached.

    Every client's time is drawn anew each round from the exponential distribution of mean one (remark 3.1 allows new
    clients every round); a round lasts as long as its slowest participant.
    """
    truth = LinearGroundTruth.draw(case, seed)
    initial_clients = np.arange(case.clients if case.initial_clients is None else case.initial_clients)
    basis = estimate_representation(*truth.batch(case, initial_clients, stream(seed, "linear", "start")), case.rank)
    distances, seconds = [principal_angle_distance(basis, truth.representation)], [0.0]
    for number, count in enumerate(participants, start=1):
        if distances[-1] <= until:
            break
        times = stream(seed, "linear", "times", number).exponential(size=case.clients)
        fastest = np.argsort(times)[:count]
        batch = truth.batch(case, fastest, stream(seed, "linear", "batch", number))
        basis = fedrep_round(basis, *batch, case.rate)
        distances.append(principal_angle_distance(basis, truth.representation))
        seconds.append(seconds[-1] + float(times[fastest[-1]]))
    return ConvergenceHistory(distances=np.array(distances), seconds=np.array(seconds))
