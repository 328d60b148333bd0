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
    told = np.flatnonzero(client.counts)
    if not reference.counts.any() or not len(told):
        return None
    classes, counts = _Classes.of(reference, fourth, one_scale=one_scale), client.counts[told] * independent
    counts = np.maximum(counts, 1.0)
    means = client.mean[told].astype(np.float64)
    own = np.array([classes.robust_weights(*each) for each in zip(told.tolist(), counts, means, strict=True)])
    expected = own @ classes.mean
    apart = classes.mean[None] - expected[:, None]  # [C', K, f]
    between = np.einsum("ck,ckf->cf", own, apart**2)
    return ExpectedMoments(
        told=told,
        counts=counts,
        mean=expected,
        variance=own @ classes.variance + between,
        least_variance=own @ classes.least_variance + between,
        fourth=np.einsum("ck,ckf->cf", own, classes.fourth + 6 * classes.variance * apart**2 + apart**4),
        reference_rows=1 / (own**2 / classes.rows).sum(1),
    )


def unexplained_share(
    client: ClassMoments, reference: ClassMoments, fourth: NDArray[np.float32], *, independent: float = 1.0
) -> float | None:
    """How much of a client's distance from the reference's classes is left if its labels may be wrong: 0 to 1.

    Wrong labels make a class a mixture of the reference's, which leaves nothing; wrong inputs leave most of it. The
    distance is Σ z² of means and logarithms of variances; None if it is no more than chance.
    """
    told = np.flatnonzero((client.counts > 0) & (reference.counts > 0))
    if not len(told):
        return None
    classes = _Classes.of(reference, fourth, one_scale=True)
    own = mixed = 0.0
    for which in told:
        count = max(float(client.counts[which]) * independent, 1.0)
        weights = (classes.known == which).astype(np.float64)
        fitted = classes.weights(client.mean[which].astype(np.float64), 1 / classes.error(weights, count))
        own += classes.distance(client, which, count, weights)
        mixed += classes.distance(client, which, count, fitted)
    under_null = 2.0 * classes.mean.shape[1] * len(told)
    return float(np.clip((mixed - under_null) / (own - under_null), 0, 1)) if own > 2 * under_null else None


@dataclass(frozen=True, kw_only=True)
class _Classes:
    """The reference's classes, K of them: which they are and their rows [K], and moments of each feature [K, f].

    With one row more in each, which lies a typical deviation away.
    """

    known: NDArray[np.int64]
    rows: Reals
    mean: Reals
    variance: Reals
    least_variance: Reals
    """Without that row."""
    fourth: Reals

    @classmethod
    def of(cls, reference: ClassMoments, fourth: NDArray[np.float32], *, one_scale: bool) -> "_Classes":
        known = np.flatnonzero(reference.counts)
        rows, mean = reference.counts[known].astype(np.float64), reference.mean[known].astype(np.float64)
        plain = reference.variance[known].astype(np.float64)
        unseen, weight = _unseen(plain, mean, rows, one_scale=one_scale), rows[:, None] / (rows[:, None] + 1)
        return cls(
            known=known,
            rows=rows,
            mean=mean,
            variance=weight * plain + (1 - weight) * unseen,
            least_variance=plain,
            fourth=weight * fourth[known] + (1 - weight) * unseen**2,
        )

    def error(self, weights: Reals, count: float) -> Reals:
        """[f] the standard error between the means of so many rows and of the mixture with these weights."""
        found: Reals = np.sqrt((weights @ self.variance) * (1 / count + (weights**2 / self.rows).sum()))
        return found

    def weights(self, target: Reals, trust: Reals) -> Reals:
        """Those of the mixture whose mean is nearest to a target, where features have these weights."""
        firm = _SUM_WEIGHT * float(np.linalg.norm(trust))
        return nearest_mixture(target * trust, self.mean * trust, firm)

    def robust_weights(self, which: int, count: float, target: Reals) -> Reals:
        """The same for a client's class with so many rows, where features that do not fit do not count in the end."""
        labelled = self.known == which
        weights: Reals = labelled.astype(np.float64) if labelled.any() else self.rows / self.rows.sum()
        if len(self.known) == 1:
            return weights
        for number in range(_PASSES):
            error = self.error(weights, count)
            residual = np.abs(target - weights @ self.mean) / error
            power = 0.5 if number < _PASSES // 2 else 1.0
            weights = self.weights(target, np.minimum(1, _HUBER / np.maximum(residual, 1e-12)) ** power / error)
        return weights

    def distance(self, client: ClassMoments, which: np.int64, count: float, weights: Reals) -> float:
        """Of one class of a client, from the mixture with these weights."""
        expected = weights @ self.mean
        between = weights @ (self.mean - expected) ** 2
        spread, found = weights @ self.variance + between, client.variance[which].astype(np.float64)
        wanted = np.clip(found, weights @ self.least_variance + between, spread)  # in between nothing is strange
        doubt = 1 / count + float((weights**2 / self.rows).sum())
        kurtosis = np.maximum(self.fourth / self.variance**2, 1.5)
        shift = (client.mean[which] - expected) ** 2 / (spread * doubt)
        ratio = np.log((found + 1e-6 * spread) / (wanted + 1e-6 * spread)) ** 2 / ((weights @ kurtosis - 1) * doubt)
        return float(np.minimum(shift, _MOST).sum() + np.minimum(ratio, _MOST).sum())


def _unseen(variance: Reals, mean: Reals, rows: Reals, *, one_scale: bool) -> Reals:
    """[f] the squared deviation of a row that nobody has seen."""
    share = (rows / rows.sum())[:, None]
    overall = (share * (variance + (mean - (share * mean).sum(0)) ** 2)).sum(0) + 1e-12
    unseen: Reals = np.maximum(overall, overall.mean()) if one_scale else overall
    return unseen


def nearest_mixture(target: Reals, rows: Reals, firm: float) -> Reals:
    """w ≥ 0, Σ w = 1 with the least ‖target − Σ w_k rows_k‖; `firm` is how strictly they sum to 1."""
    from scipy.optimize import nnls  # noqa: PLC0415 - slow to import

    matrix = np.vstack([rows.T, np.full(len(rows), firm)])
    fitted, _ = nnls(matrix, np.append(target, firm), maxiter=30 * len(rows))
    weights: Reals = fitted / max(fitted.sum(), 1e-12)
    return weights
