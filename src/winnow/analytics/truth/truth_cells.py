"""The tables of a truth discovery and the lines beside them, for pages and terminals."""

from typing import Any

from winnow.analytics.truth.truth_report import TruthReport

MAX_ROWS = 5000
"""Of a table; CSV files have all."""
SHOWN = 20
"""Rows of a table in a terminal or a notebook."""
LAST = 1e9
"""The place of who has no rank or no trust."""


def item_cells(report: TruthReport) -> tuple[list[str], list[list[str]]]:
    """Items, the least confident first."""
    ordered = sorted(report.items, key=lambda record: (record["confidence"] is None, record["confidence"] or 0.0))
    rows = [[record["item"], _truth(record["truth"]), _share(record["confidence"])] for record in ordered]
    return ["item", "truth", "confidence"], rows[:MAX_ROWS]


def participant_cells(report: TruthReport) -> tuple[list[str], list[list[str]]]:
    """Participants, the most trusted first."""
    ordered = sorted(
        report.participants,
        key=lambda record: (record.get("rank") or LAST, -(-LAST if record["trust"] is None else record["trust"])),
    )
    rows = [[record["worker"], _share(record["trust"])] for record in ordered[:MAX_ROWS]]
    if not any("rank" in record for record in ordered):
        return ["participant", "trust"], rows
    ranks = [str(record.get("rank") or "–") for record in ordered[:MAX_ROWS]]
    return ["participant", "trust", "rank"], [[*row, rank] for row, rank in zip(rows, ranks, strict=True)]


def truth_notes(report: TruthReport) -> list[str]:
    """What a reader has to know beside the tables."""
    answer, lines = report.answer, []
    if answer.get("agreement") is not None:
        lines.append(f"{answer['agreement']:.1%} of the items have the label that most participants gave")
    if unanswered := sum(record["truth"] is None for record in report.items):
        few = f"fewer than {answer['minimum']:,} answered" if "minimum" in answer else "nobody answered"
        lines.append(f"{few} {unanswered:,} of the items")
    if (private := answer.get("private")) is not None:
        lines.append(
            f"private: {private['threshold']} of {private['holders']} holders opened each sum; "
            f"{private['stayed']:,} of {len(report.participants):,} participants stayed; "
            "trust is what each of them knows of itself"
        )
        if private["stopped"]:
            lines.append(f"stopped early: {private['stopped']}; the confidences are those of the iteration before")
    return lines


def _truth(value: Any) -> str:
    if value is None:
        return "–"
    return f"{value:.6g}" if isinstance(value, float) else str(value)


def _share(value: float | None) -> str:
    return "–" if value is None else f"{value:.3f}"
