"""The page of a statistics report."""

from pathlib import Path

from winnow.analytics.stats.report import ColumnStatistics, StatisticsReport
from winnow.analytics.stats.report_charts import column_figure, correlation_figure, survival_figure
from winnow.analytics.stats.tables import (
    category_cells,
    category_lines,
    correlation_cells,
    missing_text,
    notes,
    summary_cells,
    test_lines,
)
from winnow.core.join_names import counted
from winnow.report.html_page import page
from winnow.report.markup import (
    bullet_list,
    card,
    cards,
    figure_html,
    html_table,
    section,
    side_by_side,
    subheading,
)
from winnow.report.number_format import number_text
from winnow.runs.atomic_write import write_text_atomically


def write_statistics_page(report: StatisticsReport, path: Path) -> Path:
    """Write the page; one file that opens offline."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_text_atomically(path, statistics_page(report))
    return path


def statistics_page(report: StatisticsReport) -> str:
    return page(*statistics_parts(report))


def statistics_parts(report: StatisticsReport) -> tuple[str, str, str]:
    """The page's title, the line below it, and its sections."""
    answer = report.answer
    owners = answer["owners"]
    by = f", by {', '.join(answer['by'])}" if answer["by"] else ""
    columns, of_owners = counted(len(answer["columns"]), "column"), counted(len(owners), "owner")
    lead = f"Statistics of {columns}{by}, from {of_owners}: {', '.join(owners)}"
    pieces = [_overview(report), _columns(report)]
    if report.correlation:
        figure = figure_html(correlation_figure(report), "Pearson's r of each two columns, over rows that have both.")
        pieces.append(section("Correlation", figure, html_table("Correlation", *correlation_cells(report))))
    if report.tests:
        curves = [
            figure_html(survival_figure(test), f"Survival by {test['column']}, with 95 % intervals.")
            for test in report.tests
            if "curves" in test
        ]
        pieces.append(section("Tests", bullet_list(test_lines(report)), *curves))
    if answer["per_owner"]:
        pieces.append(section("By owner", _owners(report)))
    return f"Statistics of {answer['table']}", lead, "".join(pieces)


def summary_html(report: StatisticsReport) -> str:
    """The table of numbers, and a line for each column with listed values."""
    header, rows = summary_cells(report)
    table = html_table(f"Table {report.answer['table']}", header, rows) if rows else ""
    return table + bullet_list([*category_lines(report), *test_lines(report), *notes(report)])


def _overview(report: StatisticsReport) -> str:
    answer = report.answer
    rows = [column.n for column in report if column.n is not None]
    pieces = [
        card("Rows", f"{max(rows, default=0):,}", "with a value in the fullest column"),
        card("Owners", str(len(answer["owners"])), "whose rows stay with them"),
        card("Least rows of a cell", str(answer["minimum"]), f"{answer['hidden_cells']:,} cells are hidden"),
    ]
    if "epsilon" in answer:
        pieces.append(card("Privacy cost", f"ε = {answer['epsilon']:g}", f"at δ = {answer['delta']:g}; ± is 95 %"))
    return section("Overview", cards(pieces), bullet_list(notes(report)))


def _columns(report: StatisticsReport) -> str:
    header, rows = summary_cells(report)
    indented = [[row[0].replace("  ", "\N{EM SPACE}"), *row[1:]] for row in rows]
    table = html_table("Numbers", header, indented) if rows else ""
    categories = [subheading(column.name) + _category(column, report) for column in report if column.is_category]
    plots = [
        figure_html(column_figure(column), f"Distribution of {column.name}.{_blank_bins(column)}")
        for column in report
        if not column.is_category and column.histogram
    ]
    return section("Columns", table, side_by_side(*plots) if plots else "", *categories)


def _blank_bins(column: ColumnStatistics) -> str:
    """A bin that is hidden looks like one without rows."""
    hidden = sum(count is None for count in column.histogram)
    return f" {counted(hidden, 'bin')} hidden, drawn blank." if hidden else ""


def _category(column: ColumnStatistics, report: StatisticsReport) -> str:
    caption = f"{column.name}: rows by value; {missing_text(column, report)} missing"
    table = html_table(caption, *category_cells(column))
    return side_by_side(figure_html(column_figure(column), f"Rows by {column.name}."), table)


def _owners(report: StatisticsReport) -> str:
    names = [column.name for column in report if not column.is_category]
    rows = [
        [owner, *("hidden" if told[name] is None else _mean_sd(told[name]) for name in names)]
        for owner, told in report.answer["per_owner"].items()
    ]
    return html_table("Mean (sd; n) of each owner", ["owner", *names], rows)


def _mean_sd(told: dict[str, float]) -> str:
    return f"{number_text(told['mean'])} ({number_text(told['sd'])}; {told['n']:,})"
