"""The list of questions: statements, statistics, fits and others that run folders hold."""

from collections.abc import Sequence

from fastapi import APIRouter, Request
from fastapi.responses import Response

from winnow.core.untrusted_text import one_line
from winnow.report.markup import TableCell, link_cell, paragraph, searchable_table
from winnow.web.page_layout import NavigationLink, PageSet, page_response
from winnow.web.run_index import IndexedRun, RunIndex

HEADER = ("Folder", "Kind", "Question", "State", "Started (UTC)")


def question_list_pages(index: RunIndex) -> PageSet:
    router = APIRouter()

    @router.get("/questions")
    def question_list(request: Request) -> Response:
        runs = [run for run in index.runs() if not run.is_training]
        told = "There are no answers here. Ask with winnow query, stats, fit or truth, and --folder DIR."
        table = searchable_table(
            "The latest first.",
            HEADER,
            [_row(run) for run in runs],
            texts=("Kind", "Question"),
            verdicts="State",
            folded=(),
        )
        body = f'<div id="questions" data-live="/live">{table if runs else paragraph(told)}</div>'
        return page_response(request, title="Questions", lead=f"{len(runs):,} questions.", body=body)

    return PageSet(links=(NavigationLink(title="Questions", address="/questions"),), router=router)


def _row(run: IndexedRun) -> Sequence[TableCell]:
    assert run.label is not None
    return (
        link_cell(one_line(run.shown), f"/runs/{run.key}"),
        one_line(run.label.kind),
        one_line(run.label.name),
        run.state,
        one_line(run.started[:16].replace("T", " ")),
    )
