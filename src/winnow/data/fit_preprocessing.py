"""Fits a `Preprocessing` to the data that a run starts with, and makes a data set of them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import ArrayLike, NDArray

from winnow.core import DataError
from winnow.core.number_text import is_number
from winnow.data.dataframe_adapters import FrameTable, array_of, as_table, check_finite
from winnow.data.interpret_targets_and_owners import fit_targets, missing_labels, numbered_owners, targets_as_stated
from winnow.data.preprocessing import MAX_CATEGORIES, Affine, Column, InputSpec, Preprocessing, check_numbers
from winnow.data.scaling import Scaling, fit_scaling, scaling_for, unscaled
from winnow.data.settings import ProblemType, Scale
from winnow.data.tables import DataTable, as_text, check_columns, check_complete
from winnow.data.text import TextSettings
from winnow.data.types import DataSet, Indices, RawDataSet

MAX_SHOWN = 12
Rows: TypeAlias = DataTable | NDArray[Any] | tuple[NDArray[Any], ...]
"""Raw features: a table, an array, or the arrays of several inputs."""


@dataclass(frozen=True, kw_only=True)
class Reading:
    """How raw data are to be understood, where the data themselves do not tell."""

    name: str
    task: ProblemType = "auto"
    scale: Scale = "default"
    tokens: bool = False
    text: TextSettings | None = None
    targets: tuple[str, ...] = ()
    features: tuple[str, ...] | None = None
    categorical: tuple[str, ...] = ()
    owner: str | None = None
    classes: int | None = None
    stated: Preprocessing | None = None
    """What is to be done to the rows; None: it is fitted to them."""
    file: str | None = None
    """Where the data are from, for messages."""

    @property
    def scaling(self) -> Scaling:
        if self.tokens and self.scale in ("standard", "minmax"):
            raise DataError(f"{self.name}: tokens are identifiers and cannot be scaled; remove data.scale")
        return unscaled if self.tokens or self.text else scaling_for(self.scale)


def as_rows(x: Any, where: str) -> Rows:
    """Features as they were passed: a tuple of arrays is several inputs, as is a dict; anything flat is a table."""
    if isinstance(x, tuple) and x and all(hasattr(each, "shape") for each in x):
        return tuple(array_of(each, where) for each in x)
    return as_table(x, where) or array_of(x, where)


def data_set_of(rows: Rows, y: NDArray[Any] | None, reading: Reading, owners: ArrayLike | None = None) -> DataSet:
    """The data set that rows make. Their targets are `y`, or columns of the table."""
    where = _where(rows, reading)
    numbered: tuple[Indices, tuple[str, ...]] | None = None
    if isinstance(rows, DataTable):
        _feature_names(rows, reading)  # a wrong name of a feature is told before one of a target
        y = _table_targets(rows, reading) if y is None else y
        if reading.owner is not None:
            owners = check_complete(rows.column(reading.owner), reading.owner, where)
    features = fit_features(rows, reading)
    assert y is not None
    if reading.stated is None:
        scaling = reading.scaling if _is_scaled(features) or reading.scale != "default" else unscaled
        learnt = fit_targets(y, scaling, where=where, classes=reading.classes, task=reading.task, names=reading.targets)
    else:
        learnt = targets_as_stated(y, reading.stated, where)
    if owners is not None:
        numbered = numbered_owners(array_of(owners, where, "owners"), reading.owner or "owner")
    return DataSet(
        name=reading.name,
        x=features.transform(rows, where),
        y=learnt.y,
        classes=learnt.classes,
        owners=None if numbered is None else numbered[0],
        owner_names=None if numbered is None else numbered[1],
        preprocessing=features.model_copy(update={"classes": learnt.labels, "targets": learnt.specs}),
    )


def fit_features(rows: Rows, reading: Reading) -> Preprocessing:
    """What is to be done to features, as it is stated or as it fits the rows."""
    if reading.stated is not None:
        return reading.stated
    if isinstance(rows, DataTable):
        return _fit_table(rows, _feature_names(rows, reading), reading)
    where = _where(rows, reading)
    if isinstance(rows, tuple):
        return Preprocessing(inputs=_fit_inputs(dict(enumerate(rows)), reading, where))
    return Preprocessing(array=fit_array(rows, reading.scaling, tokens=reading.tokens, where=where))


def _where(rows: Rows, reading: Reading) -> str:
    return rows.where if isinstance(rows, DataTable) else reading.file or reading.name


def known_data_set(
    raw: RawDataSet, name: str, scale: Scale, default: Scaling, text: TextSettings | None = None
) -> DataSet:
    """A known set, scaled as asked for or else in its own way; of texts, so many words."""
    scaling, given = scaling_for(scale, default), raw.x
    texts = not isinstance(given, Mapping) and given.dtype == object
    if not texts and text is not None:
        raise DataError(f"{name} holds no texts; remove data.text")
    rows: Any = {"text": given} if texts else given
    if texts:
        features = Preprocessing(columns=(text_column("text", text or TextSettings()),))
    elif isinstance(given, Mapping):
        features = fit_features(FrameTable(given, name), Reading(name=name, scale=scale))
    else:
        features = Preprocessing(array=fit_array(given, scaling, tokens=False, where=name))
    learnt = fit_targets(raw.y, scaling, where=name, classes=raw.classes, task="auto")
    return DataSet(
        name=name,
        x=features.transform(rows, name),
        y=learnt.y,
        classes=learnt.classes,
        owners=raw.owners,
        owner_names=raw.owner_names,
        test_rows=raw.test_rows,
        preprocessing=features.model_copy(update={"classes": learnt.labels, "targets": learnt.specs}),
    )


def text_column(name: str, text: TextSettings) -> Column:
    return Column(name=name, kind="text", unit=text.unit, words=text.words, length=text.length)


def fit_array(values: NDArray[Any], scaling: Scaling, *, tokens: bool, where: str) -> InputSpec:
    """What is known of an array of features."""
    check_finite(values, "x", where)
    if values.ndim < 2:
        raise DataError(f"{where}: x must be [rows, …] with at least two dimensions, not {values.shape}")
    if len(values) == 0:
        raise DataError(f"{where}: there are no rows")
    if not tokens:
        return InputSpec(shape=values.shape[1:], scaling=_fit_numbers(scaling, values, "x", where))
    if (values != np.floor(values)).any() or values.min(initial=0) < 0:
        raise DataError(f"{where}: tokens must be whole numbers, 0 or greater, and x has others; remove data.tokens")
    return InputSpec(shape=values.shape[1:], kind="token")


def _fit_numbers(scaling: Scaling, values: NDArray[Any], what: str, where: str) -> Affine | None:
    return fit_scaling(scaling, values, where, lambda place: f"{what}[{', '.join(map(str, place))}]")


def _is_scaled(features: Preprocessing) -> bool:
    """Whether anything is: the targets of a regression are scaled where features are."""
    return bool(features.columns) or any(spec.scaling for spec in (features.array, *features.inputs) if spec)


def _feature_names(table: DataTable, reading: Reading) -> list[str]:
    check_columns(table, reading.targets, "a target")
    check_columns(table, reading.features or (), "a feature")
    check_columns(table, [reading.owner] if reading.owner else (), "the owner")
    apart = {*reading.targets, reading.owner}
    if reading.owner in reading.targets:
        raise DataError(f"{table.where}: column '{reading.owner}' is the owner and cannot be a target")
    if taken := [name for name in reading.features or () if name in apart]:
        role = "a target" if taken[0] in reading.targets else "the owner"
        raise DataError(
            f"{table.where}: column '{taken[0]}' is {role} and cannot be a feature; leave it out of features"
        )
    names = list(reading.features or [name for name in table.columns if name not in apart])
    if not names:
        raise DataError(f"{table.where}: no columns remain for features")
    if odd := [name for name in reading.categorical if name not in names]:
        check_columns(table, odd, "categorical")
        raise DataError(f"{table.where}: column '{odd[0]}' is named as categorical, but is not a feature")
    return names


def _table_targets(table: DataTable, reading: Reading) -> NDArray[Any]:
    targets, task = reading.targets, reading.task
    if not targets:
        few = ", ".join(list(table.columns)[:MAX_SHOWN])
        raise DataError(f'{table.where}: say which column to predict: targets=["…"]; there are {few}')
    if len(targets) > 1 and task == "classification":
        raise DataError(f"{table.where}: a classification has one target column, not {len(targets)}")
    held = [table.column(name) for name in targets]
    if len(targets) == 1 and task != "regression" and missing_labels(held[0]).any():
        return held[0]
    for name, values in zip(targets, held, strict=True):
        check_complete(values, name, table.where)
    if len(targets) > 1 or task == "regression":
        return np.stack([check_numbers(v, name, table.where) for name, v in zip(targets, held, strict=True)], axis=1)
    return held[0]


def _fit_table(table: DataTable, names: Sequence[str], reading: Reading) -> Preprocessing:
    """Columns of numbers and categories; where a column has an array a row, each column is an input of its own."""
    held = dict(zip(names, table.read(names), strict=True))
    if any(values.ndim > 1 for values in held.values()):
        if reading.categorical:
            raise DataError(f"{table.where}: data.categorical has no effect on columns of arrays; remove it")
        return Preprocessing(inputs=_fit_inputs(held, reading, table.where))
    return Preprocessing(
        columns=tuple(_fit_column(name, values, reading, table.where) for name, values in held.items())
    )


def _fit_column(name: str, values: NDArray[Any], reading: Reading, where: str) -> Column:
    missing = np.isnan(values) if values.dtype.kind == "f" else values == None if values.dtype == object else None  # noqa: E711
    if missing is not None and missing.all():
        raise DataError(f"{where}: every value of column '{name}' is missing; leave it out of features")
    if reading.text is not None:
        return text_column(name, reading.text)
    if reading.tokens:
        return _fit_tokens(name, values, where)
    if name in reading.categorical or values.dtype == object:
        return _fit_category(name, values, reading, where)
    numbers = check_numbers(values, name, where)
    present = numbers[~np.isnan(numbers)]
    fill = 2 * float(np.median(present / 2))  # halved, because the sum of the two in the middle may be too large
    scaling = fit_scaling(
        reading.scaling,
        np.where(np.isnan(numbers), fill, numbers),
        where,
        lambda place: f"column '{name}', data row {place[0] + 1}",
    )
    shift, width = (0.0, 1.0) if scaling is None else (scaling.shift[0], scaling.width[0])
    return Column(name=name, fill=fill, marks_missing=len(present) < len(numbers), shift=shift, width=width)


def _fit_tokens(name: str, values: NDArray[Any], where: str) -> Column:
    numbers = check_numbers(check_complete(values, name, where), name, where)
    if (numbers != np.floor(numbers)).any() or numbers.min() < 0:
        raise DataError(
            f"{where}: tokens must be whole numbers, 0 or greater, and column '{name}' has others; remove data.tokens"
        )
    return Column(name=name, kind="token")


def _fit_category(name: str, values: NDArray[Any], reading: Reading, where: str) -> Column:
    if values.dtype != object:
        check_numbers(values, name, where)
    counts = Counter(as_text(values).tolist())
    counts.pop("", None)  # missing
    categories = sorted(counts)
    if all(map(is_number, categories)):
        categories.sort(key=float)
    elif name not in reading.categorical and any(map(is_number, categories)):
        odd = next(row for row, value in enumerate(values) if value is not None and not is_number(value))
        raise DataError(
            f"{where}: column '{name}', data row {odd + 1} holds {values[odd]!r:.40}, and other rows hold numbers; "
            f'correct it, or set data.categorical = ["{name}"]'
        )
    if len(categories) > MAX_CATEGORIES:
        raise DataError(
            f"{where}: column '{name}' has {len(categories)} categories, more than {MAX_CATEGORIES}; group them, turn "
            "them into numbers, or leave the column out of features"
        )
    return Column(name=name, kind="category", categories=tuple(categories))


def _fit_inputs(arrays: Mapping[Any, NDArray[Any]], reading: Reading, where: str) -> tuple[InputSpec, ...]:
    """Several inputs: whole numbers reach the model as such, other numbers are scaled by the same rule as one array."""
    if reading.tokens:
        raise DataError(f"{where}: whole numbers among several inputs are tokens anyway; remove data.tokens")
    specs = []
    for name, values in arrays.items():
        if values.dtype == object:
            raise DataError(
                f"{where}: input '{name}' holds text; turn it into numbers (tokens) first, or leave it out of features"
            )
        check_finite(values, f"input {name} ", where)
        whole = values.dtype.kind in "iub"
        specs.append(
            InputSpec(
                name=name if isinstance(name, str) else None,
                shape=values.shape[1:],
                kind="token" if whole else "number",
                scaling=None if whole else _fit_numbers(reading.scaling, values, f"input {name} ", where),
            )
        )
    return tuple(specs)
