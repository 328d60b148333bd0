"""The columns that trees split, and the target that they predict, as numbers."""

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from winnow.analytics.tables.declaration import ColumnDeclaration, TableDeclaration
from winnow.core import ConfigError, suggest

if TYPE_CHECKING:
    from winnow.analytics.tables.owner_table import OwnerTable

Cells = NDArray[np.float32]
"""As XGBoost compares them; NaN where a cell is missing."""


@dataclass(frozen=True, kw_only=True)
class TreeColumn:
    """A number between its bounds; of a category the place in its list of values."""

    name: str
    low: float
    high: float
    whole: bool
    """Whether there are whole numbers alone."""
    values: tuple[str, ...] = ()

    def cells(self, table: "OwnerTable") -> Cells:
        if not self.values:
            return table.numbers(self.name).astype(np.float32)
        codes = table.codes(self.name)
        return np.where(codes < 0, np.nan, codes).astype(np.float32)

    def record(self) -> dict[str, Any]:
        """What prediction needs: enough to make the same cells of other rows."""
        return {"name": self.name, "values": list(self.values)}


def tree_columns(
    declaration: TableDeclaration, target: str, named: Sequence[str]
) -> tuple[tuple[TreeColumn, ...], tuple[str, ...]]:
    """The columns to split, and the names of those that cannot be: all but the target if none are named."""
    if target in named:
        raise ConfigError(f"column '{target}' is the target; leave it out of columns")
    for name in named:
        if reason := _unusable(declaration.column(name)):
            raise ConfigError(f"column '{name}' {reason}")
    if named:
        return tuple(_column(name, declaration.column(name)) for name in named), ()
    usable, left_out = splittable_columns(declaration, {target})
    if not usable:
        raise ConfigError("there is no column to split: declare bounds or values")
    return usable, left_out


def splittable_columns(
    declaration: TableDeclaration, aside: Collection[str]
) -> tuple[tuple[TreeColumn, ...], tuple[str, ...]]:
    """All columns but those `aside` that can be split, and the names of those that cannot be."""
    declared = {name: each for name, each in declaration.columns.items() if name not in aside}
    usable = tuple(_column(name, each) for name, each in declared.items() if _unusable(each) is None)
    known = {column.name for column in usable}
    return usable, tuple(name for name, each in declared.items() if name not in known and each.level != "private")


def _unusable(declared: ColumnDeclaration) -> str | None:
    if declared.level == "private":
        return "is private and cannot be used in trees"
    if declared.bounds is None and declared.categories is None:
        return "has neither bounds nor values; write bounds = [low, high] or values = […] in its declaration"
    return None


def _column(name: str, declared: ColumnDeclaration) -> TreeColumn:
    if declared.categories is not None:
        values = tuple(str(each) for each in declared.categories)
        return TreeColumn(name=name, low=0.0, high=len(values) - 1.0, whole=True, values=values)
    assert declared.bounds is not None
    low, high = declared.bounds
    return TreeColumn(name=name, low=low, high=high, whole=declared.type == "integer")


@dataclass(frozen=True, kw_only=True)
class TreeTarget:
    """Classes, or a number between `low` and `high`."""

    name: str
    classes: tuple[str, ...] = ()
    """In the order of the model's outputs: of two, the second is the one whose probability is predicted."""
    codes: Mapping[int, int] | None = None
    """The class of each declared value."""
    low: float = 0.0
    high: float = 1.0

    def cells(self, table: "OwnerTable") -> NDArray[np.float64]:
        """The class or the number of each row, NaN where it is missing."""
        if self.codes is None:
            return np.round(table.numbers(self.name)) if self.classes else table.numbers(self.name)
        places = table.codes(self.name)
        known = np.full(max(self.codes) + 2, np.nan)
        for place, number in self.codes.items():
            known[place] = number
        return known[np.where(places < 0, len(known) - 1, places)]


def tree_target(declaration: TableDeclaration, name: str, positive: str | None) -> TreeTarget:
    """Two values are told apart, several predicted each with its probability; a number is predicted."""
    declared = declaration.column(name)
    if declared.level == "private":
        raise ConfigError(f"target '{name}' is private and cannot be predicted")
    if declared.categories is None and declared.bounds is None:
        raise ConfigError(f"target '{name}' is {declared.level} without a list of values, and without bounds")
    values = tuple(str(each) for each in declared.categories or ())
    if len(values) == 1:
        raise ConfigError(f"target '{name}' has one value alone; there is nothing to predict")
    if positive is not None and positive not in values:
        raise ConfigError(f"positive = '{positive}': {suggest(positive, values, at_most=12)}")
    if positive is not None:
        other = values[1 - values.index(positive)] if len(values) == 2 else f"not {positive}"
        codes = {place: int(value == positive) for place, value in enumerate(values)}
        return TreeTarget(name=name, classes=(other, positive), codes=codes)
    if values:
        return TreeTarget(name=name, classes=values, codes={place: place for place in range(len(values))})
    assert declared.bounds is not None
    if declared.bounds == (0.0, 1.0) and declared.type == "integer":
        return TreeTarget(name=name, classes=("0", "1"))
    return TreeTarget(name=name, low=declared.bounds[0], high=declared.bounds[1])
