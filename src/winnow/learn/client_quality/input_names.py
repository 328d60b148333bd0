"""What the features of the columns block are called, and their units, for whoever knows the raw columns."""

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod
from typing import Literal, Self, TypeAlias

import numpy as np

from winnow.core.untrusted_text import one_line
from winnow.data.preprocessing import Preprocessing
from winnow.learn.client_quality.evidence import MAX_COLUMNS

MAX_SHOWN = 40
FeatureKind: TypeAlias = Literal["number", "missing", "category", "other"]


@dataclass(frozen=True, kw_only=True)
class FeatureName:
    """A feature that a raw column became: raw value = feature × width + shift."""

    column: str
    kind: FeatureKind = "number"
    category: str = ""
    shift: float = 0.0
    width: float = 1.0
    fill: float = 0.0
    """Of a mark of missing values: what the column's feature is there."""


@dataclass(frozen=True)
class InputNames:
    """The features of the columns block, in order. Empty for images and tokens."""

    features: tuple[FeatureName, ...] = ()

    @classmethod
    def of(cls, preprocessing: Preprocessing, sample_shape: Sequence[int]) -> Self:
        """The names of the first features of a table; an array has numbered columns."""
        if preprocessing.tokens or len(sample_shape) != 1:
            return cls()
        if preprocessing.columns:
            return cls(tuple(_table_features(preprocessing))[:MAX_COLUMNS])
        if preprocessing.inputs:
            return cls(tuple(_packed_features(preprocessing))[:MAX_COLUMNS])
        count = prod(sample_shape)
        scaling = preprocessing.array.scaling if preprocessing.array else None
        shift = np.broadcast_to(scaling.shift if scaling else 0.0, count)
        width = np.broadcast_to(scaling.width if scaling else 1.0, count)
        shown = range(min(count, MAX_COLUMNS))
        return cls(tuple(_numbered(str(place + 1), shift[place], width[place]) for place in shown))


def _table_features(preprocessing: Preprocessing) -> list[FeatureName]:
    names = []
    for column in preprocessing.columns:
        name = _shown(column.name)
        if column.kind == "category":
            names += [FeatureName(column=name, kind="category", category=_shown(each)) for each in column.categories]
            names.append(FeatureName(column=name, kind="other"))
            continue
        names.append(_numbered(name, column.shift, column.width))
        if column.marks_missing:
            fill = (column.fill - column.shift) / column.width
            names.append(FeatureName(column=name, kind="missing", fill=fill))
    return names


def _packed_features(preprocessing: Preprocessing) -> list[FeatureName]:
    names = []
    for number, spec in enumerate(preprocessing.inputs, 1):
        shift = np.broadcast_to(spec.scaling.shift if spec.scaling else 0.0, spec.size)
        width = np.broadcast_to(spec.scaling.width if spec.scaling else 1.0, spec.size)
        name = _shown(spec.name or f"input {number}")
        numbered = [f"{name}[{place}]" for place in range(spec.size)] if spec.size > 1 else [name]
        names += [_numbered(name, *each) for name, *each in zip(numbered, shift, width, strict=True)]
    return names


def _numbered(name: str, shift: float, width: float) -> FeatureName:
    return FeatureName(column=name, shift=float(shift), width=float(width))


def _shown(name: str) -> str:
    """Names are whatever the data's owner wrote."""
    return one_line(name)[:MAX_SHOWN]
