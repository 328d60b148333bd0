"""The answer to a statement as an object: `.table`, `.to_pandas()`, what was left out, and how sure numbers are."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

import msgspec

from winnow.core import ConfigError, RunError
from winnow.core.join_names import counted
from winnow.core.untrusted_text import no_formula, one_line, printable

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects as go
    import pyarrow as arrow

ENDINGS = (".parquet", ".csv")
Cell: TypeAlias = bool | int | float | str | dict[str, int] | None
Count: TypeAlias = Annotated[int, msgspec.Meta(ge=0, le=2**53)]
Deviation: TypeAlias = Annotated[float, msgspec.Meta(ge=0)]


class _Told(msgspec.Struct, kw_only=True):
    """The shape of an answer, as far as it is shown."""

    columns: list[str]
    rows: list[dict[str, Cell]]
    errors: list[dict[str, Deviation]]
    left_out: Count
    hidden_values: Count
    minimum: Count
    unlisted_rows: bool
    sql: str
    table: str
    owners: list[str]
    plan: list[str]
    overlapping: Count = 0
    too_few_rows: bool = False
    more_rows: bool = False
    distance_precision: float = 0.0
    epsilon: float | None = None
    delta: float | None = None


class QueryAnswer:
    """What owners of a table said together. RunError if it is no answer to a statement: a server can send anything."""

    def __init__(self, answer: Mapping[str, Any]) -> None:
        _check_shape(answer)
        self.answer = answer

    @property
    def columns(self) -> list[str]:
        return list(self.answer["columns"])

    @property
    def rows(self) -> list[dict[str, Any]]:
        """By column; None is NULL, or a number that too few rows stand behind."""
        return list(self.answer["rows"])

    @property
    def errors(self) -> list[dict[str, float]]:
        """The standard error of each number, by row and column; samples and noise have them."""
        return list(self.answer["errors"])

    @property
    def left_out(self) -> int:
        """How many groups are not told, because fewer rows than the owners' minimum stand behind them."""
        return int(self.answer["left_out"])

    @property
    def table(self) -> "arrow.Table":
        """The rows with Arrow's types; standard errors are in columns "± name"."""
        import pyarrow as arrow  # noqa: PLC0415 - needs the extra `query`

        rows = self.told_rows()
        return arrow.table({name: _cells(name, [row.get(name) for row in rows]) for name in self.told_columns()})

    def told_columns(self) -> list[str]:
        """The columns, each followed by that of its standard errors if there is any."""
        with_errors = {name for row in self.errors for name in row}
        return [each for name in self.columns for each in ([name, f"± {name}"] if name in with_errors else [name])]

    def told_rows(self) -> list[dict[str, Any]]:
        pairs = zip(self.rows, self.errors, strict=True)
        return [{**row, **{f"± {name}": error for name, error in errors.items()}} for row, errors in pairs]

    def to_pandas(self) -> "pandas.DataFrame":
        try:
            import pandas  # noqa: PLC0415 - an extra
        except ImportError:
            raise ConfigError("to_pandas needs pandas: pip install pandas") from None
        return pandas.DataFrame(self.told_rows(), columns=self.told_columns())

    def explain(self) -> str:
        """What the parties did, and who learnt what."""
        return printable("\n".join(self.answer["plan"]))

    def notes(self) -> list[str]:
        """What a reader should know of the table, a line each."""
        groups, hidden, minimum = self.left_out, self.answer["hidden_values"], self.answer["minimum"]
        found = []
        overlapping = self.answer.get("overlapping", 0)
        if groups > overlapping:
            or_none = " or none" if "epsilon" in self.answer else ""
            found.append(f"{counted(groups - overlapping, 'group')} left out: fewer than {minimum} rows{or_none}.")
        if overlapping:
            found.append(
                f"{counted(overlapping, 'group')} left out: beside others, fewer than {minimum} rows would be told of."
            )
        if hidden:
            found.append(f"{hidden} value{'s' * (hidden != 1)} hidden: fewer than {minimum} rows would be told of.")
        if self.answer.get("too_few_rows"):
            found.append(f"No rows are shown: fewer than {minimum} are selected.")
        elif self.answer.get("more_rows"):
            found.append("More rows are selected than are shown.")
        if precision := self.answer.get("distance_precision", 0.0):
            found.append(f"Distances are those of the middles of cells: exact to {precision:.3g}.")
        if self.answer["unlisted_rows"]:
            found.append("Rows with values that are not listed are left out.")
        if "epsilon" in self.answer:
            found.append(
                f"Noise: ε = {self.answer['epsilon']:g}, δ = {self.answer['delta']:g}. ± is the standard error."
            )
        elif any(self.errors):
            found.append("Estimated from a sample. ± is the standard error.")
        return found

    def write(self, path: str | Path) -> Path:
        """As Parquet or CSV, by the ending of its name."""
        from winnow.runs.atomic_write import one_line_errors, write_atomically  # noqa: PLC0415

        path = Path(path)
        check_ending(path)
        with one_line_errors(path):
            write_atomically(path, lambda temporary: self._write_table(temporary, path.suffix))
        return path

    def _write_table(self, path: Path, ending: str) -> None:
        from pyarrow import csv, parquet  # noqa: PLC0415

        if ending == ".csv":
            csv.write_csv(_without_formulas(_without_maps(self.table)), path)
        else:
            parquet.write_table(self.table, path)

    def __repr__(self) -> str:
        return f"QueryAnswer({len(self.rows)} rows: {', '.join(self.columns)})"

    def plot(self, column: str | None = None) -> "go.Figure":
        """A column of numbers by group, the first one if none is named; with standard errors if there are any."""
        from winnow.analytics.sql.answer_in_notebook import answer_figure  # noqa: PLC0415 - Plotly takes a while to import

        return answer_figure(self, column)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from winnow.analytics.sql.answer_in_notebook import answer_html  # noqa: PLC0415

        return answer_html(self)


