"""What turns raw rows into what a model is trained on, and a model's outputs back into labels and units.

It is fitted to the data that a run starts with (`winnow.data.fit_preprocessing`), stated before the first round, and
saved with the model as JSON. Raw rows are of one of three kinds: a table with named `columns`, one `array`, or several
`inputs` a sample, which are packed side by side into one flat array.
"""

from collections.abc import Mapping, Sequence
from math import prod
from typing import Annotated, Any, Literal, Self, TypeAlias

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError, model_validator

from winnow.core import DataError, Settings, suggest
from winnow.core.join_names import listed
from winnow.data.dataframe_adapters import array_of, as_table, check_finite, in_single_precision
from winnow.data.tables import DataTable, as_text
from winnow.data.text import MAX_LENGTH, MAX_WORDS, TextUnit, encode_characters, encode_texts

IMAGE_NDIM = 4
MAX_CATEGORIES = 100
"""A column of more is an identifier or free text rather than a category."""
LARGEST_WHOLE = 1 << 24
"""Every whole number up to this one is a float32."""
IGNORED = -100
"""The position of a target sequence with this label counts for nothing, as in torch."""
NO_LABEL = -1
"""The class of a sample without a label."""
MAX_SPECS, MAX_LABELS, MAX_NAME, MAX_FEATURE_TEXT = 100_000, 1_000_000, 10_000, 1 << 27
"""What a file may state at most: it may come from anybody."""

Label: TypeAlias = int | str | bool | float
Name: TypeAlias = Annotated[str, Field(max_length=MAX_NAME)]
Shape: TypeAlias = Annotated[tuple[Annotated[int, Field(ge=1, le=1 << 31)], ...], Field(max_length=16)]
Width: TypeAlias = Annotated[float, Field(gt=0)]
Features: TypeAlias = NDArray[np.float32] | NDArray[np.int64]


class Affine(Settings):
    """(value − shift) / width: for all values alike, or by column of a table, channel of an image, else by element."""

    shift: Annotated[tuple[float, ...], Field(min_length=1, max_length=MAX_LABELS)]
    width: Annotated[tuple[Width, ...], Field(min_length=1, max_length=MAX_LABELS)]

    @model_validator(mode="after")
    def _alike(self) -> Self:
        if len(self.shift) != len(self.width):
            raise ValueError(f"shift has {len(self.shift)} numbers and width {len(self.width)}")
        return self

    def apply(self, values: NDArray[Any]) -> NDArray[np.float32]:
        """Infinite where that is too large for single precision."""
        scaled = values.astype(np.result_type(values.dtype, np.float32), order="C")
        with np.errstate(over="ignore"):
            for operation, constants in ((np.subtract, self.shift), (np.divide, self.width)):
                operation(scaled, self._fitting(constants, values).astype(scaled.dtype), out=scaled)
            return scaled.astype(np.float32, copy=False)

    def undo(self, values: NDArray[Any]) -> NDArray[np.float64]:
        shift, width = (self._fitting(constants, values) for constants in (self.shift, self.width))
        restored: NDArray[np.float64] = values.astype(np.float64) * width + shift
        return restored

    @staticmethod
    def _fitting(constants: Sequence[float], values: NDArray[Any]) -> NDArray[np.float64]:
        numbers = np.asarray(constants, np.float64)
        if len(numbers) == 1:
            return numbers.reshape((1,) * values.ndim)
        return numbers.reshape((1, -1, 1, 1) if values.ndim == IMAGE_NDIM else (1, *values.shape[1:]))


IDENTIFIERS = frozenset({"token", "text"})
"""Kinds of features with which one cannot calculate."""


