"""Where strangers apply for a kit, and collect it: the only pages of a server that need no login."""

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from ipaddress import IPv6Address, ip_network

from fastapi import APIRouter, Request
from fastapi.responses import JSONResponse, Response
from pydantic import BaseModel, Field

from winnow.core import WinnowError
from winnow.core.untrusted_text import one_line
from winnow.deploy.server.application_store import ApplicationStore
from winnow.deploy.server.served_pages import PagesContext
from winnow.deploy.trust.application import MAX_APPLICATION, read_application
from winnow.report.markup import paragraph, section
from winnow.web.page_layout import NavigationLink, PageSet, page_response

APPLY, COLLECT = "/apply", "/collect"
TRIES, WINDOW_SECONDS = 20, 3600.0
"""Of one address; both handing in and collecting count."""
MAX_ADDRESSES = 10_000

COMMAND = '<pre>winnow apply NAME --organisation "YOUR ORGANISATION" --role member\nwinnow apply NAME --organisation "YOUR ORGANISATION" --site</pre>'  # noqa: E501
HAND_IN = f"""<form data-post="{APPLY}" class="stacked">
<label>Choose the file application.json<input type="file" accept=".json" data-into="application"></label>
<label>or paste what it holds<textarea name="application" rows="5" maxlength="{MAX_APPLICATION}" required
 spellcheck="false"></textarea></label>
<button type="submit">Hand in</button></form>"""
FETCH = f"""<form data-post="{COLLECT}" class="stacked">
<label>Your code<input name="code" maxlength="100" required autocomplete="off" spellcheck="false"></label>
<button type="submit">Collect the kit</button></form>"""


class HandedIn(BaseModel):
    application: str = Field(max_length=MAX_APPLICATION)


class CodeGiven(BaseModel):
    code: str = Field(max_length=100)


def apply_pages(context: PagesContext) -> PageSet:
    router, tries = APIRouter(), AddressLimit()

    @router.get(APPLY)
    def how_to_apply(request: Request) -> Response:
        body = (
            section("1. Make your keys", paragraph("On your own machine; they never leave it:"), COMMAND)
            + section("2. Apply", paragraph("The file holds no secret. You are shown a code: write it down."), HAND_IN)
            + section("3. Collect", paragraph("Once, after the project's owner has approved it:"), FETCH)
        )
        lead = f"For people and sites who want to take part in {one_line(context.kit.project)}."
        return page_response(request, title="Apply for a kit", lead=lead, body=body)

    @router.post(APPLY)
    def hand_in(request: Request, given: HandedIn) -> JSONResponse:
        def keep(store: ApplicationStore) -> dict[str, str]:
            content = given.application.strip().encode("utf-8", "surrogatepass")
            name = read_application(content).party.name
            code = store.add(content)
            context.audit(None, "application", name, "received")
            return {"note": f"Handed in. Your code, which is shown this once: {code}"}

        return _answer(context, tries, request, keep)

    @router.post(COLLECT)
    def collect(request: Request, given: CodeGiven) -> JSONResponse:
        def hand_out(store: ApplicationStore) -> dict[str, str]:
            name, package = store.collect(given.code.strip())
            context.audit(None, "kit", name, "handed out")
            note = f"Handed out, and deleted here. Go on with: winnow apply {name} --collected {name}.kit.json"
            return {"note": note, "file": f"{name}.kit.json", "content": package.decode()}

        return _answer(context, tries, request, hand_out)

    return PageSet(links=(NavigationLink(title="Apply", address=APPLY),), router=router)


def _answer(
    context: PagesContext,
    tries: "AddressLimit",
    request: Request,
    act: Callable[[ApplicationStore], dict[str, str]],
) -> JSONResponse:
    store = context.store()
    if store is None:
        return JSONResponse({"note": "this server is no longer the leader; load the page again"}, 503)
    if not tries.admit(_network(request)):
        return JSONResponse({"note": f"more than {TRIES} tries in an hour; come back later"}, 429)
    try:
        return JSONResponse(act(store))
    except WinnowError as error:
        return JSONResponse({"note": one_line(error)}, 400)


def _network(request: Request) -> str:
    """Whoever has one address of version 6 has all 2⁶⁴ of its network."""
    host = "" if request.client is None else request.client.host
    try:
        address = IPv6Address(host)
    except ValueError:
        return host
    return str(address.ipv4_mapped or ip_network((address, 64), strict=False))


class AddressLimit:
    """How often each network address has tried lately. Those longest unseen are forgotten."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lock = clock, threading.Lock()
        self._seen: OrderedDict[str, tuple[float, int]] = OrderedDict()

    def admit(self, address: str) -> bool:
        with self._lock:
            now = self._clock()
            begun, count = self._seen.pop(address, (now, 0))
            if now - begun > WINDOW_SECONDS:
                begun, count = now, 0
            self._seen[address] = (begun, count + 1)
            while len(self._seen) > MAX_ADDRESSES:
                self._seen.popitem(last=False)
            return count < TRIES
