"""What every request must pass before a page sees it: host, origin, login, limits. And what every response carries."""

import hmac
import secrets
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Protocol
from urllib.parse import parse_qs

import anyio.to_thread
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import cookie_parser
from starlette.responses import HTMLResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from winnow.web.login_key import LoginKey
from winnow.web.sessions import SESSION_SECONDS, TOKEN_BYTES, Session, Sessions, TooMany

MAX_ADDRESS, MAX_BODY = 16_384, 65_536
READING, CHANGING = frozenset({"GET", "HEAD"}), frozenset({"POST"})
CSRF_HEADER = "x-csrf-token"
CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'self'; frame-ancestors 'none'"
)
"""Scripts come from this server alone. Plotly sets styles of the figures that it draws, so styles may be inline."""
RESPONSE_HEADERS = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}
ENTRANCE = '<!doctype html><title>Winnow</title><meta http-equiv="refresh" content="0; url=/"><a href="/">Winnow</a>\n'
"""The answer to a login by a link in another page or a file. Had it been a redirect, the browser would think that the
other page asks for the next one, and would not send the new cookie along."""
LOGIN_ADVICE = "Not logged in: open the address that winnow ui printed when it was started."
CERTIFICATE = "winnow.certificate"
"""In a request's scope, the certificate (PEM) that its browser showed; TLS has checked that it holds the key."""


class LoginService(Protocol):
    """Who may log in to pages that several people share."""

    advice: str
    """For those who have not."""

    def redeem(self, token: str) -> bytes | None:
        """Whose one-time link this is: a certificate (PEM)."""

    def admits(self, certificate: bytes) -> bool:
        """Whether its holder may look at the pages now."""

    def note(self, certificate: bytes, how: str) -> None:
        """A login, for the audit log."""


@dataclass(frozen=True, kw_only=True)
class Access:
    """Under which names the pages are reached, and the secret that logs a browser in."""

    hosts: frozenset[str]
    """Values of the Host header, with the port: "127.0.0.1:8765". Another name that leads here is a rebinding."""
    cookie: str = "winnow-ui"
    token: str = field(default_factory=lambda: secrets.token_urlsafe(TOKEN_BYTES))
    sessions: Sessions = field(default_factory=Sessions)
    scheme: str = "http"
    people: LoginService | None = None
    """Pages of many: the token is not used, and each login is one person's."""
    public: Callable[[str], bool] = lambda path: False
    """Pages that need no login, by their path."""

    @classmethod
    def loopback(cls, port: int, key: LoginKey | None = None) -> "Access":
        """Cookies know no ports: each server has a name of its own."""
        hosts = frozenset(f"{name}:{port}" for name in ("127.0.0.1", "localhost", "[::1]"))
        return cls(hosts=hosts, cookie=f"winnow-ui-{port}", sessions=Sessions(key=key))

    @property
    def origins(self) -> frozenset[str]:
        return frozenset(f"{self.scheme}://{host}" for host in self.hosts)


class Refused(Exception):  # noqa: N818 - the client's mistake, said to it
    """A request that no page sees; the text says why."""

    def __init__(self, status: int, reason: str) -> None:
        super().__init__(reason)
        self.status = status


