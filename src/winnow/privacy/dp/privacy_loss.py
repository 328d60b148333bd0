"""ε for what was released, by the privacy loss distributions of Google's dp-accounting."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache, reduce
from importlib import import_module
from math import sqrt
from typing import Any

from winnow.core import ConfigError
from winnow.core.installed_package import install_command


@dataclass(frozen=True)
class GaussianRelease:
    """A bounded sum, released some number of times with Gaussian noise of `noise` times its bound.

    With a `sampling_probability` below one, each client is in the sum with that probability, drawn for each alone every
    time (Poisson sampling), and nobody else knows who was.
    """

    noise: float
    times: int = 1
    sampling_probability: float = 1.0


@dataclass(frozen=True)
class LaplaceRelease:
    """The same with Laplace noise, where the bound is one of ‖·‖₁."""

    noise: float
    times: int = 1


@dataclass(frozen=True)
class ConcentratedRelease:
    """Releases of ρ-zero-concentrated differential privacy each, such as sums with discrete Gaussian noise."""

    rho: float
    times: int = 1


AnyRelease = GaussianRelease | LaplaceRelease | ConcentratedRelease


NOISE_TOLERANCE = 1.001
MAX_NOISE = 1e6
SIMPLE_BOUND_NOISE = 0.1
"""With less noise sampling hardly amplifies, nor does composition save: simple bounds are taken, which always hold."""
DISCRETISATION_INTERVAL = 1e-3
"""Privacy losses are told apart so finely. With a tenth of it, ε is smaller by less than one part in ten thousand."""


def epsilon(releases: Iterable[AnyRelease], delta: float) -> float:
    """The least ε such that all releases together are (ε, δ)-differentially private, each seeing the ones before it.

    Neighbouring populations differ by one client's whole contribution. Gaussian releases without sampling are one
    with 1/σ² = Σ times/σ_i², whose ε is exact; any others are composed numerically.
    """
    plain, pure, others = 0.0, 0.0, list[AnyRelease]()
    for release in releases:
        if isinstance(release, GaussianRelease) and (
            release.sampling_probability >= 1 or release.noise < SIMPLE_BOUND_NOISE
        ):
            plain += release.times / release.noise**2
        elif isinstance(release, LaplaceRelease) and release.noise < SIMPLE_BOUND_NOISE:
            pure += release.times / release.noise
        elif release.times:
            others.append(release)
    if not others:
        return pure + _gaussian(plain, delta)
    merged = [GaussianRelease(noise=1 / sqrt(plain))] if plain else []
    return pure + _composed((*merged, *others), delta)


@lru_cache(maxsize=4096)
def _gaussian(inverse_variance: float, delta: float) -> float:
    if not inverse_variance:
        return 0.0
    return float(_library().get_epsilon_gaussian(1 / sqrt(inverse_variance), delta))


@lru_cache(maxsize=4096)
def _composed(releases: tuple[AnyRelease, ...], delta: float) -> float:
    if any(isinstance(release, ConcentratedRelease) for release in releases):
        return _by_moments(releases, delta)
    losses = [_loss(replace(release, times=1)).self_compose(release.times) for release in releases]
    found = float(reduce(lambda one, other: one.compose(other), losses).get_epsilon_for_delta(delta))
    return max(found, 0.0)


@lru_cache(maxsize=256)
def _loss(release: AnyRelease) -> Any:
    """The privacy loss distribution of a single release."""
    distributions = _library().pld.privacy_loss_distribution
    if isinstance(release, LaplaceRelease):
        return distributions.from_laplace_mechanism(
            release.noise, value_discretization_interval=DISCRETISATION_INTERVAL
        )
    assert isinstance(release, GaussianRelease)
    return distributions.from_gaussian_mechanism(
        release.noise,
        value_discretization_interval=DISCRETISATION_INTERVAL,
        sampling_prob=min(release.sampling_probability, 1.0),
    )


def _by_moments(releases: tuple[AnyRelease, ...], delta: float) -> float:
    """Concentrated privacy bounds moments of the loss, and has no distribution of it."""
    library = _library()
    accountant = library.rdp.RdpAccountant()
    for release in releases:
        if isinstance(release, ConcentratedRelease):
            accountant.compose(library.ZCDpEvent(release.rho), release.times)
        elif isinstance(release, LaplaceRelease):
            accountant.compose(library.LaplaceDpEvent(release.noise), release.times)
        else:  # as if there were no sampling, which costs no less
            accountant.compose(library.GaussianDpEvent(release.noise), release.times)
    return float(accountant.get_epsilon(delta))


def _library() -> Any:
    try:
        return import_module("dp_accounting")  # a second to import, and an extra
    except ImportError:
        raise ConfigError(f"differential privacy needs dp-accounting: {install_command('privacy')}") from None


def least_noise(lasts: Callable[[float], bool]) -> float | None:
    """The least noise multiplier, to three digits, with which something lasts; None if none does."""
    high = 1.0
    while not lasts(high):
        high *= 2
        if high > MAX_NOISE:
            return None
    low = high / 2
    while lasts(low):
        low, high = low / 2, low
    while high / low > NOISE_TOLERANCE:
        middle = sqrt(low * high)
        low, high = (low, middle) if lasts(middle) else (middle, high)
    return high
