"""Tells the application which certificate a browser showed: uvicorn does not."""

import asyncio
import ssl

from starlette.types import ASGIApp, Receive, Scope, Send
from uvicorn.protocols.http.h11_impl import H11Protocol

from winnow.web.request_guard import CERTIFICATE

FIRST_REQUEST_SECONDS = 20.0
"""A connection on which nothing has been asked after so long is closed: strangers can open many."""


class PeerCertificateProtocol(H11Protocol):
    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        shown = transport.get_extra_info("ssl_object").getpeercert(binary_form=True)
        if shown:
            self.app = _with_certificate(self.app, ssl.DER_cert_to_PEM_cert(shown).encode())
        self.loop.call_later(FIRST_REQUEST_SECONDS, self._close_unused)

    def _close_unused(self) -> None:
        if self.cycle is None:
            self.transport.close()


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
