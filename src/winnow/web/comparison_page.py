"""Runs side by side: curves with their spread over seeds, the settings that differ, and the table to the target."""

from typing import Annotated

from fastapi import APIRouter, Query, Request
from fastapi.responses import Response

from winnow.core import RunError
from winnow.report.differing_settings import differing_settings
from winnow.report.markup import html_table, paragraph, section
from winnow.report.report import check_one_metric, report_parts
from winnow.report.run_groups import group_by_experiment
from winnow.runs import RunFolder, RunView
from winnow.web.page_layout import PageSet, page_response
from winnow.web.run_files import check_run_files
from winnow.web.run_index import RunIndex
from winnow.web.run_page import known_run

MAX_COMPARED = 200


def comparison_pages(index: RunIndex) -> PageSet:
    router = APIRouter()

    @router.get("/compare")
    def compare_runs(request: Request, run: Annotated[list[str], Query()] = []) -> Response:  # noqa: B006
        keys = list(dict.fromkeys(run))
        if len(keys) > MAX_COMPARED:
            raise RunError(f"{len(keys)} runs were chosen; at most {MAX_COMPARED} are compared at a time")
        views = [_view(index, key) for key in keys]
        if len(views) < 2:
            lead = "Tick two or more runs in the list, then choose Compare."
            return page_response(request, title="Comparison", lead=lead)
        check_one_metric(views)
        title, lead, body = report_parts(group_by_experiment(views))
        return page_response(request, title=title, lead=lead, body=_differences(views) + body)

    return PageSet(links=(), router=router)


def _view(index: RunIndex, key: str) -> RunView:
    run = known_run(index, key)
    if not run.is_training:
        raise RunError(f"{run.shown} answers a question; only trainings are compared")
    check_run_files(run.path)
    return RunFolder.open(run.path)


def _differences(views: list[RunView]) -> str:
    header, rows = differing_settings(views)
    if not rows:
        return section("Settings that differ", paragraph("None but the seed."))
    return section(
        "Settings that differ", html_table("Of each experiment's first run.", header, rows, texts=header[1:])
    )