class Column(Settings):
    """A raw column of a table, and what becomes of it.

    A number is `fill` where it is missing, and then scaled; with `marks_missing` a second feature says where that was.
    A category is one feature for each of the `categories`, and one for anything else, missing values too. A token
    stays a whole number. A text is the identifiers of its first `length` words, of which there are `words`, or the
    numbers of its first `length` characters.
    """

    name: Name
    kind: Literal["number", "category", "token", "text"] = "number"
    fill: float = 0.0
    marks_missing: bool = False
    shift: float = 0.0
    width: Width = 1.0
    categories: Annotated[tuple[Name, ...], Field(max_length=MAX_CATEGORIES)] = ()
    unit: TextUnit = "words"
    words: int = Field(default=2, ge=2, le=MAX_WORDS)
    length: int = Field(default=1, ge=1, le=MAX_LENGTH)

    @model_validator(mode="after")
    def _distinct(self) -> Self:
        if len({*self.categories}) != len(self.categories):
            raise ValueError(f"column {self.name!r} has a category twice")
        return self

    @property
    def features(self) -> tuple[str, ...]:
        """What the features made of it are called."""
        if self.kind == "category":
            return (*(f"{self.name} = {category}" for category in self.categories), f"{self.name} = other")
        if self.kind == "text":
            return tuple(f"{self.name}, {self.unit.removesuffix('s')} {place}" for place in range(1, self.length + 1))
        return (self.name, f"{self.name} is missing") if self.marks_missing else (self.name,)

    def encode(self, values: NDArray[Any], where: str) -> Features:
        """[n, features]"""
        if self.kind == "category":
            place = {category: number for number, category in enumerate(self.categories)}
            distinct, inverse = np.unique(as_text(values), return_inverse=True)
            found = np.array([place.get(text, len(place)) for text in distinct.tolist()], np.int64)[inverse]
            return np.eye(len(place) + 1, dtype=np.float32)[found.reshape(-1)]
        if self.kind == "text" and self.unit == "characters":
            return encode_characters(values.tolist(), self.length, f"{where}: column '{self.name}'")
        if self.kind == "text":
            return encode_texts(values.tolist(), self.words, self.length, f"{where}: column '{self.name}'")
        numbers = check_numbers(values, self.name, where)
        if self.kind == "token":
            return whole_numbers(numbers, f"{where}: column '{self.name}'")[:, None]
        missing = np.isnan(numbers)
        with np.errstate(over="ignore"):
            scaled = ((np.where(missing, self.fill, numbers) - self.shift) / self.width).astype(np.float32)
        if not np.isfinite(scaled).all():
            row = int(np.flatnonzero(~np.isfinite(scaled))[0])
            raise DataError(
                f"{where}: column '{self.name}', data row {row + 1} is {numbers[row]:g}, too large for a model to"
                " calculate with; correct it or empty that cell"
            )
        return np.stack([scaled, missing.astype(np.float32)] if self.marks_missing else [scaled], axis=1)


class InputSpec(Settings):
    """An array of numbers or tokens: one of several inputs of a sample, or the only one. `shape` is a sample's."""

    name: Name | None = None
    shape: Shape
    kind: Literal["number", "token"] = "number"
    scaling: Affine | None = None

    @property
    def size(self) -> int:
        """How many numbers of a packed sample are this input's."""
        return prod(self.shape)

    @model_validator(mode="after")
    def _fits(self) -> Self:
        if self.size > 1 << 31:
            raise ValueError(f"a sample of shape {self.shape} is too large")
        if self.scaling is not None:
            channels = self.shape[0] if len(self.shape) + 1 == IMAGE_NDIM else self.size
            if self.kind == "token" or len(self.scaling.shift) not in (1, channels):
                raise ValueError(f"scaling does not fit {self.kind}s of shape {self.shape}")
        return self

    def encode(self, values: NDArray[Any], where: str) -> Features:
        if values.shape[1:] != self.shape:
            raise DataError(f"{where}: samples have shape {values.shape[1:]}; the model was trained on {self.shape}")
        check_finite(values, "the input", where)
        if self.kind == "token":
            return whole_numbers(values, where)
        scaled = values if self.scaling is None else self.scaling.apply(values)
        return in_single_precision(scaled, values, "the input", where)


class TargetSpec(Settings):
    """A value that a regression predicts: (value − shift) / width is what the model learns."""

    name: Name | None = None
    shift: float = 0.0
    width: Width = 1.0


