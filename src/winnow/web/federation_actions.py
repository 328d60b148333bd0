"""What may be changed from the pages of a federation: the guard checks origin and CSRF token, the server the role."""

from collections.abc import Callable

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse

from winnow.core import WinnowError
from winnow.core.untrusted_text import one_line
from winnow.deploy.wire.errors import RequestRefusedError
from winnow.web.federation_pages import PartyName, ViewOf
from winnow.web.federation_view import FederationView
from winnow.web.page_layout import PageSet

READ_ONLY = "these pages were started without --control (on a server, [ui] control); nothing is changed from here"


def federation_actions(view_of: ViewOf) -> PageSet:
    """Without --control only budgets may be asked for, which opens and spends nothing."""
    router = APIRouter()

    @router.post("/budgets")
    def ask_budgets(request: Request) -> JSONResponse:
        view = view_of(request)
        return done(view, view.ask_budgets)

    @router.post("/jobs/{name}/abort")
    def abort_job(request: Request, name: PartyName) -> JSONResponse:
        return change(view_of(request), lambda view: f"{name}: {view.requests.job(name).abort('from the pages')}")

    @router.post("/jobs/{name}/clone")
    def clone_job(request: Request, name: PartyName) -> JSONResponse:
        return change(view_of(request), lambda view: f"submitted {view.signing.clone(name).name}")

    @router.post("/sites/{name}/stop")
    def stop_site(request: Request, name: PartyName) -> JSONResponse:
        return change(view_of(request), lambda view: view.requests.stop_site(name))

    @router.post("/sites/{name}/restart")
    def restart_site(request: Request, name: PartyName) -> JSONResponse:
        return change(view_of(request), lambda view: view.requests.restart_site(name))

    return PageSet(links=(), router=router)


def change(view: FederationView, make: Callable[[FederationView], str]) -> JSONResponse:
    if not view.control:
        return JSONResponse({"note": READ_ONLY}, 403)
    return done(view, lambda: make(view))


def done(view: FederationView, make: Callable[[], str]) -> JSONResponse:
    """What came of it, in a sentence for the page."""
    try:
        note = make()
    except RequestRefusedError as refused:
        return JSONResponse({"note": one_line(refused)}, 403)
    except WinnowError as error:
        return JSONResponse({"note": one_line(error)}, 400)
    finally:
        view.forget()
    return JSONResponse({"note": one_line(note)})
