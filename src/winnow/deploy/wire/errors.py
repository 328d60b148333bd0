"""Errors between two parties. Every message is one line.

WinnowError
├── WireError                 what arrived is malformed, damaged, too large or incomplete
│   ├── StorageFullError      it cannot be stored now: the disk or the quota is full
│   └── BlobDamagedError      the digest of a blob does not match; what was stored of it is deleted
├── UnreachableError          no answer: try again, or another server
└── RequestRefusedError       the other side refused, and says why
    └── TooManyRequestsError  the caller has too many requests open
"""

from winnow.core.errors import WinnowError
from winnow.core.untrusted_text import one_line

__all__ = ["BlobDamagedError", "RequestRefusedError", "StorageFullError", "UnreachableError", "WireError", "one_line"]


class WireError(WinnowError):
    """What arrived is malformed, damaged, too large or incomplete."""


class StorageFullError(WireError):
    """It cannot be stored now."""


class BlobDamagedError(WireError):
    """It must be sent again, from its first byte."""


class UnreachableError(WinnowError):
    """No answer. The request may or may not have arrived; all requests may be sent twice."""


class RequestRefusedError(WinnowError):
    """The other side refused. `leader` is the endpoint to ask instead; `retry`: it may work later."""

    def __init__(self, reason: str, *, leader: str = "", retry: bool = False) -> None:
        super().__init__(one_line(reason))
        self.reason = one_line(reason)
        self.leader = leader
        self.retry = retry


class TooManyRequestsError(RequestRefusedError):
    """The caller has too many requests open; it may work later."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, retry=True)
