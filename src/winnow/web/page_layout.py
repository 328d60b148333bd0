"""The frame of every page, and the files that all pages share."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from html import escape
from importlib.resources import files

from fastapi import APIRouter, Request
from fastapi.responses import HTMLResponse, Response
from plotly.offline import get_plotlyjs

from winnow.report.html_page import page_script, page_style


@dataclass(frozen=True, kw_only=True)
class NavigationLink:
    """An entry of the menu."""

    title: str
    address: str


@dataclass(frozen=True, kw_only=True)
class PageSet:
    """Pages that belong together: their entries of the menu, and their routes."""

    links: Sequence[NavigationLink]
    router: APIRouter


LOG_OUT = '<button type="button" data-post="/logout" data-confirm="Log out of these pages?">Log out</button>'


def page_response(request: Request, *, title: str, lead: str = "", body: str = "", status: int = 200) -> HTMLResponse:
    """A page with the menu around it. `title` and `lead` are escaped here; `body` comes out of `report.markup`."""
    links: Sequence[NavigationLink] = request.app.state.links
    session = request.scope.get("winnow.session")
    csrf = f'<meta name="csrf-token" content="{escape(session.csrf)}">' if session else ""
    scripts = ["plotly.js", "script.js"] if 'class="plot"' in body else ["script.js"]
    tags = "".join(f'<script src="{_address(name)}" defer></script>' for name in scripts)
    text = f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
{csrf}
<title>{escape(title)} · Winnow</title>
<link rel="icon" href="{_address("icon.svg")}">
<link rel="stylesheet" href="{_address("style.css")}">
{tags}
</head>
<body>
{_menu(links, request.scope["path"]) if session else ""}
<main>
<header><h1>{escape(title)}</h1><p>{escape(lead)}</p></header>
<p id="notice" role="status" hidden></p>
{body}
</main>
</body>
</html>
"""
    return HTMLResponse(text, status)


def _menu(links: Sequence[NavigationLink], shown: str) -> str:
    """Whoever is not logged in has none: they see the one page that needs no login."""
    return f'<nav aria-label="Pages">{"".join(_entry(link, shown) for link in links)}{LOG_OUT}</nav>'


def _entry(link: NavigationLink, shown: str) -> str:
    here = ' aria-current="page"' if link.address == shown else ""
    return f'<a href="{escape(link.address)}"{here}>{escape(link.title)}</a>'


# Files --------------------------------------------------------------------------------------------------------------

shared_files = APIRouter()


@shared_files.get("/static/{name}")
def shared_file(name: str) -> Response:
    if name not in MEDIA_TYPES:
        return Response(status_code=404)
    return Response(
        _content(name), media_type=MEDIA_TYPES[name], headers={"cache-control": "private, max-age=31536000"}
    )


MEDIA_TYPES = {
    "style.css": "text/css",
    "script.js": "text/javascript",
    "plotly.js": "text/javascript",
    "icon.svg": "image/svg+xml",
}


@cache
def _content(name: str) -> bytes:
    """One style sheet and one script: the report's, and what pages that are served have in addition."""
    if name == "plotly.js":
        return str(get_plotlyjs()).encode()
    own = files("winnow.web").joinpath("static", name).read_text(encoding="utf-8")
    before = {"style.css": page_style, "script.js": page_script}.get(name, str)
    return f"{before()}{own}".encode()


@cache
def _address(name: str) -> str:
    """Browsers keep the files; the digest in the address is another one for another version."""
    return f"/static/{name}?v={sha256(_content(name)).hexdigest()[:12]}"
