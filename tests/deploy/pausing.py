"""A server that never starts, and a clock on which waiting for it takes no time."""

import threading
from typing import Any

import pytest

from winnow.deploy.wire import reconnecting_link
from winnow.deploy.wire.errors import UnreachableError


class Nobody:
    """A link without a server. Time passes only while a `ReconnectingLink` pauses between its attempts."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.attempts: list[float] = []
        """When each was made."""
        self._now = 0.0
        monkeypatch.setattr(reconnecting_link, "time", self)
        monkeypatch.setattr(reconnecting_link, "Event", self._event)

    def monotonic(self) -> float:
        return self._now

    def call(self, request: Any, *, timeout: float = 0.0) -> Any:
        self.attempts.append(self._now)
        raise UnreachableError("no server is listening")

    def close(self) -> None:
        pass

    def _event(self) -> threading.Event:
        event = threading.Event()
        event.wait = self._pause  # type: ignore[method-assign]
        return event

    def _pause(self, seconds: float | None = None) -> bool:
        self._now += seconds or 0.0
        return False