def _check_shape(answer: Mapping[str, Any]) -> None:
    try:
        told = msgspec.convert(answer, _Told)
    except msgspec.ValidationError as error:
        raise RunError(f"the answer has not the shape of an answer to a statement: {one_line(error)}") from None
    if len(told.rows) != len(told.errors) or any({*row} != {*told.columns} for row in told.rows):
        raise RunError("the answer has not the shape of an answer to a statement: rows and columns do not fit")
    if any(not {*row} <= {*told.columns} for row in told.errors):
        raise RunError("the answer has not the shape of an answer to a statement: errors and columns do not fit")
    noise = [answer[name] for name in ("epsilon", "delta") if name in answer]
    if len(noise) == 1 or None in noise:
        raise RunError("the answer has not the shape of an answer to a statement: its noise is not fully told")


def _cells(name: str, values: Sequence[Any]) -> "arrow.Array":
    """A column; histograms are maps from the edge of a bin to its rows."""
    import pyarrow as arrow  # noqa: PLC0415

    try:
        if any(isinstance(each, dict) for each in values):
            pairs = [None if each is None else [*each.items()] for each in values]
            return arrow.array(pairs, arrow.map_(arrow.string(), arrow.int64()))
        return arrow.array(values)
    except (arrow.ArrowException, AttributeError, OverflowError, TypeError):
        raise ConfigError(f"column '{one_line(name)}' of the answer holds values of several types") from None


def _without_maps(table: "arrow.Table") -> "arrow.Table":
    """Histograms as JSON: a cell of CSV holds no map."""
    import pyarrow as arrow  # noqa: PLC0415

    for place, column in enumerate(table.columns):
        if arrow.types.is_map(column.type):
            texts = [None if each is None else json.dumps(dict(each)) for each in column.to_pylist()]
            table = table.set_column(place, table.column_names[place], arrow.array(texts, arrow.string()))
    return table


def _without_formulas(table: "arrow.Table") -> "arrow.Table":
    """Texts are other parties': a spreadsheet shows them, and runs none."""
    import pyarrow as arrow  # noqa: PLC0415

    for place, column in enumerate(table.columns):
        if arrow.types.is_string(column.type):
            texts = [None if each is None else no_formula(each) for each in column.to_pylist()]
            table = table.set_column(place, table.column_names[place], arrow.array(texts, arrow.string()))
    return table.rename_columns([no_formula(each) for each in table.column_names])


def check_ending(path: Path) -> None:
    if path.suffix not in ENDINGS:
        raise ConfigError(f"{path.name} must end in {' or '.join(ENDINGS)}")
