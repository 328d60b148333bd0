"""A port that is chosen before its server starts stays free until then."""

import socket
import struct

import pytest

from support.needs import PORT_RANGES
from winnow.deploy.client.free_port import free_port

LOOPBACK = "127.0.0.1"
IP_LOCAL_PORT_RANGE = 51
"""From Linux 6.3 on: among which ports the kernel chooses one for this socket."""


def confined(port: int) -> socket.socket:
    """A socket that takes any port, and for which there is only this one."""
    chosen = socket.socket()
    try:
        chosen.setsockopt(socket.IPPROTO_IP, IP_LOCAL_PORT_RANGE, struct.pack("=I", port | port << 16))
    except OSError:
        chosen.close()
        PORT_RANGES.skip()
    return chosen


def test_nobody_who_takes_any_port_gets_it() -> None:
    with confined(free_port()) as other, pytest.raises(OSError, match="in use"):
        other.bind((LOOPBACK, 0))


def test_no_outgoing_connection_gets_it() -> None:
    with (
        socket.create_server((LOOPBACK, 0)) as elsewhere,
        confined(free_port()) as other,
        pytest.raises(OSError, match="assign requested address"),
    ):
        other.connect(elsewhere.getsockname())


def test_the_server_that_asks_for_it_does() -> None:
    port = free_port()
    with socket.create_server((LOOPBACK, port)) as server:
        assert server.getsockname() == (LOOPBACK, port)
