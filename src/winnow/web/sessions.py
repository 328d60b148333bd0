"""Who has logged in to the pages, and how much each may ask."""

import secrets
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from hashlib import sha256

from winnow.web.login_key import LoginKey

SESSION_SECONDS = 12 * 3600.0
MAX_SESSIONS = 100
"""Of one person; a further login ends the oldest."""
REQUESTS_PER_MINUTE = 1_000
MAX_STREAMS = 10
MAX_DIGITS = 15
TOKEN_BYTES = 16
"""128 bits: nobody guesses them."""


class TooMany(Exception):  # noqa: N818 - it is said to the browser, and is nobody's mistake
    """More was asked than a login may; the text says of what."""


@dataclass(kw_only=True)
class Session:
    """One login: the secret that changing requests must repeat, and what has been asked lately."""

    opened: float
    certificate: bytes = b""
    """Of the person who logged in (PEM), where there are several; else empty."""
    admitted: Callable[[], bool] = lambda: True
    """Whether its person may still look: certificates expire and are revoked."""
    ended: bool = False
    csrf: str = field(default_factory=lambda: secrets.token_urlsafe(TOKEN_BYTES))
    _minute: float = -1.0
    _requests: int = 0
    _streams: int = 0

    @property
    def is_over(self) -> bool:
        """After which its live streams end, too."""
        return self.ended or not self.admitted()

    def count_request(self, now: float) -> None:
        """One more; TooMany if that is more than a minute has room for."""
        minute = now // 60
        if minute != self._minute:
            self._minute, self._requests = minute, 0
        self._requests += 1
        if self._requests > REQUESTS_PER_MINUTE:
            raise TooMany(f"more than {REQUESTS_PER_MINUTE:,} requests in a minute; wait a minute")

    def check_streams(self) -> None:
        """TooMany if another live stream would be more than a login may have."""
        if self._streams >= MAX_STREAMS:
            raise TooMany(f"more than {MAX_STREAMS} live pages are open; close some")

    @contextmanager
    def stream(self) -> Iterator[None]:
        """Hold one of the live streams."""
        self._streams += 1
        try:
            yield
        finally:
            self._streams -= 1


class Sessions:
    """Logins by the secret in their cookie. Only its digest is kept, so looking one up tells nothing by its time."""

    def __init__(self, clock: Callable[[], float] = time.time, key: LoginKey | None = None) -> None:
        """With a `key` that outlives the process, so do logins of one person's own pages."""
        self.now, self._key = clock, key
        self._sessions: dict[bytes, Session] = {}

    def open(self, certificate: bytes = b"", admitted: Callable[[], bool] = lambda: True) -> str:
        """Log in; the secret for the cookie. Where one person has too many, the oldest login ends."""
        secret = secrets.token_urlsafe(2 * TOKEN_BYTES)
        if self._key is not None:
            opened = f"{int(self.now())}.{secret}"
            secret = f"{opened}.{self._key.sign(opened)}"
        own = [digest for digest, session in self._sessions.items() if session.certificate == certificate]
        for digest in own[: max(0, len(own) + 1 - MAX_SESSIONS)]:
            self._end(digest)
        self._sessions[_digest(secret)] = Session(opened=self.now(), certificate=certificate, admitted=admitted)
        return secret

    def find(self, secret: str) -> Session | None:
        session = self._sessions.get(_digest(secret)) or self._restored(secret)
        if session is not None and (self.now() - session.opened > SESSION_SECONDS or session.is_over):
            self._end(_digest(secret))
            return None
        return session

    def close(self, secret: str) -> None:
        """Log out: neither this nor an earlier login is known to the next process."""
        self._end(_digest(secret))
        if self._key is not None:
            self._key.renew()

    def _restored(self, secret: str) -> Session | None:
        """A login of an earlier process, by its signature."""
        opened, _, signature = secret.rpartition(".")
        at = opened.partition(".")[0]
        if self._key is None or not (at.isascii() and at.isdigit()) or not self._key.signed(opened, signature):
            return None
        session = Session(opened=float(at[:MAX_DIGITS]))
        self._sessions[_digest(secret)] = session
        return session

    def _end(self, digest: bytes) -> None:
        session = self._sessions.pop(digest, None)
        if session is not None:
            session.ended = True


def _digest(secret: str) -> bytes:
    return sha256(secret.encode("utf-8", "surrogateescape")).digest()
