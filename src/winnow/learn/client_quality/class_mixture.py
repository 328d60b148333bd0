"""What a client's classes should look like, whatever their labels: mixtures of the reference's classes.

Rows of other classes than their label says, and honest rows, are mixtures of the reference's classes; rows with wrong
inputs are not. First and second moments of a mixture are linear in its weights.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from winnow.learn.client_quality.class_moments import ClassMoments

Reals = NDArray[np.float64]

_HUBER = 2.0
"""Features whose residual is more standard errors than this count less and less: they may be the wrong ones."""
_PASSES = 6
_MOST = 400.0
"""No feature counts for more than this in a sum of squares."""
_SUM_WEIGHT = 1e3
"""How strictly the weights sum to 1."""


@dataclass(frozen=True, kw_only=True)
class ExpectedMoments:
    """What is expected of the classes that a client has told of: C' of them."""

    told: NDArray[np.int64]
    """[C'] which classes."""
    counts: Reals
    """[C'] how many independent rows the client has of each."""
    mean: Reals
    """[C', f]"""
    variance: Reals
    """[C', f], with some more than the reference's rows have: few of them may be alike by chance."""
    least_variance: Reals
    """[C', f], as the reference's rows have it."""
    fourth: Reals
    """[C', f] fourth central moments."""
    reference_rows: Reals
    """[C'] as how many reference rows the expectation is worth."""
    weights: Reals
    """[C', C] of the reference's classes."""


def expected_moments(
    client: ClassMoments,
    reference: ClassMoments,
    fourth: NDArray[np.float32],
    *,
    one_scale: bool,
    independent: float = 1.0,
) -> ExpectedMoments | None:
    """The mixtures that fit best; None if nothing can be compared. `independent`: the share of rows that are no copies.

    Few reference rows may be alike by chance, so each class gets one row more that lies a typical deviation away: the
    feature's own over all rows, or where all features have `one_scale`, at least the mean of theirs.

    With r_k, s_k the reference's mean and deviation of a feature in class k, and m the client's mean in a class, the
    weights w ≥ 0, Σ w = 1 minimise Σ_features ρ((m − Σ w_k r_k) / se), with a ρ that ends up flat: features that do not
    fit do not count.
    """
    known, told = np.flatnonzero(reference.counts), np.flatnonzero(client.counts)
    if not len(known) or not len(told):
        return None
    rows = reference.counts[known].astype(np.float64)
    mean = reference.mean[known].astype(np.float64)
    plain = reference.variance[known].astype(np.float64)
    unseen = _unseen(plain, mean, rows, one_scale=one_scale)
    weight = rows[:, None] / (rows[:, None] + 1)
    variance = weight * plain + (1 - weight) * unseen
    heavy = weight * fourth[known] + (1 - weight) * unseen**2
    own = np.array([_fit(client, c, independent, known, rows, mean, variance) for c in told])
    expected = own @ mean
    apart = mean[None] - expected[:, None]  # [C', K, f]
    between = np.einsum("ck,ckf->cf", own, apart**2)
    fourths = np.einsum("ck,ckf->cf", own, heavy + 6 * variance * apart**2 + apart**4)
    weights = np.zeros((len(told), len(reference.counts)))
    weights[:, known] = own
    return ExpectedMoments(
        told=told,
        counts=np.maximum(client.counts[told] * independent, 1.0),
        mean=expected,
        variance=own @ variance + between,
        least_variance=own @ plain + between,
        fourth=fourths,
        reference_rows=1 / (own**2 / rows).sum(1),
        weights=weights,
    )


def _unseen(variance: Reals, mean: Reals, rows: Reals, *, one_scale: bool) -> Reals:
    """[f] the squared deviation of a row that nobody has seen."""
    share = (rows / rows.sum())[:, None]
    overall = (share * (variance + (mean - (share * mean).sum(0)) ** 2)).sum(0) + 1e-12
    unseen: Reals = np.maximum(overall, overall.mean()) if one_scale else overall
    return unseen


