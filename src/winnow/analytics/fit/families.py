"""Families of generalised linear models: what a row adds to information, score and deviance.

Means are kept within a factor of four of what the response can be, which bounds what any row adds to a sum.
"""

from abc import ABC, abstractmethod
from dataclasses import dataclass
from math import log

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
ROOM = 4.0


class Family(ABC):
    high: float
    """What the response does not exceed."""

    @property
    @abstractmethod
    def largest(self) -> float:
        """What no row's part of a sum exceeds."""

    @abstractmethod
    def link(self, mean: float) -> float:
        """η of a mean."""

    @abstractmethod
    def mean(self, predictor: Vector) -> Vector:
        """μ of η."""

    @abstractmethod
    def terms(self, response: Vector, mean: Vector) -> tuple[Vector, Vector, Vector]:
        """Weight, score with respect to η, and deviance of each row."""


class DispersedFamily(Family):
    """A family whose dispersion φ is not 1, and estimated."""

    @abstractmethod
    def pearson(self, response: Vector, mean: Vector) -> Vector:
        """(y - μ)²/V(μ), at most the square of `largest`."""


class Binomial(Family):
    """y is 0 or 1, log(μ/(1 - μ)) = η."""

    high = 1.0
    largest = 64.0

    def link(self, mean: float) -> float:
        return log(mean / (1 - mean))

    def mean(self, predictor: Vector) -> Vector:
        return 1 / (1 + np.exp(-np.clip(predictor, -15, 15)))

    def terms(self, response: Vector, mean: Vector) -> tuple[Vector, Vector, Vector]:
        deviance = -2 * (response * np.log(mean) + (1 - response) * np.log1p(-mean))
        return mean * (1 - mean), response - mean, deviance


@dataclass(frozen=True)
class Poisson(Family):
    """log μ = η; V(μ) = μ."""

    high: float

    @property
    def largest(self) -> float:
        return 64 * ROOM * max(self.high, 1.0)

    def link(self, mean: float) -> float:
        return log(max(mean, 1e-6))

    def mean(self, predictor: Vector) -> Vector:
        return np.exp(np.clip(predictor, -16, log(ROOM * self.high)))

    def terms(self, response: Vector, mean: Vector) -> tuple[Vector, Vector, Vector]:
        logs = np.log(np.where(response > 0, response, 1.0) / mean)
        return mean, response - mean, 2 * (np.where(response > 0, response * logs, 0.0) - (response - mean))


@dataclass(frozen=True)
class Gamma(DispersedFamily):
    """log μ = η; V(μ) = φμ². The weight is the expected information, 1."""

    low: float
    high: float

    @property
    def largest(self) -> float:
        return 64 + 4 * ROOM * self.high / self.low

    def link(self, mean: float) -> float:
        return log(mean)

    def mean(self, predictor: Vector) -> Vector:
        return np.exp(np.clip(predictor, log(self.low / ROOM), log(ROOM * self.high)))

    def terms(self, response: Vector, mean: Vector) -> tuple[Vector, Vector, Vector]:
        excess = (response - mean) / mean
        return np.ones_like(mean), excess, 2 * (excess - np.log(response / mean))

    def pearson(self, response: Vector, mean: Vector) -> Vector:
        return ((response - mean) / mean) ** 2
