"""Rows of the data to rows of a design matrix, as a step of a scikit-learn pipeline."""

from collections.abc import Mapping
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, TransformerMixin

from winnow.analytics.given_rows import columns_of, level_text
from winnow.core import DataError


class DesignMatrix(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """From a data frame, a mapping of columns, or a list of records. `design` is that of a fit's answer."""

    def __init__(self, design: Mapping[str, Any]) -> None:
        self.design = design

    def __sklearn_is_fitted__(self) -> bool:
        return True

    def fit(self, rows: Any, response: Any = None) -> Self:
        """There is nothing to fit: the owners' rows have been."""
        return self

    def transform(self, rows: Any) -> NDArray[Any]:
        """Without the intercept, which the estimator has; in the units of the data."""
        columns = columns_of(rows)
        factors = {name: _factor(about, columns) for name, about in self.design["factors"].items()}
        terms = []
        for term in self.design["terms"]:
            blocks = [factors[name][:, at] for name, at in zip(term["factors"], term["at"], strict=True)]
            terms.append(np.prod(blocks, axis=0))
        return np.stack(terms, axis=1)

    def get_feature_names_out(self, input_features: Any = None) -> NDArray[np.object_]:
        return np.array([term["name"] for term in self.design["terms"]], dtype=object)


class LevelCodes(DesignMatrix):
    """The place of each cell's level, for models of categories."""

    def transform(self, rows: Any) -> NDArray[Any]:
        columns = columns_of(rows)
        codes = [np.argmax(_factor(about, columns), axis=1) for about in self.design["factors"].values()]
        return np.stack(codes, axis=1)


def _factor(about: Mapping[str, Any], columns: Mapping[str, Any]) -> NDArray[np.float64]:
    """A column of numbers, or 0/1 columns of groups of levels."""
    name = about["column"]
    if name not in columns:
        raise DataError(f"the rows have no column '{name}'")
    if "levels" not in about:
        numbers = np.asarray(columns[name], dtype=np.float64)
        return (np.log(numbers) if about["use"] == "log" else numbers)[:, None]
    cells = np.array([level_text(cell) for cell in columns[name]], dtype=object)
    groups = [np.isin(cells, group) for group in about["levels"]]
    if unknown := {*cells} - {level for group in about["levels"] for level in group}:
        raise DataError(f"column '{name}' has a value that the fit did not know: {sorted(unknown)[0]!r}")
    return np.stack(groups, axis=1).astype(np.float64)
