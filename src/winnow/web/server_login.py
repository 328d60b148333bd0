"""Who may log in to the pages that a server serves: people of its project, by certificate or one-time link."""

import time
from threading import Lock

from winnow.core.untrusted_text import one_line
from winnow.deploy.server.audit_throttle import AuditThrottle
from winnow.deploy.server.served_pages import PagesContext

ADMITTED_SECONDS = 0.5
"""How old the answer may be whether somebody is admitted: live pages ask several times a second."""


class ServerLogin:
    """Safe to be asked from several threads."""

    advice = (
        "Not logged in: run winnow ui login --kit KIT and open the address that it prints, or give your browser the "
        "file that winnow ui certificate --kit KIT makes."
    )

    def __init__(self, context: PagesContext) -> None:
        self._context = context
        if context.config.applications:
            self.advice += f" To apply for a kit, open {context.links.address}/apply."
        self._throttle, self._lock = AuditThrottle(), Lock()
        self._admitted: dict[bytes, tuple[float, bool]] = {}

    def redeem(self, token: str) -> bytes | None:
        return self._context.links.redeem(token)

    def admits(self, certificate: bytes) -> bool:
        """A revoked certificate is refused as soon as the server has read the new list."""
        now = time.monotonic()
        found = self._admitted.get(certificate)
        if found is None or now - found[0] > ADMITTED_SECONDS:
            found = (now, self._context.person(certificate) is not None)
            with self._lock:
                self._admitted = {key: kept for key, kept in self._admitted.items() if now - kept[0] < ADMITTED_SECONDS}
                self._admitted[certificate] = found
        return found[1]

    def note(self, certificate: bytes, how: str) -> None:
        """Repeated logins are counted, as other requests are."""
        peer = self._context.identify(certificate)
        with self._lock:
            entries = [(each, what, "", outcome) for each, what, outcome in self._throttle.suppressed()]
            if not self._throttle.suppresses(peer, "login", "", "accepted"):
                entries.append((peer, "login", "", one_line(f"accepted: {how}")))
        for entry in entries:
            self._context.audit(*entry)
