"""Runs side by side: curves with their spread over seeds, the settings that differ, and the table to the target."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from winnow.core import RunError
from winnow.report.differing_settings import differing_settings
from winnow.report.markup import TableCell, html_table, paragraph, section, setting_cell
from winnow.report.report import check_one_metric, report_parts
from winnow.report.run_groups import group_plot_data
from winnow.runs import RunView
from winnow.web.damaged_run import damage_in_one_line
from winnow.web.page_layout import PageSet, page_response
from winnow.web.run_index import IndexedRun, RunIndex
from winnow.web.run_page import known_run
from winnow.web.run_reader import RunReader

MAX_COMPARED = 200


def comparison_pages(index: RunIndex, reader: RunReader) -> PageSet:
    router = APIRouter()

    @router.get("/compare")
    def compare_runs(request: Request, run: Annotated[list[str], Query()] = []) -> Response:  # noqa: B006
        keys = list(dict.fromkeys(run))
        if len(keys) > MAX_COMPARED:
            raise RunError(f"{len(keys)} runs were chosen; at most {MAX_COMPARED} are compared at a time")
        runs = [reader.read(_training(index, key)) for key in keys]
        views = [view for view, _ in runs]
        if len(views) < 2:
            lead = "Tick two or more runs in the list, then choose Compare."
            return page_response(request, title="Comparison", lead=lead)
        check_one_metric(views)
        with damage_in_one_line("one of these runs"):
            title, lead, body = report_parts(group_plot_data(runs))
            differences = _differences(views)
        return page_response(request, title=title, lead=lead, body=differences + body)

    return PageSet(links=(), router=router)


def _training(index: RunIndex, key: str) -> IndexedRun:
    run = known_run(index, key)
    if not run.is_training:
        raise RunError(f"{run.shown} answers a question; only trainings are compared")
    if run.state == "damaged":
        raise RunError(f"{run.shown} cannot be read: {run.problem}")
    return run


def _differences(views: list[RunView]) -> str:
    header, rows = differing_settings(views)
    if not rows:
        return section("Settings that differ", paragraph("None but the seed."))
    named: list[list[TableCell]] = [[setting_cell(name), *values] for name, *values in rows]
    table = html_table("Of each experiment's first run.", header, named, texts=header[1:])
    return section("Settings that differ", f'<div class="settings">{table}</div>')
