"""Requests that a party repeats: the first are written into the audit one by one, more of the same are counted."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from datetime import datetime

from winnow.deploy.trust.peer_identity import Peer, utc_now

MAX_ENTRIES = 100
"""Requests of one kind, of one party, that are written down one by one within `WINDOW_SECONDS`."""
WINDOW_SECONDS = 3600.0
REFUSED = "refused"


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
    """So that nobody fills the disk by asking, and least of all by being refused."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._windows: dict[tuple[str, str, str], _Window] = {}

    def counts(self, peer: Peer, what: str, target: str, outcome: str) -> bool:
        """Whether this one is only counted; else it is to be written down, as what somebody got at always is, once."""
        kind = REFUSED if outcome.startswith(REFUSED) else outcome
        window = self._windows.get((peer.name, what, kind))
        if window is None:
            window = _Window(peer, what, kind, self._clock(), utc_now())
            self._windows[peer.name, what, kind] = window
        new = kind != REFUSED and target not in window.targets
        if new or window.written < MAX_ENTRIES:
            window.written += 1
            window.targets.add(target)
            return False
        window.counted += 1
        return True

    def over(self, *, all: bool = False) -> Iterator[tuple[Peer, str, str]]:
        """Whose, which and how many were counted, where their time is over; or of all."""
        for key, window in list(self._windows.items()):
            if all or self._clock() - window.begun > WINDOW_SECONDS:
                del self._windows[key]
                if window.counted:
                    since = f"{window.at:%Y-%m-%d %H:%M} UTC"
                    yield window.peer, window.what, f"{window.outcome}: {window.counted} more since {since}"
