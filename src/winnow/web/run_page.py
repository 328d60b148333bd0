"""The page of one run: a training while it goes on and afterwards, or the answer to a question."""

from contextlib import suppress
from typing import BinaryIO

from fastapi import APIRouter, HTTPException, Request
from fastapi.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from winnow.analytics.answers import answer_parts
from winnow.analytics.question_run_folder import stored_answer
from winnow.core.untrusted_text import one_line
from winnow.report.markup import collapsible, figure_html, html_table, link_cell, paragraph, section
from winnow.report.number_format import size_text
from winnow.report.report import report_parts
from winnow.report.run_groups import group_plot_data
from winnow.runs import RunFolder
from winnow.web.damaged_run import damage_in_one_line
from winnow.web.live_run import follow_run, live_cards
from winnow.web.live_stream import live_response
from winnow.web.page_layout import PageSet, page_response
from winnow.web.run_files import DOWNLOADS, check_run_file, check_run_files, open_download
from winnow.web.run_index import IndexedRun, RunIndex
from winnow.web.run_reader import RunReader
from winnow.web.selection_map import selection_map

CHUNK = 2**18


def run_pages(index: RunIndex, reader: RunReader) -> PageSet:
    router = APIRouter()

    @router.get("/runs/{key}")
    def one_run(request: Request, key: str) -> Response:
        run = known_run(index, key)
        if run.state == "damaged":
            lead = f"This run cannot be read: {one_line(run.problem)}"
            return page_response(request, title=one_line(run.shown), lead=lead)
        with damage_in_one_line(run.shown):
            title, lead, body = _training(run, reader) if run.is_training else _answer(run)
        return page_response(request, title=one_line(title), lead=lead, body=body + _files(run))

    @router.get("/runs/{key}/live")
    def run_changes(request: Request, key: str, after: int = 0) -> Response:
        run = known_run(index, key)
        check_run_files(run.path)
        with suppress(ValueError):
            after = int(request.headers.get("last-event-id", after))
        with damage_in_one_line(run.shown):
            return live_response(request, follow_run(run, after))

    @router.get("/runs/{key}/files/{name}")
    def run_file(key: str, name: str) -> Response:
        run = known_run(index, key)
        file = open_download(run.path, name)
        if file is None:
            raise HTTPException(404, "There is no such file.")
        return FileDownload(file, name)

    return PageSet(links=(), router=router)


class FileDownload(StreamingResponse):
    """Send a file that `open_download` opened, and close it even if the browser never takes a byte."""

    def __init__(self, file: BinaryIO, name: str) -> None:
        headers = {"content-disposition": f'attachment; filename="{name}"'}
        super().__init__(iter(lambda: file.read(CHUNK), b""), media_type=DOWNLOADS[name], headers=headers)
        self._file = file

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        with self._file:
            await super().__call__(scope, receive, send)


def known_run(index: RunIndex, key: str) -> IndexedRun:
    run = index.find(key)
    if run is None:
        raise HTTPException(404, "There is no such run; it may have been removed.")
    return run


# A training -----------------------------------------------------------------------------------------------------------


def _training(run: IndexedRun, reader: RunReader) -> tuple[str, str, str]:
    from winnow.explain.report_with_privacy import explain_run  # noqa: PLC0415 - loads torch, which the list needs not
    from winnow.explain.unassessed_clients import why_not_assessed  # noqa: PLC0415

    view, drawn = reader.read(run)
    _, lead, body = report_parts(group_plot_data([(view, drawn)]), explain_run, why_not_assessed)
    figure = selection_map(view.events(), drawn.participation)
    caption = "Who was selected when; a stronger colour is more often"
    selected = section("Selection by round", figure_html(figure, caption)) if figure else ""
    title = f"{view.label.name}, {view.label.algorithm}, seed {view.label.seed}"
    live = "" if view.result is not None else live_cards(run, view, len(drawn.points))
    return title, f"{_state_text(run)} {lead}", live + body + selected


def _state_text(run: IndexedRun) -> str:
    return f"{run.state.capitalize()}; folder {one_line(run.shown)}."


# An answer ------------------------------------------------------------------------------------------------------------


def _answer(run: IndexedRun) -> tuple[str, str, str]:
    check_run_files(run.path)
    view = RunFolder.open(run.path)
    settings = section("Question", collapsible("Configuration", view.config_text))
    if view.result is None:
        body = paragraph("The answer is not there yet." if run.state == "running" else "The run was interrupted.")
        return view.label.name, _state_text(run), body + settings
    title, lead, body = answer_parts(stored_answer(run.path))
    return title, lead, body + settings


def _files(run: IndexedRun) -> str:
    there = [name for name in DOWNLOADS if check_run_file(run.path / name)]
    rows = [
        (link_cell(name, f"/runs/{run.key}/files/{name}"), size_text((run.path / name).lstat().st_size))
        for name in there
    ]
    return section("Files", html_table("Files of the run.", ("File", "Size"), rows))
