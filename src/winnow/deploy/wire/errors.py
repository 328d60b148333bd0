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
from winnow.core.text import one_line

__all__ = ["Damaged", "NoRoom", "Refused", "Unreachable", "WireError", "one_line"]


class WireError(WinnowError):
    """What arrived is malformed, damaged, too large or incomplete."""


class NoRoom(WireError):  # noqa: N818 - they say what is the case
    """It cannot be stored now."""


class Damaged(WireError):  # noqa: N818
    """It must be sent anew, from its first byte on."""


class Unreachable(WinnowError):  # noqa: N818
    """Nobody answered. The request may or may not have been heard; all requests may be sent twice."""


class Refused(WinnowError):  # noqa: N818
    """The other side said no. `leader` is the endpoint to ask instead; `again` says that it may work later."""

    def __init__(self, reason: str, *, leader: str = "", again: bool = False) -> None:
        super().__init__(one_line(reason))
        self.reason = one_line(reason)
        self.leader = leader
        self.again = again


class TooMuch(Refused):
    """Whoever asks has too much under way already; later it may work."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason, again=True)
