"""Arrays of a user's own, checked and understood: what is a class, what is a number, whose is which row."""

from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from winnow.core import DataError
from winnow.data.settings import ProblemType
from winnow.data.types import Indices, RawDataSet

FEW_CLASSES, MANY_CLASSES, ROWS_PER_CLASS = 10, 100, 10
"""Whole numbers are taken for classes if there are few, or at least not many, each with some rows on average."""


def raw_from_arrays(
    x: NDArray[Any],
    y: NDArray[Any],
    *,
    where: str,
    classes: int | None = None,
    owners: ArrayLike | None = None,
    task: ProblemType = "auto",
    tokens: bool = False,
) -> RawDataSet:
    """Numbers checked, labels and owners numbered from zero."""
    _check_finite(x, "x", where)
    if x.ndim < 2:
        raise DataError(f"{where}: x must be [rows, …] with at least two dimensions, not {x.shape}")
    if len(x) == 0:
        raise DataError(f"{where}: there are no rows")
    if tokens:
        x = _identifiers(x, where)
    y = np.atleast_1d(y)
    numbered = None if owners is None else _numbered_owners(np.asarray(owners))
    if classes is None and _kind(y, task, where) == "regression":
        _check_finite(y, "y", where)
        return RawDataSet(x=x, y=y.reshape(len(y), -1), classes=None, owners=numbered, tokens=tokens)
    labels = _labels(y, classes, where)
    known = int(labels.max(initial=-1)) + 1 if classes is None else classes
    return RawDataSet(x=x, y=labels, classes=known, owners=numbered, tokens=tokens)


def _check_finite(values: NDArray[Any], what: str, where: str) -> None:
    if values.dtype.kind not in "iufb":
        raise DataError(f"{where}: {what} must hold numbers, not {values.dtype}")
    if values.dtype.kind == "f" and not np.isfinite(values).all():
        place = ", ".join(map(str, np.argwhere(~np.isfinite(values))[0]))
        raise DataError(f"{where}: {what}[{place}] is not a finite number; fill in or remove such rows first")


def _kind(y: NDArray[Any], task: ProblemType, where: str) -> ProblemType:
    """What targets are, unless it was said: floating-point numbers make a regression, anything else classes."""
    if task != "auto":
        return task
    if y.dtype.kind == "f":
        return "regression"
    distinct = len(np.unique(y)) if y.dtype.kind in "iu" else 0
    if distinct > MANY_CLASSES or (distinct > FEW_CLASSES and distinct * ROWS_PER_CLASS > len(y)):
        raise DataError(
            f"{where}: the targets are whole numbers with {distinct} distinct values in {len(y)} rows, which could be"
            ' classes or quantities; choose one: data.task = "classification" or "regression"'
        )
    return "classification"


def _labels(y: NDArray[Any], classes: int | None, where: str) -> Indices:
    if y.ndim != 1:
        raise DataError(f"{where}: y must have one class label per row, not shape {y.shape}; use floats for regression")
    if classes is not None:
        return _checked_labels(y, classes, where)
    if y.dtype.kind == "f":
        _check_finite(y, "y", where)
    return _numbered(y)


def _checked_labels(y: NDArray[Any], classes: int, where: str) -> Indices:
    try:
        labels = y.astype(np.int64)
        whole = bool((labels == y).all())
    except (TypeError, ValueError):
        whole = False
    if not whole or labels.min(initial=0) < 0 or labels.max(initial=0) >= classes:
        raise DataError(f"{where}: with classes = {classes}, y must hold whole numbers from 0 to {classes - 1}")
    return labels


def _identifiers(x: NDArray[Any], where: str) -> Indices:
    identifiers = x.astype(np.int64)
    if (identifiers != x).any() or identifiers.min(initial=0) < 0:
        raise DataError(f"{where}: tokens must be whole numbers, 0 or greater, and x has others; remove data.tokens")
    return identifiers


def _numbered_owners(owners: NDArray[Any]) -> Indices:
    """Owners numbered from zero; negative numbers stay -1, nobody."""
    if owners.dtype.kind not in "if":
        return _numbered(owners)
    numbered = np.full(len(owners), -1, dtype=np.int64)
    numbered[owners >= 0] = _numbered(owners[owners >= 0])
    return numbered


def _numbered(names: NDArray[Any]) -> Indices:
    """0, 1, … for the distinct values in sorted order."""
    return np.unique(names, return_inverse=True)[1].astype(np.int64).reshape(-1)
