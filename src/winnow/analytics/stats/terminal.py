"""A statistics report as a terminal shows it."""

from rich.console import Group, RenderableType

from winnow.analytics.stats.report import StatisticsReport
from winnow.analytics.stats.tables import category_lines, correlation_cells, notes, summary_cells, test_lines
from winnow.terminal_tables import plain_text, table


def report_text(report: StatisticsReport) -> RenderableType:
    header, rows = summary_cells(report)
    parts: list[RenderableType] = [table(header, rows)] if rows else []
    parts += [plain_text(line) for line in category_lines(report)]
    if report.correlation:
        parts.append(table(*correlation_cells(report)))
    parts += [plain_text(line) for line in (*test_lines(report), *notes(report))]
    return Group(*parts)
