"""What may be changed from the pages of a federation: the guard checks origin and CSRF token, the server the role."""

from collections.abc import Callable

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from winnow.core import WinnowError
from winnow.core.untrusted_text import one_line
from winnow.deploy.wire.errors import RequestRefusedError
from winnow.web.federation_pages import PartyName
from winnow.web.federation_view import FederationView
from winnow.web.page_layout import PageSet

READ_ONLY = "these pages were started without --control; nothing is changed from here"


def federation_actions(view: FederationView) -> PageSet:
    """Without --control only budgets may be asked for, which opens and spends nothing."""
    router = APIRouter()

    @router.post("/budgets")
    def ask_budgets() -> JSONResponse:
        return _done(view, view.ask_budgets)

    @router.post("/jobs/{name}/abort")
    def abort_job(name: PartyName) -> JSONResponse:
        return _change(view, lambda: f"{name}: {view.connection.job(name).abort('from the pages')}")

    @router.post("/jobs/{name}/clone")
    def clone_job(name: PartyName) -> JSONResponse:
        return _change(view, lambda: f"submitted {view.connection.clone(name).name}")

    @router.post("/sites/{name}/stop")
    def stop_site(name: PartyName) -> JSONResponse:
        return _change(view, lambda: view.connection.stop_site(name))

    @router.post("/sites/{name}/restart")
    def restart_site(name: PartyName) -> JSONResponse:
        return _change(view, lambda: view.connection.restart_site(name))

    return PageSet(links=(), router=router)


def _change(view: FederationView, change: Callable[[], str]) -> JSONResponse:
    if not view.control:
        return JSONResponse({"note": READ_ONLY}, 403)
    return _done(view, change)


def _done(view: FederationView, change: Callable[[], str]) -> JSONResponse:
    try:
        note = change()
    except RequestRefusedError as refused:
        return JSONResponse({"note": one_line(refused)}, 403)
    except WinnowError as error:
        return JSONResponse({"note": one_line(error)}, 400)
    finally:
        view.forget()
    return JSONResponse({"note": one_line(note)})