class Preprocessing(Settings):
    """Raw rows to features (`transform`), and outputs to labels or values in their units (`decode`)."""

    columns: Annotated[tuple[Column, ...], Field(max_length=MAX_SPECS)] = ()
    array: InputSpec | None = None
    inputs: Annotated[tuple[InputSpec, ...], Field(max_length=MAX_SPECS)] = ()
    """Several inputs a sample, or one that has a name; they are packed into [n, total]."""
    classes: Annotated[tuple[Label, ...], Field(max_length=MAX_LABELS)] | None = None
    """The labels as they were, in the order of their numbers. None where labels are the numbers, or in a regression."""
    targets: Annotated[tuple[TargetSpec, ...], Field(max_length=MAX_SPECS)] = ()
    """The values of a regression."""

    @model_validator(mode="after")
    def _possible(self) -> Self:
        if sum(map(bool, (self.columns, self.array, self.inputs))) > 1:
            raise ValueError("rows are a table, an array or several inputs, not two of these")
        if sum(len(each.name) * (len(each.categories) + each.length + 1) for each in self.columns) > MAX_FEATURE_TEXT:
            raise ValueError("the names of the features are too long")
        if 0 < sum(column.kind in IDENTIFIERS for column in self.columns) < len(self.columns):
            raise ValueError("all columns are tokens or texts, or none is")
        for what, names in (("column", [column.name for column in self.columns]), ("input", self.input_names)):
            if len({*names}) != len(names):
                raise ValueError(f"two {what}s have the same name")
        if any(spec.name is None for spec in self.inputs) and self.input_names:
            raise ValueError("some inputs have names and some have none")
        if self.classes is not None and (len({*map(repr, self.classes)}) != len(self.classes) or self.targets):
            raise ValueError("classes must be distinct, and a regression has none")
        return self

    @classmethod
    def from_json(cls, table: Mapping[str, Any]) -> Self:
        """What `to_json` gave; anything else is refused in one line, whoever wrote it."""
        try:
            return cls.model_validate(table)
        except ValidationError as error:
            first = error.errors(include_url=False, include_input=False)[0]
            place = ".".join(map(str, first["loc"])) or "the whole"
            raise DataError(f"not a preprocessing that Winnow saved: {place[:100]}: {first['msg'][:200]}") from error

    def to_json(self) -> dict[str, Any]:
        return self.model_dump(mode="json")

    @property
    def input_names(self) -> tuple[str, ...]:
        return tuple(spec.name for spec in self.inputs if spec.name is not None)

    @property
    def tokens(self) -> bool:
        """Whether features are identifiers, all of them."""
        kinds = {*(each.kind for each in self.columns), *(each.kind for each in self.inputs)}
        kinds = kinds if self.array is None else {self.array.kind}
        return bool(kinds) and kinds <= IDENTIFIERS

    @property
    def features(self) -> tuple[str, ...]:
        """What the features of a table are called, in the order in which the model gets them."""
        return tuple(feature for column in self.columns for feature in column.features)

    def labels(self, classes: int) -> Sequence[Label]:
        """The labels of so many classes, in the order of their numbers."""
        return range(classes) if self.classes is None else self.classes

    def transform(self, rows: Any, where: str = "rows") -> Features:
        """What the model gets for raw rows: a pandas or polars frame, a dict of columns or a list of dicts, arrays, and
        for several inputs a dict or tuple of arrays. Columns that were not trained on are left alone.
        """
        if self.columns:
            return self._encode_table(self._as_table(rows, where))
        if self.inputs:
            return self._pack(self._named_arrays(rows, where), where)
        values = array_of(rows, where)
        if self.array is None:
            check_finite(values, "the input", where)
            whole = values.dtype.kind in "iu"
            return values.astype(np.int64) if whole else in_single_precision(values, values, "the input", where)
        return self.array.encode(values, where)

    def decode(self, outputs: Any) -> NDArray[Any]:
        """Labels as they were, or values in their original units, of a model's outputs for some rows."""
        values = array_of(outputs, "outputs")
        if self.targets:
            shift, width = zip(*((target.shift, target.width) for target in self.targets), strict=True)
            restored = Affine(shift=shift, width=width).undo(values.reshape(len(values), -1))
            return restored[:, 0] if len(self.targets) == 1 else restored
        numbers: NDArray[np.int64] = (
            (values.reshape(-1) > 0).astype(np.int64) if self._is_one_logit(values) else values.argmax(axis=-1)
        )
        if self.classes is None:
            return numbers
        if numbers.max(initial=0) >= len(self.classes):
            raise DataError(f"the model has more outputs than the {len(self.classes)} classes that it was trained on")
        decoded: NDArray[Any] = label_array(self.classes)[numbers]
        return decoded

    def probabilities(self, outputs: Any) -> NDArray[np.float64]:
        """The probability of each class, by a model's outputs: logits or logarithms of probabilities."""
        if self.targets:
            raise DataError("a regression has no probabilities; use the values that it predicts")
        logits = array_of(outputs, "outputs").astype(np.float64)
        if self._is_one_logit(logits):
            logits = np.stack([np.zeros(len(logits)), logits.reshape(-1)], axis=1)
        powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
        shares: NDArray[np.float64] = powers / powers.sum(axis=-1, keepdims=True)
        return shares

    def notice(self) -> str:
        """What is done to the rows, in one line; nothing where nothing is."""
        categories = [column.name for column in self.columns if column.kind == "category"]
        filled = [column.name for column in self.columns if column.marks_missing]
        said = []
        if any(column.name == "" for column in self.columns):
            said.append("a column without a name (pandas writes its index so) is a feature; name it or leave it out")
        if filled:
            said.append(f"missing values of {listed(filled)} are filled in, and marked in a feature of their own")
        if categories:
            said.append(f"{listed(categories)} one-hot, with a feature for other values")
        if texts := [column for column in self.columns if column.kind == "text"]:
            hashed = "" if texts[0].unit == "characters" else f", hashed into {texts[0].words:,} identifiers"
            few = f"the first {texts[0].length} {texts[0].unit}{hashed}"
            return f"preprocessing: of {listed([column.name for column in texts])} {few}"
        if self._scales_columns():
            said.append("numbers are scaled by column")
        if len(self.features) != len(self.columns):
            said.append(f"{len(self.columns)} columns make {len(self.features)} features")
        if self.classes is not None and self.classes != tuple(range(len(self.classes))):
            said.append(f"labels {listed([str(label) for label in self.classes])} are classes 0, 1, …")
        return f"preprocessing: {'; '.join(said)}" if said else ""

    def _scales_columns(self) -> bool:
        arrays = (*self.inputs, *((self.array,) if self.array else ()))
        return any((column.shift, column.width) != (0.0, 1.0) for column in self.columns) or any(
            spec.scaling is not None and len(spec.shape) == 1 for spec in arrays
        )

    @staticmethod
    def _is_one_logit(values: NDArray[Any]) -> bool:
        return values.ndim == 1 or (values.ndim == 2 and values.shape[1] == 1)

    def _as_table(self, rows: Any, where: str) -> DataTable:
        table = as_table(rows, where)
        if table is not None:
            return table
        values = array_of(rows, where)
        if values.ndim != 2 or values.shape[1] != len(self.columns):
            names = listed([column.name for column in self.columns])
            raise DataError(f"{where}: rows must have the columns {names}; pass a frame or a dict of columns")
        named = {column.name: values[:, place] for place, column in enumerate(self.columns)}
        by_position = as_table(named, where)
        assert by_position is not None
        return by_position

    def _encode_table(self, table: DataTable) -> Features:
        names = [column.name for column in self.columns]
        for name in names:
            if name not in table.columns:
                raise DataError(f"{table.where} has no column '{name}'; {suggest(name, table.columns, at_most=12)}")
        held = table.read(names)
        return np.concatenate(
            [column.encode(values, table.where) for column, values in zip(self.columns, held, strict=True)], axis=1
        )

    def _named_arrays(self, rows: Any, where: str) -> list[NDArray[Any]]:
        if not self.input_names:
            given = [array_of(each, where) for each in rows] if isinstance(rows, tuple | list) else []
            if len(given) != len(self.inputs):
                raise DataError(f"{where}: a sample has {len(self.inputs)} inputs; pass a tuple of as many arrays")
            return given
        table = as_table(rows, where)
        missing = [name for name in self.input_names if table is None or name not in table.columns]
        if table is None or missing:
            raise DataError(f"{where}: there is no input '{missing[0]}'; pass a dict with {listed(self.input_names)}")
        return table.read(self.input_names)

    def _pack(self, arrays: Sequence[NDArray[Any]], where: str) -> Features:
        """[n, total]: whole numbers if all inputs are tokens, else float32, which holds tokens up to 2²⁴."""
        if len({len(values) for values in arrays}) > 1:
            rows = listed([str(len(values)) for values in arrays])
            raise DataError(f"{where}: the inputs have {rows} rows; they must match")
        parts = [
            spec.encode(values, f"{where}, input {spec.name or place}").reshape(len(values), -1)
            for place, (spec, values) in enumerate(zip(self.inputs, arrays, strict=True))
        ]
        if self.tokens:
            return np.concatenate(parts, axis=1, dtype=np.int64)
        for spec, part in zip(self.inputs, parts, strict=True):
            if spec.kind == "token" and np.abs(part).max(initial=0) > LARGEST_WHOLE:
                raise DataError(
                    f"{where}: input {spec.name or ''} goes beyond 2^24, to which float32 counts; renumber it"
                )
        return np.concatenate([part.astype(np.float32, copy=False) for part in parts], axis=1)


