"""Principal components from means and covariances, of columns brought to mean 0 and deviation 1."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.fit.design import Matrix
from winnow.analytics.fit.fit_rows import FitRows
from winnow.analytics.fit.whole_numbers import FixedPoint, symmetric, upper
from winnow.analytics.program import Program, Sum
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.core import ConfigError

Vector = NDArray[np.float64]


@dataclass(frozen=True)
class Moments:
    """Means and covariances of a design's columns, scaled by their bounds; the sample has no intercept."""

    mean: Vector
    covariance: Matrix

    @property
    def deviation(self) -> Vector:
        """√ of the mean squared distance from the mean, as in scikit-learn's scaler."""
        return np.sqrt(np.diag(self.covariance))


def moments_program(sample: FitRows) -> Program[Moments]:
    count = len(sample.design.names)
    sums = FixedPoint(float(sample.rows))

    def local(table: OwnerTable) -> NDArray[np.int64]:
        matrix, _ = sample.complete(table)
        return sums.whole(np.concatenate([matrix.sum(axis=0), upper(matrix.T @ matrix)]))

    opened = sums.real((yield Sum(label="means and covariances", local=local, length=count + count * (count + 1) // 2)))
    mean = opened[:count] / sample.rows
    covariance = symmetric(opened[count:], count) / sample.rows - np.outer(mean, mean)
    if (constant := np.diag(covariance) < 1e-12).any():
        raise ConfigError(f"column '{sample.design.names[int(np.argmax(constant))]}' is constant; leave it out")
    return Moments(mean, covariance)


def pca_program(sample: FitRows, components: int | None) -> Program[dict[str, Any]]:
    moments = yield from moments_program(sample)
    count = len(moments.mean)
    if components is not None and components > count:
        raise ConfigError(f"components = {components}, but there are only {count} columns")
    deviation = moments.deviation
    correlation = moments.covariance / np.outer(deviation, deviation)
    values, vectors = np.linalg.eigh(correlation)
    order = np.argsort(values)[::-1][:components]
    axes = vectors[:, order].T
    axes *= np.sign(axes[np.arange(len(axes)), np.argmax(np.abs(axes), axis=1)])[:, None]
    explained = values[order] * sample.rows / (sample.rows - 1)
    return {
        **scaling_record(sample, moments),
        "components": axes.tolist(),
        "explained_variance": explained.tolist(),
        "explained_share": (values[order] / count).tolist(),
    }


def scaling_record(sample: FitRows, moments: Moments) -> dict[str, Any]:
    """Means and deviations of the columns, in the units of the data."""
    columns = sample.design.columns
    mean = [each.centre + each.half * value for each, value in zip(columns, moments.mean, strict=True)]
    deviation = [each.half * value for each, value in zip(columns, moments.deviation, strict=True)]
    return {"columns": [each.name for each in columns], "mean": mean, "sd": deviation}