def _fit(
    client: ClassMoments,
    which: np.int64,
    independent: float,
    known: NDArray[np.int64],
    rows: Reals,
    mean: Reals,
    variance: Reals,
) -> Reals:
    count, target = max(client.counts[which] * independent, 1.0), client.mean[which].astype(np.float64)
    weights: Reals = (known == which).astype(np.float64) if which in known else rows / rows.sum()
    if len(known) == 1:
        return weights
    for number in range(_PASSES):
        error = np.sqrt((weights @ variance) * (1 / count + (weights**2 / rows).sum()))
        residual = np.abs(target - weights @ mean) / error
        power = 0.5 if number < _PASSES // 2 else 1.0
        trust = np.minimum(1, _HUBER / np.maximum(residual, 1e-12)) ** power / error
        weights = _mixture_weights(target, mean, trust)
    return weights


def unexplained_share(
    client: ClassMoments, reference: ClassMoments, fourth: NDArray[np.float32], *, independent: float = 1.0
) -> float | None:
    """How much of a client's distance from the reference's classes is left if its labels may be wrong: 0 to 1.

    Wrong labels make a class a mixture of the reference's, which leaves nothing; wrong inputs leave most of it. The
    distance is Σ z² of means and logarithms of variances; None if it is no more than chance.
    """
    known, told = np.flatnonzero(reference.counts), np.flatnonzero((client.counts > 0) & (reference.counts > 0))
    if not len(told):
        return None
    classes = _Classes.of(reference, fourth)
    own = mixed = 0.0
    for which in told:
        count = max(float(client.counts[which]) * independent, 1.0)
        weights = (known == which).astype(np.float64)
        error = np.sqrt((weights @ classes.variance) * (1 / count + (weights**2 / classes.rows).sum()))
        fitted = _mixture_weights(client.mean[which].astype(np.float64), classes.mean, 1 / error)
        own += classes.distance(client, which, count, weights)
        mixed += classes.distance(client, which, count, fitted)
    under_null = 2.0 * classes.mean.shape[1] * len(told)
    return float(np.clip((mixed - under_null) / (own - under_null), 0, 1)) if own > 2 * under_null else None


@dataclass(frozen=True)
class _Classes:
    """The reference's classes, K of them."""

    rows: Reals
    mean: Reals
    variance: Reals
    least_variance: Reals
    kurtosis: Reals

    @classmethod
    def of(cls, reference: ClassMoments, fourth: NDArray[np.float32]) -> "_Classes":
        known = np.flatnonzero(reference.counts)
        rows, mean = reference.counts[known].astype(np.float64), reference.mean[known].astype(np.float64)
        plain = reference.variance[known].astype(np.float64)
        unseen, weight = _unseen(plain, mean, rows, one_scale=True), rows[:, None] / (rows[:, None] + 1)
        variance = weight * plain + (1 - weight) * unseen
        heavy = weight * fourth[known] + (1 - weight) * unseen**2
        return cls(rows, mean, variance, plain, np.maximum(heavy / variance**2, 1.5))

    def distance(self, client: ClassMoments, which: np.int64, count: float, weights: Reals) -> float:
        """Of one class of a client, from the mixture with these weights."""
        expected = weights @ self.mean
        between = weights @ (self.mean - expected) ** 2
        spread, found = weights @ self.variance + between, client.variance[which].astype(np.float64)
        wanted = np.clip(found, weights @ self.least_variance + between, spread)  # in between nothing is strange
        doubt = 1 / count + float((weights**2 / self.rows).sum())
        shift = (client.mean[which] - expected) ** 2 / (spread * doubt)
        ratio = np.log((found + 1e-6 * spread) / (wanted + 1e-6 * spread)) ** 2 / (
            (weights @ self.kurtosis - 1) * doubt
        )
        return float(np.minimum(shift, _MOST).sum() + np.minimum(ratio, _MOST).sum())


def _mixture_weights(target: Reals, mean: Reals, trust: Reals) -> Reals:
    """w ≥ 0, Σ w = 1 with the least Σ (trust · (target − Σ w_k mean_k))²."""
    from scipy.optimize import nnls  # noqa: PLC0415 - slow to import

    firm = _SUM_WEIGHT * float(np.linalg.norm(trust))
    matrix = np.vstack([(mean * trust).T, np.full(len(mean), firm)])
    fitted, _ = nnls(matrix, np.append(target * trust, firm), maxiter=30 * len(mean))
    weights: Reals = fitted / max(fitted.sum(), 1e-12)
    return weights