def whole_numbers(values: NDArray[Any], where: str) -> NDArray[np.int64]:
    """Tokens as such; numbers between whole ones are refused."""
    with np.errstate(invalid="ignore"):
        whole = values.astype(np.int64)
    if (whole != values).any():
        raise DataError(f"{where}: tokens must be whole numbers, and there are others; remove data.tokens")
    return whole


def check_numbers(values: NDArray[Any], name: str, where: str) -> NDArray[np.float64]:
    """The values of a column of numbers, NaN where one is missing; anything else is refused by name."""
    if values.dtype.kind not in "iufb" or values.ndim != 1:
        row = next((row for row, value in enumerate(values) if value is not None), 0)
        raise DataError(f"{where}: column '{name}', data row {row + 1} holds {values[row]!r:.40}, not a number")
    numbers = values.astype(np.float64)
    if np.isinf(numbers).any():
        row = int(np.flatnonzero(np.isinf(numbers))[0])
        raise DataError(
            f"{where}: column '{name}', data row {row + 1} is {numbers[row]}; correct it or empty that cell"
        )
    return numbers


def label_array(labels: Sequence[Label]) -> NDArray[Any]:
    """Text, whole numbers and so on where all labels are; otherwise objects."""
    kinds = {type(label) for label in labels}
    if len(kinds) == 1:
        return np.array(labels)
    array = np.empty(len(labels), object)
    array[:] = labels
    return array
