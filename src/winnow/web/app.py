"""The application: pages behind the guard."""

import logging
from collections.abc import Sequence

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from winnow.core import WinnowError
from winnow.core.untrusted_text import one_line
from winnow.deploy.wire.errors import RequestRefusedError
from winnow.web.page_layout import PageSet, page_response, shared_files
from winnow.web.request_guard import Access, RequestGuard
from winnow.web.sessions import TooMany

log = logging.getLogger(__name__)


def create_app(access: Access, page_sets: Sequence[PageSet]) -> RequestGuard:
    """An application that serves these pages to whoever may have them. The guard is around all of it: a page that
    fails is answered with the same headers.
    """
    app = FastAPI(docs_url=None, redoc_url=None, openapi_url=None)
    app.state.access = access
    app.state.links = [link for pages in page_sets for link in pages.links]
    for pages in page_sets:
        app.include_router(pages.router)
    app.include_router(shared_files)
    app.add_api_route("/logout", _log_out, methods=["POST"])
    app.add_exception_handler(WinnowError, _refused)
    app.add_exception_handler(RequestRefusedError, _not_allowed)
    app.add_exception_handler(TooMany, _too_many)
    app.add_exception_handler(RequestValidationError, _not_understood)
    app.add_exception_handler(HTTPException, _no_page)
    app.add_exception_handler(Exception, _failed)
    return RequestGuard(app, access)


def _log_out(request: Request) -> Response:
    """End this browser's login."""
    access: Access = request.app.state.access
    access.sessions.close(request.scope["winnow.secret"])
    response = Response(status_code=204)
    response.delete_cookie(access.cookie, secure=access.scheme == "https", httponly=True, samesite="strict")
    return response


def _refused(request: Request, error: Exception) -> Response:
    return page_response(request, title="This cannot be shown", lead=one_line(error), status=400)


def _not_allowed(request: Request, error: Exception) -> Response:
    """A federation's server refused: its policy decides what a person may see."""
    return page_response(request, title="Not for you", lead=one_line(error), status=403)


def _too_many(request: Request, error: Exception) -> Response:
    return page_response(request, title="Too much at once", lead=one_line(error), status=429)


def _not_understood(request: Request, error: Exception) -> Response:
    return page_response(request, title="Not understood", lead="The address asks for nothing known here.", status=400)


def _no_page(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    lead = error.detail if error.status_code == 404 and error.detail != "Not Found" else "There is no such page."
    return page_response(request, title="Nothing here", lead=one_line(lead), status=error.status_code)


def _failed(request: Request, error: Exception) -> Response:
    """A bug: the browser learns nothing of it, the terminal all."""
    log.error("page %s failed", one_line(request.scope["path"]), exc_info=error)
    return page_response(request, title="This page failed", lead="Where winnow ui runs, the log says why.", status=500)
