"""A person's connection while there is no server yet."""

from itertools import pairwise
from pathlib import Path

import pytest
from papers import kit_of
from pausing import Nobody

from winnow.deploy.client import connection
from winnow.deploy.client.connection import RETRY_SECONDS, Connection
from winnow.deploy.wire.errors import UnreachableError

SLOW_START = 45.0
"""Seconds: more than twice what a server takes on a busy machine."""


def test_a_server_that_takes_long_to_start_is_found_soon_after(kits: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    nobody = Nobody(monkeypatch)
    monkeypatch.setattr(connection, "open_link", lambda url, tls: nobody)
    with Connection(kit_of(kits, "the-lead")) as asking, pytest.raises(UnreachableError):
        asking.jobs()
    assert nobody.attempts[-1] == pytest.approx(RETRY_SECONDS)
    assert nobody.attempts[-1] > SLOW_START
    assert max(later - earlier for earlier, later in pairwise(nobody.attempts)) <= 1.0
