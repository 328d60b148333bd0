"""The cells of a report's tables, for the terminal and the page."""

from collections.abc import Mapping
from typing import Any

from winnow.analytics.stats.report import CellStatistics, ColumnStatistics, StatisticsReport, value_counts
from winnow.report.number_format import MISSING, number_text

HIDDEN = "hidden"
MAX_VALUES = 12
"""Values of a column that the terminal lists."""


def summary_cells(report: StatisticsReport) -> tuple[list[str], list[list[str]]]:
    """Header and rows of the table of numbers; groups follow their column."""
    columns = [column for column in report if not column.is_category]
    levels = list(columns[0].quantiles) if columns else []
    header = ["column", "n", "missing", "mean", "sd", *(f"{100 * level:g} %" for level in levels)]
    rows = list[list[str]]()
    for column in columns:
        rows.append(_row(column.name, column, report))
        rows += [_row(f"  {label}", cell, report) for label, cell in column.groups.items()]
    return header, rows


def _row(name: str, cell: CellStatistics, report: StatisticsReport) -> list[str]:
    quantiles = [HIDDEN if value is None else number_text(value) for value in cell.quantiles.values()]
    if cell.n is None:
        return [name, HIDDEN, HIDDEN, HIDDEN, HIDDEN, *quantiles]
    return [name, _count(cell, "n"), missing_text(cell, report), _noisy(cell, "mean"), _noisy(cell, "sd"), *quantiles]


def missing_text(cell: CellStatistics, report: StatisticsReport) -> str:
    """As a part of all rows; how few there are is hidden below the minimum."""
    if cell.missing is None:
        return f"< {report.answer['minimum']}"
    rows = cell.missing + (cell.n or 0)
    return f"{100 * cell.missing / rows:.1f} %" if rows else MISSING


def _count(cell: CellStatistics, name: str) -> str:
    error, count = cell.error(name), cell.record[name]
    text = f"{count:,}" if count is not None else HIDDEN
    return text if error is None else f"{text} ± {error:,.0f}"


def _noisy(cell: CellStatistics, name: str) -> str:
    value, error = cell.record[name], cell.error(name)
    if value is None:
        return HIDDEN
    return number_text(value) if error is None else f"{number_text(value)} ± {number_text(error)}"


def category_lines(report: StatisticsReport) -> list[str]:
    """A line for each column with listed values, and for each group of it."""
    lines = list[str]()
    for column in report:
        if column.is_category:
            lines.append(f"{column.name}: {_shares(column.column, column.record)}")
            lines += [f"  {label}: {_shares(column.column, cell)}" for label, cell in column.column["groups"].items()]
    return lines


def _shares(column: Mapping[str, Any], cell: Mapping[str, Any]) -> str:
    counts, rows = value_counts(column, cell), cell["n"]
    if not rows:
        return HIDDEN
    told = sorted(((count, value) for value, count in counts.items() if count), key=lambda each: -each[0])
    parts = [f"{value} {100 * count / rows:.1f} %" for count, value in told[:MAX_VALUES]]
    more = len(told) - len(parts)
    hidden = sum(count is None for count in counts.values())
    notes = [f"{more} more"] * (more > 0) + [f"{hidden} hidden"] * (hidden > 0)
    return ", ".join(parts) + (f" ({', '.join(notes)})" if notes else "")


def category_cells(column: ColumnStatistics) -> tuple[list[str], list[list[str]]]:
    """Counts by value, and by group."""
    cells = {"all": column.record, **column.column["groups"]}
    header = ["value", *(name if name != "all" or not column.groups else "all" for name in cells)]
    counted = [value_counts(column.column, cell) for cell in cells.values()]
    values = [value for value in counted[0] if value != "other" or any(each[value] for each in counted)]
    rows = [[value, *(HIDDEN if each[value] is None else f"{each[value]:,}" for each in counted)] for value in values]
    return header, rows


def test_lines(report: StatisticsReport) -> list[str]:
    names = {"chi2": "χ²", "t": "Welch's t", "anova": "F", "survival": "log-rank χ²"}
    lines = list[str]()
    for test in report.tests:
        what = f"{test['test']} {test['column']}" + (f" by {test['by']}" if test["by"] else "")
        if "reason" in test:
            lines.append(f"{what}: not told, {test['reason']}")
        elif "statistic" in test:
            freedom = test["freedom"]
            shown = ", ".join(f"{each:g}" for each in freedom) if isinstance(freedom, list) else f"{freedom:.4g}"
            p = "< 0.0001" if test["p"] < 1e-4 else f"= {test['p']:.4f}"
            lines.append(f"{what}: {names[test['test']]} = {test['statistic']:.4g} (df {shown}), p {p}")
        else:
            last = test["curves"]["all"]["survival"][-1]
            lines.append(f"{what}: {100 * last:.1f} % survive {number_text(test['times'][-1])}")
    return lines


def correlation_cells(report: StatisticsReport) -> tuple[list[str], list[list[str]]]:
    matrix = report.correlation
    rows = [
        [name, *(HIDDEN if value is None else f"{value:.3f}" for value in others.values())]
        for name, others in matrix.items()
    ]
    return ["", *matrix], rows


def notes(report: StatisticsReport) -> list[str]:
    """What a reader has to know beside the numbers."""
    answer, lines = report.answer, list[str]()
    if hidden := answer["hidden_cells"]:
        cells = "1 cell is" if hidden == 1 else f"{hidden:,} cells are"
        why = "rows by the noisy count" if "epsilon" in answer else "rows, or needed to hide another one"
        lines.append(f"{cells} hidden: fewer than {answer['minimum']} {why}")
    if "epsilon" in answer:
        lines.append(f"noise: ε = {answer['epsilon']:g} at δ = {answer['delta']:g}; ± is half of a 95 % interval")
    if answer["skipped"]:
        lines.append("left out: " + "; ".join(f"{name} {reason}" for name, reason in answer["skipped"].items()))
    if answer["per_owner"]:
        lines.append(_difference(report))
    return [line for line in lines if line]


def _difference(report: StatisticsReport) -> str:
    """In which column an owner's mean is farthest from that of all, in standard deviations."""
    distances = [
        (abs(told["mean"] - column.mean) / column.sd, column.name)
        for column in report
        if column.mean is not None and column.sd
        for told in (owner.get(column.name) for owner in report.answer["per_owner"].values())
        if told is not None
    ]
    if not distances:
        return ""
    largest, name = max(distances)
    return f"owners differ most in {name}: one's mean is {largest:.2f} sd from that of all"
