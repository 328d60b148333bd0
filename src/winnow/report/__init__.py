"""Tables, figures and the report: what came of a run, for people."""

from winnow.report.number_format import MeanAndSd
from winnow.report.paired_differences import PairedDifference, difference_cells, paired_differences
from winnow.report.privacy_section import PrivacyExplanation
from winnow.report.report import write_report
from winnow.report.summary_section import comparison_of
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
    "MeanAndSd",
    "PairedDifference",
    "PrivacyExplanation",
    "comparison_cells",
    "comparison_of",
    "comparison_table",
    "cost_cells",
    "difference_cells",
    "paired_differences",
    "participation_table",
    "write_report",
]
