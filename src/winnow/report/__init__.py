"""Tables, figures and the report: what came of a run, for people."""

from winnow.report.numbers import Spread
from winnow.report.privacy import Explained
from winnow.report.report import write_report
from winnow.report.tables import (
    Cells,
    ComparisonRow,
    comparison_cells,
    comparison_table,
    cost_cells,
    participation_table,
)

__all__ = [
    "Cells",
    "ComparisonRow",
    "Explained",
    "Spread",
    "comparison_cells",
    "comparison_table",
    "cost_cells",
    "participation_table",
    "write_report",
]
