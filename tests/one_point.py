"""A federation that can be calculated by hand: a linear model, and clients that each hold copies of one point.

Whatever batches a client draws, its gradient is 2·(θ·φ − y)·φ with φ = (x, 1), so a few lines of NumPy follow any
algorithm; clients of different sizes take different numbers of steps.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np

from winnow.config.resolve import resolve
from winnow.core import RoundFinished, Selected
from winnow.data import from_arrays
from winnow.experiment.build_simulation import PreparedRun, prepare_run
from winnow.experiment.build_training_workflow import RunInputs

COPIES = (6, 12, 20, 34)
BATCH = 8

BASE: dict[str, Any] = {
    "rounds": 3,
    "data": {"clients": 4, "partition": {"name": "natural"}, "reference": 6, "test": 4},
    "model": {"name": "linear"},
    "select": {"count": 3},
    "local": {"name": "sgd", "epochs": 1, "batch_size": BATCH, "learning_rate": 0.02},
    "fleet": {"speed_ghz": {"mean": 1.0, "sd": 0.2}},
    "quality": {"evidence": []},
}


def ready(algorithm: str, *sets: str) -> PreparedRun:
    rng = np.random.default_rng(5)
    points = rng.normal(0, 1, (len(COPIES), 3)).astype(np.float32)
    targets = np.array([1.0, -2.0, 0.5, 3.0], np.float32)
    owners = np.repeat(np.arange(len(COPIES)), COPIES)
    dataset = from_arrays(points[owners], targets[owners], owners=owners, scale="none")
    return prepare_run(resolve(BASE, algorithm=algorithm, sets=sets), RunInputs(dataset=dataset))


@dataclass
class ByHand:
    """The clients of a prepared run, as numbers."""

    features: np.ndarray
    targets: np.ndarray
    sizes: np.ndarray
    rate: float
    momentum: float

    @classmethod
    def of(cls, prepared: PreparedRun) -> "ByHand":
        data, local = prepared.federation.site.data, prepared.experiment.local
        first = [int(data.rows_of(k)[0]) for k in range(len(COPIES))]
        x, y = data.x[first].double().numpy(), data.y[first].double().numpy()
        return cls(
            features=np.hstack([x, np.ones((len(x), 1))]),
            targets=y.reshape(-1),
            sizes=np.asarray(prepared.federation.population.sizes),
            rate=local.learning_rate,
            momentum=getattr(local, "momentum", 0.0),
        )

    def steps(self, k: int) -> int:
        return int(np.ceil(self.sizes[k] / BATCH))

    def loss(self, k: int, theta: np.ndarray) -> float:
        return float((theta @ self.features[k] - self.targets[k]) ** 2)

    def gradient(self, k: int, theta: np.ndarray) -> np.ndarray:
        return 2 * (theta @ self.features[k] - self.targets[k]) * self.features[k]

    def train(
        self, k: int, theta: np.ndarray, proximal_weight: float = 0.0, anchor: Any = None, gradient_offset: Any = 0.0
    ) -> np.ndarray:
        """Steps of SGD with momentum along ∇f_k(w) + proximal_weight·(w − anchor) + gradient_offset."""
        anchor, velocity = theta if anchor is None else anchor, np.zeros_like(theta)
        for _ in range(self.steps(k)):
            gradient = self.gradient(k, theta) + proximal_weight * (theta - anchor) + gradient_offset
            velocity = self.momentum * velocity + gradient
            theta = theta - self.rate * velocity
        return theta


def vector(model: Any) -> np.ndarray:
    """A linear model as θ = (w, b)."""
    weight, bias = (tensor.double().numpy().reshape(-1) for tensor in model.values())
    return np.concatenate([weight, bias])


def played(prepared: PreparedRun) -> list[tuple[list[int], list[int], np.ndarray]]:
    """Who was invited and who was folded in each round, and the model after it."""
    rounds, invited = [], []
    for event in prepared.training.run(prepared.federation):
        if isinstance(event, Selected):
            invited = event.clients.tolist()
        if isinstance(event, RoundFinished):
            rounds.append((invited, event.aggregated.tolist(), vector(prepared.training.model)))
    return rounds