class RequestGuard:
    """The outermost middleware: nothing is answered without it."""

    def __init__(self, app: ASGIApp, access: Access) -> None:
        self._app, self._access = app, access

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] == "http":
            await self._answer(scope, receive, _with_headers(send))

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            response = await anyio.to_thread.run_sync(self._admit, scope) if self._access.people else self._admit(scope)
        except Refused as refused:
            response = PlainTextResponse(f"{refused}\n", refused.status)
        if response is not None:
            await response(scope, receive, send)
            return
        await self._app(scope, _bounded(receive), send)

    def _admit(self, scope: Scope) -> Response | None:
        """None for a request that a page may answer; the answer itself where it is a login."""
        headers = Headers(scope=scope)
        _check_shape(scope, headers)
        self._check_place(headers)
        if scope["method"] not in READING | CHANGING:
            raise Refused(405, f"{scope['method'][:20]} is not a method of these pages")
        if (token := _login_token(scope)) is not None:
            return self._log_in(self._token_holder(token), headers)
        found = self._session(headers)
        if found is None:
            return self._without_login(scope, headers)
        secret, session = found
        try:
            session.count_request(self._access.sessions.now())
        except TooMany as error:
            raise Refused(429, str(error)) from None
        if scope["method"] in CHANGING:
            _check_change(headers, session)
        scope["winnow.session"], scope["winnow.secret"] = session, secret
        return None

    def _check_place(self, headers: Headers) -> None:
        """The browser must have come to this server by its own name, from its own pages."""
        if [value.lower() for value in headers.getlist("host")] not in [[host] for host in self._access.hosts]:
            raise Refused(421, "these pages are not served under this name")
        origin = headers.get("origin")
        if origin is not None and origin not in self._access.origins:
            raise Refused(403, "the request comes from another site")
        if not _is_from_here(headers) and not _is_navigation(headers):
            raise Refused(403, "the request comes from another site")

    def _without_login(self, scope: Scope, headers: Headers) -> Response | None:
        """Pages for everybody, and a login by the browser's certificate."""
        people, certificate = self._access.people, scope.get(CERTIFICATE)
        if self._access.public(scope["path"]):
            if scope["method"] in CHANGING:
                _check_sender(headers)
            return None
        if people is None or certificate is None or scope["method"] not in READING:
            raise Refused(403, self._advice)
        if not people.admits(certificate):
            raise Refused(403, "your certificate is not admitted: it is no person's of this project, or was revoked")
        people.note(certificate, "by certificate")
        return self._log_in(certificate, headers)

    def _token_holder(self, token: str) -> bytes:
        """Whose certificate the token stands for; none on pages of one person."""
        people = self._access.people
        if people is None:
            if not hmac.compare_digest(token.encode(), self._access.token.encode()):
                raise Refused(403, self._advice)
            return b""
        certificate = people.redeem(token)
        if certificate is None or not people.admits(certificate):
            raise Refused(403, "this link was used already, is older than five minutes, or is none")
        people.note(certificate, "by link")
        return certificate

    @property
    def _advice(self) -> str:
        return LOGIN_ADVICE if self._access.people is None else self._access.people.advice

    def _log_in(self, certificate: bytes, headers: Headers) -> Response:
        people = self._access.people
        admitted = partial(people.admits, certificate) if people is not None else lambda: True
        response = RedirectResponse("/", 303) if _is_from_here(headers) else HTMLResponse(ENTRANCE)
        response.set_cookie(
            self._access.cookie,
            self._access.sessions.open(certificate, admitted),
            max_age=int(SESSION_SECONDS),
            httponly=True,
            samesite="strict",
            secure=self._access.scheme == "https",
        )
        return response

    def _session(self, headers: Headers) -> tuple[str, Session] | None:
        for secret in _cookies(headers, self._access.cookie):
            session = self._access.sessions.find(secret)
            if session is not None:
                return secret, session
        return None


def _check_shape(scope: Scope, headers: Headers) -> None:
    if len(scope.get("raw_path") or b"") + len(scope["query_string"]) > MAX_ADDRESS:
        raise Refused(414, f"the address is longer than {MAX_ADDRESS:,} characters")
    if not scope["query_string"].isascii():
        raise Refused(400, "the address holds what no address may hold")
    length = headers.get("content-length", "0")
    if not (length.isascii() and length.isdigit()) or int(length[:20]) > MAX_BODY:
        raise Refused(413, f"the request is larger than {MAX_BODY:,} bytes")


def _is_from_here(headers: Headers) -> bool:
    """Whether these pages, or the reader's own hand, sent the browser."""
    return headers.get("sec-fetch-site", "none") in ("none", "same-origin")


def _is_navigation(headers: Headers) -> bool:
    """A link on another site may lead here: the cookie stays behind, and without it only the login is left."""
    return headers.get("sec-fetch-mode") == "navigate" and headers.get("sec-fetch-dest") == "document"


def _check_change(headers: Headers, session: Session) -> None:
    _check_sender(headers)
    if not hmac.compare_digest(headers.get(CSRF_HEADER, "").encode(), session.csrf.encode()):
        raise Refused(403, "the page is out of date; load it again")


def _check_sender(headers: Headers) -> None:
    if headers.get("origin") is None:
        raise Refused(403, "a changing request must say from which page it comes")
    if headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
        raise Refused(415, "a changing request must be JSON")


def _login_token(scope: Scope) -> str | None:
    """The token in the address of the front page, and of no other."""
    if scope["path"] != "/" or scope["method"] != "GET":
        return None
    found = parse_qs(scope["query_string"].decode("latin-1")).get("token")
    return found[0] if found else None


def _cookies(headers: Headers, name: str) -> list[str]:
    """Other servers on this machine set cookies of any shape, which the parser passes over."""
    found = [cookie_parser(line) for line in headers.getlist("cookie")]
    return [cookies[name] for cookies in found if name in cookies]


def _with_headers(send: Send) -> Send:
    async def sending(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(raw=message.setdefault("headers", []))
            headers.update(RESPONSE_HEADERS)
            headers.setdefault("cache-control", "no-store")
        await send(message)

    return sending


def _bounded(receive: Receive) -> Receive:
    """A body that does not say its length is cut off like one that does."""
    taken = 0

    async def receiving() -> Message:
        nonlocal taken
        message = await receive()
        taken += len(message.get("body", b""))
        if taken > MAX_BODY:
            return {"type": "http.disconnect"}
        return message

    return receiving
