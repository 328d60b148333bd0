"""Zero-concentrated differential privacy (Bun and Steinke, 2016): discrete Gaussian noise, and ρ as ε at a δ.

Releases of ρ₁ and ρ₂ cost ρ₁ + ρ₂ together. A sum of L2 sensitivity Δ with N_Z(0, σ²) added to each entry costs
ρ = Δ²/(2σ²) (Canonne, Kamath and Steinke, 2020, theorem 4).
"""

from math import log, sqrt

import numpy as np
from numpy.typing import NDArray

MAX_DEVIATION = 2.0**54
"""Draws with a larger one would not fit 64 bits: cut off there, two of them cancel out to no noise at all."""


def rho_of(epsilon: float, delta: float) -> float:
    """The largest ρ that is (ε, δ)-differentially private: the inverse of `epsilon_of`."""
    return (epsilon / (sqrt(log(1 / delta) + epsilon) + sqrt(log(1 / delta)))) ** 2


def epsilon_of(rho: float, delta: float) -> float:
    """ε = ρ + 2·√(ρ·ln(1/δ)) (Bun and Steinke, proposition 1.3)."""
    return rho + 2 * sqrt(rho * log(1 / delta))


def discrete_gaussian(deviation: float, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """N_Z(0, σ²), by rejection from discrete Laplace noise (Canonne, Kamath and Steinke, 2020, algorithm 3)."""
    if not 0 < deviation <= MAX_DEVIATION:
        raise ValueError(f"noise of standard deviation {deviation:g} cannot be drawn")
    scale = float(int(deviation) + 1)
    drawn = np.empty(count, np.int64)
    missing = np.arange(count)
    while len(missing):
        stop = -np.expm1(-1 / scale)
        tried = rng.geometric(stop, len(missing)) - rng.geometric(stop, len(missing))
        excess = np.abs(tried) - deviation**2 / scale
        kept = rng.random(len(missing)) < np.exp(-(excess**2) / (2 * deviation**2))
        drawn[missing[kept]] = tried[kept]
        missing = missing[~kept]
    return drawn
