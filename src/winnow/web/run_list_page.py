"""The list of runs."""

from collections.abc import Sequence
from html import escape
from typing import Any

from fastapi import APIRouter, Request
from fastapi.responses import Response

from winnow.core.untrusted_text import one_line
from winnow.report.markup import TableCell, checkbox_cell, link_cell, paragraph, searchable_table
from winnow.report.number_format import MISSING, number_text
from winnow.web.live_stream import Look, live_response
from winnow.web.page_layout import NavigationLink, PageSet, page_response
from winnow.web.run_filter import filter_runs
from winnow.web.run_index import IndexedRun, RunIndex

HEADER = ("Run", "Compare", "State", "Algorithm", "Seed", "Best", "Rounds", "Time", "Energy", "ε", "Started (UTC)")
SHOWN_AT_FIRST = 200
LIST_SECONDS = 1.0


def run_list_pages(index: RunIndex) -> PageSet:
    router = APIRouter()

    @router.get("/")
    def run_list(request: Request, q: str = "") -> Response:
        there = [run for run in index.runs() if run.is_training]
        runs = filter_runs(there, q)
        none = "No run is like that." if there else "There are no runs here yet. They appear as soon as one is started."
        body = _table(runs) if runs else paragraph(none)
        body = f'{_search(q)}<div id="runs" class="wide" data-live="/live">{body}</div>'
        return page_response(request, title="Runs", lead=_lead(runs, len(there)), body=body)

    @router.get("/live")
    def list_changes(request: Request) -> Response:
        return live_response(request, _changes(index), LIST_SECONDS)

    return PageSet(links=(NavigationLink(title="Runs", address="/"),), router=router)


def _changes(index: RunIndex) -> Look:
    seen = index.version

    def look() -> dict[str, Any] | None:
        nonlocal seen
        index.refresh()
        if index.version == seen:
            return None
        seen = index.version
        return {"reload": seen}

    return look


def _lead(runs: Sequence[IndexedRun], there: int) -> str:
    running = sum(run.state == "running" for run in runs)
    of_all = f" of {there:,}" if len(runs) < there else ""
    return f"{len(runs):,}{of_all} runs, {running:,} of them running."


def _search(query: str) -> str:
    hint = "Words, or settings: local.batch_size=16"
    return (
        f'<form class="search" action="/" method="get"><input type="search" name="q" value="{escape(query)}" '
        f'placeholder="{hint}" aria-label="{hint}"><button type="submit">Find</button></form>'
    )


def _table(runs: Sequence[IndexedRun]) -> str:
    table = searchable_table(
        "The latest first. Tick runs to compare them.",
        HEADER,
        [_row(run) for run in runs],
        texts=("Algorithm",),
        verdicts="State",
        folded=range(SHOWN_AT_FIRST, len(runs)),
    )
    compare = '<p><button type="submit">Compare</button></p>'
    return f'<form class="compact" action="/compare" method="get">{table}{compare}</form>'


def _row(run: IndexedRun) -> Sequence[TableCell]:
    name = link_cell(one_line(run.shown), f"/runs/{run.key}")
    label = run.label
    if label is None:
        return (name, "", run.state, one_line(run.problem), *[""] * (len(HEADER) - 4))
    return (
        name,
        checkbox_cell("run", run.key, f"Compare {one_line(run.shown)}"),
        run.state,
        one_line(label.algorithm),
        str(label.seed),
        MISSING if run.best is None else f"{run.best:.4f}",
        f"{run.rounds:,}",
        MISSING if label.clock == "none" else f"{number_text(run.seconds / 60)} min",
        f"{number_text(run.wh)} Wh" if run.wh else MISSING,
        ", ".join(f"{value:.3g}" for value in run.privacy.values()) or MISSING,
        one_line(run.started[:16].replace("T", " ")),
    )
