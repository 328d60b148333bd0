"""Repeated requests of one party: the first are audited one by one, further ones are only counted."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from winnow.deploy.trust.peer_identity import Peer, utc_now

MAX_ENTRIES = 100
"""Requests of one kind and one party that are audited one by one within `WINDOW_SECONDS`."""
WINDOW_SECONDS = 3600.0
REJECTED = "rejected"


@dataclass
class _Window:
    peer: Peer
    what: str
    outcome: str
    begun: float
    at: datetime
    written: int = 0
    targets: set[str] = field(default_factory=set)
    counted: int = 0


class AuditThrottle:
    """Nobody can fill the disk with requests, rejected ones least of all."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._windows: dict[tuple[str, str, str], _Window] = {}

    def suppresses(self, peer: Peer, what: str, target: str, outcome: str) -> bool:
        """Whether this request is only counted. The first that is granted for a target is always audited."""
        kind = REJECTED if outcome.startswith(REJECTED) else outcome
        window = self._windows.get((peer.name, what, kind))
        if window is None:
            window = _Window(peer, what, kind, self._clock(), utc_now())
            self._windows[peer.name, what, kind] = window
        new = kind != REJECTED and target not in window.targets
        if new or window.written < MAX_ENTRIES:
            window.written += 1
            window.targets.add(target)
            return False
        window.counted += 1
        return True

    def suppressed(self, *, all: bool = False) -> Iterator[tuple[Peer, str, str]]:
        """Who, what and how many were only counted, in windows that have passed; or in all."""
        for key, window in list(self._windows.items()):
            if all or self._clock() - window.begun > WINDOW_SECONDS:
                del self._windows[key]
                if window.counted:
                    since = f"{window.at:%Y-%m-%d %H:%M} UTC"
                    yield window.peer, window.what, f"{window.outcome}: {window.counted} more since {since}"
