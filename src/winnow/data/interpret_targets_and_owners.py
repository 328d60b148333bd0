"""Targets and owners of a user's own, checked and understood: what is a class, what is a number, whose is which row."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from winnow.core import DataError
from winnow.data.dataframe_adapters import check_finite, in_single_precision
from winnow.data.preprocessing import IGNORED, NO_LABEL, Affine, Label, Preprocessing, TargetSpec, label_array
from winnow.data.scaling import Scaling, fit_scaling, unscaled
from winnow.data.settings import ProblemType
from winnow.data.tables import as_text, check_complete
from winnow.data.types import Indices, Targets

FEW_CLASSES, MANY_CLASSES, ROWS_PER_CLASS = 10, 100, 10
"""Whole numbers are taken for classes if there are few, or at least not many, each with some rows on average."""


@dataclass(frozen=True, kw_only=True, eq=False)
class FittedTargets:
    """Targets as a model learns them, and the way back to labels or units."""

    y: Targets
    classes: int | None
    labels: tuple[Label, ...] | None = None
    specs: tuple[TargetSpec, ...] = ()


def fit_targets(
    y: NDArray[Any],
    scaling: Scaling,
    *,
    where: str,
    classes: int | None = None,
    task: ProblemType = "auto",
    names: Sequence[str] = (),
) -> FittedTargets:
    """Labels numbered from zero in sorted order, or the values of a regression, scaled."""
    y = np.atleast_1d(y)
    if len(y) == 0:
        raise DataError(f"{where}: there are no rows")
    if classes is None and task != "regression" and (missing := missing_labels(y)).any():
        return _fit_labels(y, missing, task, where)
    if y.dtype == object:
        check_complete(y, "y", where)
    if classes is None and _kind(y, task, where) == "regression":
        check_finite(y, "y", where)
        return _fit_values(y.reshape(len(y), -1), scaling, names, where)
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    if y.ndim == 2 and y.dtype.kind in "iu":
        return _fit_sequences(y, classes, where)
    if y.ndim != 1:
        raise DataError(
            f"{where}: y must have one class label per row, or a sequence of whole numbers, not {y.dtype} of shape "
            f"{y.shape}; use floats for regression"
        )
    if classes is not None:
        return FittedTargets(y=check_class_numbers(y, classes, where), classes=classes, labels=tuple(range(classes)))
    if y.dtype.kind == "f":
        check_finite(y, "y", where)
    labels, numbers = np.unique(y, return_inverse=True)
    known: tuple[Label, ...] = tuple(labels.tolist())
    return FittedTargets(y=numbers.astype(np.int64).reshape(-1), classes=len(known), labels=known)


def missing_labels(y: NDArray[Any]) -> NDArray[np.bool_]:
    """Which rows have no label: empty cells, and -1 unless it is one of two labels or beside other negative numbers.
    Numbers of which some are no whole ones are values of a regression, none of which may be missing.
    """
    if y.ndim == 2 and y.shape[1] == 1:
        y = y[:, 0]
    nothing = np.zeros(len(y), bool)
    if y.ndim != 1:
        return nothing
    if y.dtype == object:
        return np.array([each is None for each in y.tolist()])
    if y.dtype.kind == "i":
        return np.asarray(y == NO_LABEL) if y.min() == NO_LABEL and len(np.unique(y)) != 2 else nothing
    if y.dtype.kind != "f":
        return nothing
    empty = np.isnan(y)
    return empty if empty.any() and bool((y[~empty] == np.floor(y[~empty])).all()) else nothing


def _fit_labels(y: NDArray[Any], missing: NDArray[np.bool_], task: ProblemType, where: str) -> FittedTargets:
    """Labels of which some are missing. Where all are, there are no classes, until somebody else says which."""
    numbers = np.full(len(y), NO_LABEL, np.int64)
    present = y.reshape(len(y))[~missing]
    if not len(present):
        return FittedTargets(y=numbers, classes=0, labels=())
    known = present.astype(np.int64) if present.dtype.kind == "f" else present
    learnt = fit_targets(known, unscaled, where=where, task=task)
    if learnt.labels is not None and len(learnt.labels) == 1:
        raise DataError(f"{where}: the only label is {learnt.labels[0]!r}; there must be two classes or more")
    numbers[~missing] = learnt.y
    return FittedTargets(y=numbers, classes=learnt.classes, labels=learnt.labels)


def _fit_values(values: NDArray[Any], scaling: Scaling, names: Sequence[str], where: str) -> FittedTargets:
    def describe(place: tuple[int, ...]) -> str:
        row, target = place
        return f"target '{names[target]}', data row {row + 1}" if names else f"y[{row}]"

    found = fit_scaling(scaling, values, where, describe)
    width = values.shape[1]
    affine = found or Affine(shift=(0.0,) * width, width=(1.0,) * width)
    specs = tuple(
        TargetSpec(name=names[place] if names else None, shift=shift, width=wide)
        for place, (shift, wide) in enumerate(zip(affine.shift, affine.width, strict=True))
    )
    scaled = values if found is None else found.apply(values)
    return FittedTargets(y=in_single_precision(scaled, values, "y", where), classes=None, specs=specs)


def _fit_sequences(y: NDArray[Any], classes: int | None, where: str) -> FittedTargets:
    """A class at each position; numbers stay as they are, because in sequences they are identifiers."""
    counted = y[y != IGNORED]
    if counted.size == 0 or counted.min() < 0:
        raise DataError(f"{where}: y must hold classes 0, 1, … at each position, or {IGNORED} where none counts")
    known = int(counted.max()) + 1 if classes is None else classes
    if counted.max() >= known:
        raise DataError(f"{where}: with classes = {known}, y must hold whole numbers from 0 to {known - 1}")
    return FittedTargets(y=y.astype(np.int64, copy=False), classes=known)


def targets_as_stated(y: NDArray[Any], stated: Preprocessing, where: str) -> FittedTargets:
    """Targets by the labels, or the scaling of values, that a preprocessing states."""
    y = np.atleast_1d(y)
    if stated.targets:
        check_finite(y, "y", where)
        values = y.reshape(len(y), -1)
        if values.shape[1] != len(stated.targets):
            raise DataError(
                f"{where}: there are {values.shape[1]} target values; the preprocessing has {len(stated.targets)}"
            )
        shift, width = zip(*((target.shift, target.width) for target in stated.targets), strict=True)
        scaled = Affine(shift=shift, width=width).apply(values)
        return FittedTargets(y=in_single_precision(scaled, values, "y", where), classes=None, specs=stated.targets)
    if stated.classes is None:
        return _fit_sequences(y, None, where)
    y = number_labels(y.reshape(len(y)) if y.size == len(y) else y, stated.classes, where)
    return FittedTargets(y=y, classes=len(stated.classes), labels=stated.classes)


def number_labels(labels: NDArray[Any], known: Sequence[Label], where: str) -> Indices:
    """Labels under the numbers of the known ones; "1" in a file is the 1 of a configuration. An empty cell is no label,
    and neither is -1 unless it is known.
    """
    unlabelled = dict.fromkeys(("", str(NO_LABEL)), NO_LABEL)
    place = unlabelled | {text: number for number, text in enumerate(as_text(label_array(known)).tolist())}
    distinct, inverse = np.unique(as_text(labels), return_inverse=True)
    if strange := [text for text in distinct.tolist() if text not in place]:
        few = ", ".join(as_text(label_array(known)).tolist()[:FEW_CLASSES])
        raise DataError(f"{where}: there is a class '{strange[0]:.40}', which is not among the classes {few}")
    return np.array([place[text] for text in distinct.tolist()], np.int64)[inverse.reshape(-1)]


def _kind(y: NDArray[Any], task: ProblemType, where: str) -> ProblemType:
    """What targets are, unless it was said: floating-point numbers make a regression, anything else classes."""
    if task != "auto":
        return task
    if y.dtype.kind == "f":
        return "regression"
    distinct = len(np.unique(y)) if y.dtype.kind in "iu" and y.ndim == 1 else 0
    if distinct > MANY_CLASSES or (distinct > FEW_CLASSES and distinct * ROWS_PER_CLASS > len(y)):
        raise DataError(
            f"{where}: the targets are whole numbers with {distinct} distinct values in {len(y)} rows, which could be"
            ' classes or quantities; choose one: data.task = "classification" or "regression"'
        )
    return "classification"


def check_class_numbers(y: NDArray[Any], classes: int, where: str) -> Indices:
    try:
        labels = y.astype(np.int64)
        whole = bool((labels == y).all())
    except (TypeError, ValueError):
        whole = False
    if not whole or labels.min(initial=0) < NO_LABEL or labels.max(initial=0) >= classes:
        raise DataError(f"{where}: with classes = {classes}, y must hold whole numbers from 0 to {classes - 1}")
    return labels


def numbered_owners(owners: NDArray[Any], what: str) -> tuple[Indices, tuple[str, ...]]:
    """Owners numbered from zero, and their names ("ward 3" for numbers); negative numbers stay -1, nobody."""
    known = owners >= 0 if owners.dtype.kind in "if" else np.ones(len(owners), bool)
    distinct, numbers = np.unique(owners[known], return_inverse=True)
    numbered = np.full(len(owners), -1, dtype=np.int64)
    numbered[known] = numbers.reshape(-1)
    names = as_text(distinct).tolist()
    return numbered, tuple(f"{what} {name}" if distinct.dtype.kind in "iuf" else name for name in names)
