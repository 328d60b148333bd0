"""The answer to a statistics question as an object: `report["age"].mean`."""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from winnow.core import ConfigError, suggest

if TYPE_CHECKING:
    import pandas
    import plotly.graph_objects as go


@dataclass(frozen=True)
class CellStatistics:
    """Statistics of a column in a group, or of all rows. None stands for what too few rows are behind.

    With noise, `error("mean")` is the half width of the 95 % interval.
    """

    record: Mapping[str, Any]

    @property
    def n(self) -> int | None:
        """Rows that have a value."""
        return self.record["n"]  # type: ignore[no-any-return]

    @property
    def missing(self) -> int | None:
        return self.record["missing"]  # type: ignore[no-any-return]

    @property
    def mean(self) -> float | None:
        return self.record.get("mean")

    @property
    def sd(self) -> float | None:
        """The standard deviation, with n − 1 in the denominator."""
        return self.record.get("sd")

    @property
    def quantiles(self) -> dict[float, float | None]:
        """By level: the smallest value that so large a part of the rows does not exceed."""
        return {float(level): value for level, value in self.record.get("quantiles", {}).items()}

    @property
    def histogram(self) -> list[int | None]:
        """Rows in each bin of the column's `edges`."""
        return list(self.record.get("histogram", ()))

    def error(self, name: str) -> float | None:
        return self.record.get(f"{name}_error")


@dataclass(frozen=True)
class ColumnStatistics(CellStatistics):
    """Statistics of a column over all rows; of each group in `groups`."""

    name: str
    column: Mapping[str, Any]

    @property
    def groups(self) -> dict[str, CellStatistics]:
        return {label: CellStatistics(cell) for label, cell in self.column["groups"].items()}

    @property
    def edges(self) -> list[float]:
        """Of the histogram's bins, which include their lower edge; the last one includes both."""
        return list(self.column.get("edges", ()))

    @property
    def is_category(self) -> bool:
        return bool(self.column["type"] == "category")

    @property
    def counts(self) -> dict[str, int | None]:
        """Rows by value, for a column with listed values; any others are under "other"."""
        return value_counts(self.column, self.record)


def value_counts(column: Mapping[str, Any], cell: Mapping[str, Any]) -> dict[str, int | None]:
    """Rows by value, in a group or over all."""
    if column["type"] != "category":
        return {}
    return {**dict(zip(column["values"], cell["counts"], strict=True)), "other": cell["other"]}


class StatisticsReport:
    """What owners of a table said together: a mapping of columns, and all else that was asked for."""

    def __init__(self, answer: Mapping[str, Any]) -> None:
        self.answer = answer

    def __getitem__(self, column: str) -> ColumnStatistics:
        columns = self.answer["columns"]
        if column not in columns:
            raise ConfigError(f"the report has no column '{column}'; {suggest(column, columns, at_most=12)}")
        return ColumnStatistics(columns[column]["all"], column, columns[column])

    def __iter__(self) -> Iterator[ColumnStatistics]:
        return (self[name] for name in self.answer["columns"])

    @property
    def correlation(self) -> dict[str, dict[str, float | None]]:
        """Pearson's r by two columns, over the rows that have both; empty where it was not asked for."""
        told = self.answer["correlation"]
        if told is None:
            return {}
        return {
            name: dict(zip(told["columns"], row, strict=True))
            for name, row in zip(told["columns"], told["matrix"], strict=True)
        }

    @property
    def tests(self) -> list[dict[str, Any]]:
        return list(self.answer["tests"])

    @property
    def scale(self) -> dict[str, dict[str, float]]:
        """Mean and sd of every column of numbers that has them: the common units of training jobs."""
        return {
            "mean": {column.name: column.mean for column in self if column.mean is not None},
            "sd": {column.name: column.sd for column in self if column.sd is not None},
        }

    def plot(self, column: str) -> "go.Figure":
        """The distribution of a column; by group where there are groups."""
        from winnow.analytics.stats.report_charts import column_figure  # noqa: PLC0415 - Plotly takes a while to import
        from winnow.report.notebook_plots import for_notebook  # noqa: PLC0415

        return for_notebook(column_figure(self[column]))

    def to_frame(self) -> "pandas.DataFrame":
        """One row per column and group."""
        try:
            import pandas  # noqa: PLC0415 - an extra
        except ImportError:
            raise ConfigError("to_frame needs pandas: pip install pandas") from None
        rows = []
        for column in self:
            for group, cell in (("", column), *column.groups.items()):
                told = {"n": cell.n, "missing": cell.missing, "mean": cell.mean, "sd": cell.sd}
                levels = {f"q{level:g}": value for level, value in cell.quantiles.items()}
                rows.append({"column": column.name, "group": group, **told, **levels})
        return pandas.DataFrame(rows).set_index(["column", "group"])

    def to_json(self) -> str:
        return json.dumps(self.answer, indent=2, ensure_ascii=False, allow_nan=False) + "\n"

    def write(self, path: str | Path) -> Path:
        """Write the report page: one file that opens offline."""
        from winnow.analytics.stats.page import write_statistics_page  # noqa: PLC0415

        return write_statistics_page(self, Path(path))

    def __repr__(self) -> str:
        return f"StatisticsReport({self.answer['table']!r}, {len(self.answer['columns'])} columns)"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        from winnow.analytics.stats.page import summary_html  # noqa: PLC0415

        return summary_html(self)
