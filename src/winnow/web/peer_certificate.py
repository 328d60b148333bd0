"""Tells the application which certificate a browser showed: uvicorn does not."""

import asyncio
import ssl

import h11
from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle

from winnow.web.request_guard import CERTIFICATE

REQUEST_SECONDS = 20.0
"""A connection whose request has not arrived whole after so long, or twice as long, is closed: strangers can open many,
and send headers or bodies drop by drop."""


class PeerCertificateProtocol(H11Protocol):
    _unfinished: tuple[RequestResponseCycle | None] | None = None
    """The request that was still arriving at the last look; within the tuple None where none had begun."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        shown = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
        if shown:
            self.app = _with_certificate(self.app, ssl.DER_cert_to_PEM_cert(shown).encode())
        self.loop.call_later(REQUEST_SECONDS, self._close_stalled)

    def _close_stalled(self) -> None:
        """Live pages have asked all that they ask. Between requests uvicorn's own limit of five seconds holds."""
        if self.transport.is_closing():
            return
        arriving = self.conn.their_state in (h11.IDLE, h11.SEND_BODY)
        if arriving and (self.cycle is None or self._unfinished == (self.cycle,)):
            self.transport.abort()  # who does not send may not read either
            return
        self._unfinished = (self.cycle,) if arriving else None
        self.loop.call_later(REQUEST_SECONDS, self._close_stalled)


def _with_certificate(app: ASGIApp, certificate: bytes) -> ASGIApp:
    async def knowing(scope: Scope, receive: Receive, send: Send) -> None:
        await app({**scope, CERTIFICATE: certificate}, receive, send)

    return knowing


def server_tls(certificate: str, key: str, authority: str) -> ssl.SSLContext:
    """Browsers may show a certificate of the project's CA, and need not."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.load_cert_chain(certificate, key)
    context.load_verify_locations(authority)
    context.verify_mode = ssl.CERT_OPTIONAL
    return context
