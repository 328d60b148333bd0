"""What a table is to those who ask about it: its columns, who may learn what of them, and whom noise protects.

    [tables.stays]
    file = "stays.csv"
    owner = "hospital"
    unit = "patient"
    rows = 3
    [tables.stays.columns]
    ward    = "public"
    age     = { level = "protected", bounds = [0, 110] }
    outcome = { level = "protected", values = ["home", "moved", "died"] }
    patient = { level = "private", key = true }

`file` and its like are the source (`source.py`); the rest is the declaration, which owners show each other.
"""

from collections import Counter
from datetime import UTC, date, datetime
from typing import Annotated, Any, Literal, get_args

from pydantic import Field, model_validator

from winnow.core import ConfigError, Settings, suggest
from winnow.core.untrusted_text import one_line

Level = Literal["public", "protected", "private"]
LEVELS: tuple[Level, ...] = get_args(Level)
"""From the most open to the strictest."""
ColumnType = Literal["number", "integer", "text", "date", "boolean"]

MAX_COLUMNS = 2000
MAX_VALUES = 10_000
MAX_NAME = 200
MAX_VALUE = 500
SET_COLUMN = "set"
"""The column that tells the rows of `sets` apart."""

Value = Annotated[str, Field(max_length=MAX_VALUE)] | int | float


class ColumnDeclaration(Settings):
    """A column. A level alone stands for the rest: ward = "public".

    Numbers outside of `bounds` are clipped to them; a cell that is none of `values` counts as another value.
    """

    level: Level
    type: ColumnType | None = None
    """Without it: what `values` or `bounds` are, else what the first rows look like."""
    bounds: tuple[float, float] | None = None
    """Of dates: days since 1970, or dates."""
    values: Annotated[tuple[Value, ...], Field(max_length=MAX_VALUES)] | None = None
    key: bool = False
    """Whether rows of several owners may be matched by this column."""
    together: Annotated[str, Field(min_length=1, max_length=MAX_NAME)] | None = None
    """What lies together: rows with the same value here, in this table and in others that say the same, are at one
    owner, so each owner can join them alone."""

    @model_validator(mode="before")
    @classmethod
    def _expanded(cls, given: Any) -> Any:
        if isinstance(given, str):
            return {"level": given}
        if isinstance(given, dict) and isinstance(given.get("bounds"), list | tuple):
            bounds = given["bounds"]
            if any(isinstance(each, date) for each in bounds):
                return {"type": "date", **given, "bounds": [_days(each) for each in bounds]}
        return given

    @model_validator(mode="after")
    def _consistent(self) -> "ColumnDeclaration":
        if self.bounds is not None and self.values is not None:
            raise ValueError("has bounds and values; keep bounds for numbers, values for categories")
        if self.bounds is not None and self.bounds[0] >= self.bounds[1]:
            low, high = self.bounds
            raise ValueError(f"bounds = [{low:g}, {high:g}] must name the smaller number first, and two different ones")
        if self.bounds is not None and self.type in ("text", "boolean"):
            raise ValueError(f"is {self.type}, which has no bounds; remove them, or say type = 'number'")
        if self.values is not None:
            self._check_values(self.values)
        return self

    def _check_values(self, values: tuple[Value, ...]) -> None:
        if not values:
            raise ValueError("values = [] is empty; list the values, or leave the key out")
        if len({*values}) < len(values):
            repeated = next(each for each, times in Counter(values).items() if times > 1)
            raise ValueError(f"values lists {repeated!r} twice; list every value once")
        texts = [isinstance(each, str) for each in values]
        if any(texts) and not all(texts):
            raise ValueError("values mixes text and numbers; write all of them in quotes, or none")
        if any(isinstance(each, str) and (each != each.strip() or not each.isprintable()) for each in values):
            raise ValueError("values has an entry with spaces around it, or that is not printable")
        if "" in values:
            raise ValueError('values lists ""; an empty cell is missing, and no value')
        if self.type in ("date", "boolean"):
            raise ValueError(f"is {self.type}, which cannot have values; remove them, or say type = 'text'")
        if self.type is not None and (self.type == "text") != all(texts):
            kind = "text" if all(texts) else "numbers"
            raise ValueError(f"is {self.type}, and its values are {kind}; make them agree")
        if self.type == "integer" and any(isinstance(each, float) and not each.is_integer() for each in values):
            raise ValueError("is integer, and one of its values is not whole; say type = 'number'")

    @property
    def categories(self) -> tuple[Value, ...] | None:
        """The values that cells are counted by: those listed; of booleans false and true."""
        return ("false", "true") if self.type == "boolean" else self.values

    @property
    def known_type(self) -> ColumnType | None:
        """The type as far as the declaration settles it."""
        if self.type is not None:
            return self.type
        if self.values is not None:
            if isinstance(self.values[0], str):
                return "text"
            return "integer" if all(isinstance(each, int) for each in self.values) else "number"
        return None if self.bounds is None else "number"


class TableDeclaration(Settings):
    """What owners of a table must agree on, and show each other. It says nothing about files or addresses."""

    columns: Annotated[dict[str, ColumnDeclaration], Field(min_length=1, max_length=MAX_COLUMNS)]
    unit: str | None = None
    """The column that says whom a row is about: noise hides all rows of one. Without it every row is its own unit."""
    rows: Annotated[int, Field(ge=1, le=1_000_000)] | None = None
    """At most so many rows of a unit count, where noise is added."""
    replicated: bool = False
    """Whether every owner has the same rows, which are public."""

    @model_validator(mode="after")
    def _consistent(self) -> "TableDeclaration":
        for name in self.columns:
            if not name.strip() or name != name.strip() or len(name) > MAX_NAME or not name.isprintable():
                raise ValueError(f"columns: a name must be 1 to {MAX_NAME} printable letters without spaces around it")
        if self.unit is not None and self.unit not in self.columns:
            instead = suggest(self.unit, self.columns, at_most=12)
            raise ValueError(f"unit = {self.unit!r} is not a declared column; {instead}")
        if self.rows is not None and self.unit is None:
            raise ValueError("rows needs unit: the column that says whom a row is about")
        if len(placed := [name for name, each in self.columns.items() if each.together is not None]) > 1:
            raise ValueError(f"columns {placed[0]!r} and {placed[1]!r} both say together; one column of a table can")
        if self.replicated and any(each.level != "public" for each in self.columns.values()):
            named = next(name for name, each in self.columns.items() if each.level != "public")
            raise ValueError(f"replicated rows are known to all owners: column {named!r} must be public")
        if self.replicated and (self.unit is not None or placed):
            raise ValueError("replicated rows are nobody's: remove unit and together")
        return self

    def column(self, name: str) -> ColumnDeclaration:
        """The declaration of a column; ConfigError with the nearest name if there is none."""
        if name not in self.columns:
            raise ConfigError(f"there is no column '{one_line(name)}'; {suggest(name, self.columns, at_most=12)}")
        return self.columns[name]


def _days(moment: Any) -> Any:
    """A date as days since 1970; anything else is left for the validation to refuse."""
    if isinstance(moment, datetime):
        aware = moment if moment.tzinfo else moment.replace(tzinfo=UTC)
        return aware.timestamp() / 86_400
    return float((moment - date(1970, 1, 1)).days) if isinstance(moment, date) else moment
