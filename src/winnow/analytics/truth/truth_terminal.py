"""A truth discovery as a terminal shows it."""

from rich.console import Group, RenderableType

from winnow.analytics.truth.truth_cells import SHOWN, item_cells, participant_cells, truth_notes
from winnow.analytics.truth.truth_report import TruthReport
from winnow.terminal_tables import plain_text, table


def truth_text(report: TruthReport) -> Group:
    lines: list[RenderableType] = []
    for what, (header, rows) in (("items", item_cells(report)), ("participants", participant_cells(report))):
        lines.append(table(header, rows[:SHOWN], numbers=("confidence", "trust", "rank")))
        if (more := len(report.answer[what]) - SHOWN) > 0:
            lines.append(plain_text(f"… and {more:,} more {what} (--csv FOLDER, --json)\n"))
    return Group(*lines, *(plain_text(line) for line in truth_notes(report)))
