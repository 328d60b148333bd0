"""Which transport an endpoint's URL asks for. Another one is added here, and gets tested by being listed."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from urllib.parse import urlsplit

from winnow.core.errors import ConfigError
from winnow.deploy.wire.door import Door
from winnow.deploy.wire.in_flight import CALLS, InFlight
from winnow.deploy.wire.transport import STALL_SECONDS, Admit, Identify, Link, Server, Service, Tls


@dataclass(frozen=True, kw_only=True)
class Driver:
    link: Callable[[str, Tls, float], Link]
    server: Callable[[str, Tls, Door], Server]


def _grpc() -> Driver:
    # What goes wrong is told in our own words; gRPC would add a line about its own code for every attempt.
    os.environ.setdefault("GRPC_VERBOSITY", "NONE")
    from winnow.deploy.wire.grpc_link import GrpcLink  # noqa: PLC0415 - megabytes, for those who use it
    from winnow.deploy.wire.grpc_server import GrpcServer  # noqa: PLC0415

    return Driver(link=lambda url, tls, stall: GrpcLink(url, tls, stall=stall), server=GrpcServer)


def _memory() -> Driver:
    from winnow.deploy.wire.memory import MemoryLink, MemoryServer  # noqa: PLC0415

    return Driver(link=lambda url, tls, stall: MemoryLink(url, tls, stall=stall), server=MemoryServer)


DRIVERS = {"grpc": _grpc, "memory": _memory}


def connect(url: str, tls: Tls, *, stall: float = STALL_SECONDS) -> Link:
    """A link to the server at this URL. It connects when it is first used."""
    return _driver(url).link(url, tls, stall)


def serve(
    url: str,
    tls: Tls,
    service: Service,
    *,
    identify: Identify,
    admit: Admit,
    stall: float = STALL_SECONDS,
    calls: int = CALLS,
) -> Server:
    """A server that will answer at this URL once it is started; port 0 takes a free one. `calls` a party at a time."""
    door = Door(service, identify, admit, stall=stall, in_flight=InFlight(calls))
    return _driver(url).server(url, tls, door)


def _driver(url: str) -> Driver:
    scheme = urlsplit(url).scheme
    if scheme not in DRIVERS or not urlsplit(url).netloc:
        raise ConfigError(f"{url!r} is no endpoint; write it like grpc://host:port")
    return DRIVERS[scheme]()
