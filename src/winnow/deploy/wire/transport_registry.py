"""Which transport an endpoint's URL asks for. Another one is added here, and gets tested by being listed."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from winnow.core.errors import ConfigError
from winnow.deploy.wire.concurrency_limits import MAX_REQUESTS_PER_PARTY, RequestLimiter
from winnow.deploy.wire.request_frontend import RequestFrontend
from winnow.deploy.wire.transport_interface import (
    STALL_SECONDS,
    Admit,
    Identify,
    ServerLink,
    Tls,
    TransportServer,
    WireService,
)


@dataclass(frozen=True, kw_only=True)
class TransportFactory:
    link: Callable[[str, Tls, float], ServerLink]
    server: Callable[[str, Tls, RequestFrontend], TransportServer]


def _grpc() -> TransportFactory:
    # What goes wrong is told in our own words; gRPC would add a line about its own code for every attempt.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from winnow.deploy.wire.grpc_link import GrpcLink  # noqa: PLC0415 - megabytes, for those who use it
    from winnow.deploy.wire.grpc_server import GrpcServer  # noqa: PLC0415

    return TransportFactory(link=lambda url, tls, stall: GrpcLink(url, tls, stall=stall), server=GrpcServer)


def _memory() -> TransportFactory:
    from winnow.deploy.wire.in_memory_transport import MemoryLink, MemoryServer  # noqa: PLC0415

    return TransportFactory(link=lambda url, tls, stall: MemoryLink(url, tls, stall=stall), server=MemoryServer)


TRANSPORTS = {"grpc": _grpc, "memory": _memory}


def open_link(url: str, tls: Tls, *, stall: float = STALL_SECONDS) -> ServerLink:
    """A link to the server at this URL. It connects when it is first used."""
    return _driver(url).link(url, tls, stall)


def serve(
    url: str,
    tls: Tls,
    service: WireService,
    *,
    identify: Identify,
    admit: Admit,
    stall: float = STALL_SECONDS,
    calls: int = MAX_REQUESTS_PER_PARTY,
) -> TransportServer:
    """A server that will answer at this URL once it is started; port 0 takes a free one. `calls` a party at a time."""
    frontend = RequestFrontend(service, identify, admit, stall=stall, limiter=RequestLimiter(calls))
    return _driver(url).server(url, tls, frontend)


def _driver(url: str) -> TransportFactory:
    scheme = urlsplit(url).scheme
    if scheme not in TRANSPORTS or not urlsplit(url).netloc:
        raise ConfigError(f"{url!r} is not a valid endpoint; use grpc://host:port")
    return TRANSPORTS[scheme]()
