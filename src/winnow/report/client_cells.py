"""Clients as lines of a table, in the terminal, in the report and in a file for spreadsheets."""

import csv
import io
import math
from collections.abc import Iterable
from pathlib import Path

from winnow.core.join_names import listed
from winnow.core.untrusted_text import no_formula, one_line
from winnow.report.number_format import MISSING
from winnow.report.tables import Cells
from winnow.runs.atomic_write import one_line_errors, write_text_atomically
from winnow.runs.client_table import ACTION_TEXT, COLUMNS, ClientRow, ClientTable

NAMES_IN_LINE = 10


def client_row_cells(row: ClientRow) -> Cells:
    """The columns of `COLUMNS` as people read them."""
    return (
        one_line(row.name),
        MISSING if row.samples is None else f"{row.samples:,}",
        f"{row.invited:,}",
        client_score_text(row.score),
        one_line(row.verdict),
        one_line(row.evidence),
    )


def client_score_text(score: float) -> str:
    return f"{score:,.2f}" if math.isfinite(score) else MISSING


def policy_cells(table: ClientTable) -> list[Cells]:
    """What the run did about clients, in order: the round, the client, what was done and why."""
    names = {row.client: one_line(row.name) for row in table.rows}
    return [
        (str(each.round), names[each.client], action_text(each.action), one_line(each.reason)) for each in table.actions
    ]


def action_text(action: str) -> str:
    return ACTION_TEXT.get(action, one_line(action))


def policy_lines(table: ClientTable) -> list[str]:
    """The same in short: a line for what was done in a round, with the names of those whom it was done to."""
    done: dict[tuple[str, str], list[str]] = {}
    for number, name, action, _ in policy_cells(table):
        done.setdefault((number, action), []).append(name)
    return [f"{action} in round {number}: {listed(names, NAMES_IN_LINE)}" for (number, action), names in done.items()]


def write_client_csv(path: Path, rows: Iterable[ClientRow]) -> None:
    text = io.StringIO()
    writer = csv.writer(text)
    writer.writerow(COLUMNS)
    for row in rows:
        score = repr(row.score) if math.isfinite(row.score) else ""
        samples = "" if row.samples is None else row.samples
        name, verdict, evidence = (no_formula(one_line(each)) for each in (row.name, row.verdict, row.evidence))
        writer.writerow((name, samples, row.invited, score, verdict, evidence))
    with one_line_errors(path):
        write_text_atomically(path, text.getvalue())
