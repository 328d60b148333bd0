"""What can go wrong between two parties. Each is one line.

WinnowError
├── WireError        what arrived is malformed, damaged, too large or incomplete
│   ├── NoRoom       it cannot be stored now: the disk or the quota is full
│   └── Damaged      a blob's digest is not its name; what was here of it is gone
├── Unreachable      nobody answered: try again, or elsewhere
└── Refused          the other side said no, and why
    └── TooMuch      it has enough to do for whoever asks
"""

from winnow.core.errors import WinnowError
from winnow.core.untrusted_text import one_line

__all__ = ["BlobDamagedError", "RequestRefusedError", "StorageFullError", "UnreachableError", "WireError", "one_line"]


class WireError(WinnowError):
    """What arrived is malformed, damaged, too large or incomplete."""


class StorageFullError(WireError):
    """It cannot be stored now."""


class BlobDamagedError(WireError):
    """It must be sent anew, from its first byte on."""


class UnreachableError(WinnowError):
    """Nobody answered. The request may or may not have been heard; all requests may be sent twice."""


class RequestRefusedError(WinnowError):
    """The other side said no. `leader` is the endpoint to ask instead; `retry`: it may work later."""

    def __init__(self, reason: str, *, leader: str = "", retry: bool = False) -> None:
        super().__init__(one_line(reason))
        self.reason = one_line(reason)
        self.leader = leader
        self.retry = retry


class TooManyRequestsError(RequestRefusedError):
    """Whoever asks has too much under way already; later it may work."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, retry=True)
