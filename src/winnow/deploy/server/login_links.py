"""Links that log a person in to the server's pages: handed out over that person's own mutual TLS, valid once and for
five minutes. They are kept in memory alone, so those of a server that has ended are void."""

import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from threading import Lock

LINK_SECONDS = 300.0
LINKS_EACH = 5
"""Of one person that wait to be used; a further one takes the place of the oldest."""
TOKEN_BYTES = 16
"""128 bits: nobody guesses them."""


@dataclass(frozen=True, kw_only=True)
class _Link:
    certificate: bytes
    until: float


class LoginLinks:
    """By the digest of their token, so that looking one up tells nothing by its time."""

    def __init__(self, address: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.address = address
        """Where browsers reach the pages: https://HOST:PORT."""
        self._clock = clock
        self._links: dict[bytes, _Link] = {}
        self._lock = Lock()

    def open(self, certificate: bytes) -> str:
        """The address that logs the holder of this certificate in."""
        token = secrets.token_urlsafe(TOKEN_BYTES)
        with self._lock:
            now = self._clock()
            self._links = {key: link for key, link in self._links.items() if link.until > now}
            own = [key for key, link in self._links.items() if link.certificate == certificate]
            for key in own[: max(0, len(own) + 1 - LINKS_EACH)]:
                del self._links[key]
            self._links[_digest(token)] = _Link(certificate=certificate, until=now + LINK_SECONDS)
        return f"{self.address}/?token={token}"

    def redeem(self, token: str) -> bytes | None:
        """Whose link this is; None for one that was used, is too old, or never was."""
        with self._lock:
            link = self._links.pop(_digest(token), None)
        return None if link is None or link.until <= self._clock() else link.certificate


def _digest(token: str) -> bytes:
    return sha256(token.encode("utf-8", "surrogateescape")).digest()
