"""Tables, figures and the report: what came of a run, for people."""

from winnow.report.numbers import Spread
from winnow.report.report import write_report
from winnow.report.tables import ComparisonRow, comparison_header, comparison_table, cost_table, participation_table

__all__ = [
    "ComparisonRow",
    "Spread",
    "comparison_header",
    "comparison_table",
    "cost_table",
    "participation_table",
    "write_report",
]
