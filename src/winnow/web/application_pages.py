"""Who applies for a kit, for the project's owner: approved where the CA is, refused from anywhere the role allows."""

from hashlib import sha256
from typing import Annotated, TypeAlias

from fastapi import APIRouter, Path, Request
from fastapi.responses import JSONResponse, Response

from winnow.core import ConfigError, WinnowError
from winnow.core.untrusted_text import one_line
from winnow.deploy.trust.application import Application, read_application
from winnow.deploy.trust.project_owner import ProjectOwner
from winnow.deploy.wire.messages import ApplicationInfo
from winnow.report.markup import MarkupCell, TableCell, paragraph, searchable_table
from winnow.report.number_format import MISSING
from winnow.web.federation_actions import change
from winnow.web.federation_pages import ViewOf, action_button, compact, live_changes, minute
from winnow.web.federation_view import FederationView
from winnow.web.live_stream import live_response
from winnow.web.page_layout import NavigationLink, PageSet, page_response

LIVE_SECONDS = 3.0
HEADER = ("Name", "As", "Organisation", "Contact", "State", "Received (UTC)", "Fingerprint of the key", "Decide")
WHERE_THE_CA_IS = "Approve where the project's CA is: winnow ui --kit KIT --control --project project.toml"
COMPARE = "Before you approve, compare the fingerprint with the applicant, by telephone."
ApplicationId: TypeAlias = Annotated[str, Path(pattern=r"\A[0-9a-f]{64}\z")]


def application_pages(view_of: ViewOf, owner: ProjectOwner | None = None) -> PageSet:
    router = APIRouter()

    @router.get("/applications")
    def application_list(request: Request) -> Response:
        view = view_of(request)
        body = _table(view, view.applications(), owner is not None)
        return page_response(
            request,
            title="Applications",
            lead=COMPARE if owner is not None and view.control else WHERE_THE_CA_IS,
            body=f'<div id="applications" class="wide" data-live="/applications/live">{body}</div>',
        )

    @router.get("/applications/live")
    def application_changes(request: Request) -> Response:
        return live_response(request, live_changes(view_of(request).applications), LIVE_SECONDS)

    @router.post("/applications/{application}/approve")
    def approve(request: Request, application: ApplicationId) -> JSONResponse:
        return change(view_of(request), lambda view: _approve(view, owner, application))

    @router.post("/applications/{application}/refuse")
    def refuse(request: Request, application: ApplicationId) -> JSONResponse:
        return change(view_of(request), lambda view: view.requests.refuse_application(application))

    return PageSet(links=(NavigationLink(title="Applications", address="/applications"),), router=router)


def _approve(view: FederationView, owner: ProjectOwner | None, application: str) -> str:
    """What is signed is what was shown, whatever the server lists now."""
    if owner is None:
        raise ConfigError(WHERE_THE_CA_IS)
    found = next((each for each in view.requests.applications() if each.application == application), None)
    if found is None or found.state != "waiting":
        raise ConfigError("no such application waits; somebody may have decided it already")
    package = owner.approve(_applied(found))
    return view.requests.approve_application(application, package)


def _applied(info: ApplicationInfo) -> Application:
    """The server lists what strangers signed, and could show one application and have another approved: the identifier,
    which the button repeats, is the digest of what was shown.
    """
    if sha256(info.content).hexdigest() != info.application:
        raise ConfigError("the server lists this application under the identifier of another; do not trust it")
    return read_application(info.content)


def _table(view: FederationView, applications: list[ApplicationInfo], can_approve: bool) -> str:
    if not applications:
        return paragraph("Nobody has applied yet.")
    rows = [_row(view, each, can_approve) for each in applications]
    texts = [title for title in HEADER if title != "State"]
    return compact(searchable_table("Those that wait first.", HEADER, rows, texts=texts, verdicts="State", folded=()))


def _row(view: FederationView, info: ApplicationInfo, can_approve: bool) -> list[TableCell]:
    try:
        applied = _applied(info)
    except WinnowError as error:  # a server can say anything
        return ["?", one_line(error), *[MISSING] * (len(HEADER) - 2)]
    party, waits = applied.party, info.state == "waiting" and view.control
    question = f"{party.name} of {party.organisation}, {party.role or 'a site'}"
    approve = action_button("Approve", f"/applications/{info.application}/approve", f"Approve {question}?")
    refuse = action_button("Refuse", f"/applications/{info.application}/refuse", f"Refuse {question}?")
    state = f"{one_line(info.state)}: {one_line(info.reason)}" if info.reason else one_line(info.state)
    return [
        party.name,
        party.role or "site",
        one_line(party.organisation),
        one_line(applied.contact) or MISSING,
        state,
        minute(info.received),
        applied.fingerprint,
        MarkupCell(f"{approve if can_approve else ''} {refuse}") if waits else MISSING,
    ]
