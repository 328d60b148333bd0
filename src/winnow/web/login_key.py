"""Lets a browser stay logged in when `winnow ui` is started again: cookies are signed with a key that only the user can
read. A logout makes another key, so that no cookie from before it comes back."""

import hmac
import os
import secrets
from hashlib import sha256
from pathlib import Path

KEY_BYTES = 32


class LoginKey:
    """Without a file, or where it cannot be written, logins end with the process."""

    def __init__(self, path: Path | None = None) -> None:
        self._path = path
        self._key = self._read() or self._renewed()

    def sign(self, text: str) -> str:
        return hmac.new(self._key, text.encode("utf-8", "surrogateescape"), sha256).hexdigest()

    def signed(self, text: str, signature: str) -> bool:
        return hmac.compare_digest(self.sign(text).encode(), signature.encode("utf-8", "surrogateescape"))

    def renew(self) -> None:
        self._key = self._renewed()

    def _read(self) -> bytes | None:
        """The key of an earlier process; one that others could read or write is not taken."""
        if self._path is None:
            return None
        try:
            handle = os.open(self._path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
        except OSError:
            return None
        with os.fdopen(handle, "rb") as file:
            found = os.fstat(file.fileno())
            key = file.read(KEY_BYTES + 1)
        private = found.st_uid == os.getuid() and not found.st_mode & 0o077
        return key if private and len(key) == KEY_BYTES else None

    def _renewed(self) -> bytes:
        key = secrets.token_bytes(KEY_BYTES)
        if self._path is not None:
            try:
                self._path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
                self._path.unlink(missing_ok=True)
                with os.fdopen(os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
                    file.write(key)
            except OSError:
                self._path = None
        return key


def login_key_path(port: int) -> Path:
    """Each port has a key of its own, as it has a cookie of its own."""
    return Path(os.environ.get("XDG_STATE_HOME") or "~/.local/state").expanduser() / "winnow" / f"ui-{port}.key"
