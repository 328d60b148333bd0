"""A profile whose means are encrypted: what it looks like on its way, and its divergence from another such one.

Equation 36 keeps the variances in the clear and asks for (μ_k − μ_V)² / 2σ_V² under encryption. Means come in any size,
while a ciphertext has a fixed point, so each profile has a *unit*, a power of two in the clear, and encrypts μ / unit.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winnow.core import Arrays
from winnow.core.array_spec import ArraySpec, spec_of
from winnow.learn.profile_by_class import ClassProfile, class_weights, floored_class_variances
from winnow.learn.representation_profile import OUTPUT_LIMIT, Profile, floored_variances
from winnow.privacy import ckks

MAX_MEAN_UNITS = 32.0
"""No mean is farther from zero than so many units."""

MIN_UNIT, MAX_UNIT = 2.0**-60, 2.0**80


@dataclass(frozen=True, kw_only=True)
class EncryptedProfile:
    """A sealed profile that has been read: means as a ciphertext, variances and unit in the clear."""

    means: ckks.EncryptedVector
    variance: NDArray[np.float32]
    unit: float
    counts: NDArray[np.int64] | None
    """Of a profile by class, the samples of each; one ciphertext holds the means of all. None of a marginal one."""


def seal_profile(profile: Profile | ClassProfile, context: ckks.Context) -> Arrays:
    """The profile as it leaves its site."""
    unit = unit_of(profile)
    return {
        "sealed": ckks.encrypt(context, profile.mean.astype(np.float64).ravel() / unit),
        "unit": np.array([unit]),
        **{name: array for name, array in profile.state().items() if name != "mean"},
    }


def unit_of(profile: Profile | ClassProfile) -> float:
    """The power of two next above the typical standard deviation, from which the server learns nothing new.

    Only where a mean lies more than MAX_MEAN_UNITS of these from zero is the unit larger, and then shows the magnitude
    of the largest mean.
    """
    typical = float(np.sqrt(profile.variance.mean(dtype=np.float64)))
    largest = float(np.abs(profile.mean).max()) / MAX_MEAN_UNITS
    return float(2.0 ** np.ceil(np.log2(max(typical, largest, MIN_UNIT))))


def read_profile(part: Arrays, shape: tuple[int, ...], context: ckks.Context) -> EncryptedProfile:
    """A sealed profile, [elements] or by class [classes, elements]; raises `CiphertextError` with one line if it is not
    sound.
    """
    by_class = len(shape) > 1
    if part.keys() != {"sealed", "variance", "unit"} | ({"counts"} if by_class else set()):
        raise ckks.CiphertextError("it is not encrypted as requested")
    if spec_of(part, "variance") != ArraySpec("float32", shape) or spec_of(part, "unit") != ArraySpec("float64", (1,)):
        raise ckks.CiphertextError("its variances or its unit have the wrong length or type")
    variance, unit = np.asarray(part["variance"]), np.asarray(part["unit"])
    if not ((variance >= 0).all() and (variance <= 2 * OUTPUT_LIMIT**2).all()):
        raise ckks.CiphertextError("its variances are negative, or not finite")
    if not MIN_UNIT <= unit[0] <= MAX_UNIT or np.frexp(unit[0])[0] != 0.5:
        raise ckks.CiphertextError("its unit is not a power of two in range")
    means = ckks.read_fresh(context, ckks.byte_array(part, "sealed"))
    counts = np.asarray(part["counts"]) if by_class else None
    return EncryptedProfile(means=means, variance=variance.astype(np.float32), unit=float(unit[0]), counts=counts)


@dataclass(frozen=True, kw_only=True)
class EncryptedDivergence:
    """An encrypted divergence times a factor, which whoever made it knows."""

    ciphertext: ckks.Bytes
    factor: float


def compare_encrypted(one: EncryptedProfile, reference: EncryptedProfile) -> EncryptedDivergence:
    """[[div(RP_k, RP_V)]] by equations 36 and 37, times a power of four that makes the most of a ciphertext's range.

    With weights w_i = 1 / √(2q·σ_V,i²) the part that depends on the means is Σ_i (w_i·μ_k,i − w_i·μ_V,i)². By class, an
    element counts for the share of its class in place of 1. The noise of a ciphertext is the same whatever it holds, so
    its numbers should be large; but whatever the means are, within the reach of their units, the sum must not exceed
    the capacity.
    """
    if one.counts is None or reference.counts is None:
        v, v0 = floored_variances(one.variance, reference.variance)
        share: NDArray[np.float64] = np.ones_like(v0)
    else:
        classes = floored_class_variances(one.variance, reference.variance, reference.counts)
        v, v0 = (each.ravel() for each in classes)
        share = np.repeat(class_weights(one.counts[None], reference.counts)[0], reference.variance.shape[1])
    elements = reference.variance.shape[-1]
    of_variances = float(np.sum(share * 0.5 * (np.log(v0 / v) + (v - v0) / v0)) / elements)
    weights = np.sqrt(share) / np.sqrt(2 * elements * v0)
    farthest = MAX_MEAN_UNITS * (one.unit + reference.unit) * weights
    room = ckks.CAPACITY / (float(farthest @ farthest) + of_variances)
    stretch = float(2.0 ** np.floor(np.log2(room) / 2))
    ours = ckks.multiply_plain(one.means, stretch * one.unit * weights)
    theirs = ckks.multiply_plain(reference.means, stretch * reference.unit * weights)
    ciphertext = ckks.squared_distance(ours, theirs, stretch**2 * of_variances)
    return EncryptedDivergence(ciphertext=ciphertext, factor=stretch**2)
