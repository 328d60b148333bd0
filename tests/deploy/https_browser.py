"""A browser's side of pages over TLS: cookies kept, a client certificate where it has one."""

import http.client
import re
import ssl
from collections.abc import Iterator
from contextlib import closing, contextmanager
from http.cookies import SimpleCookie
from pathlib import Path
from urllib.parse import urlsplit

from waiting import eventually
from web_client import Answer


class HttpsBrowser:
    def __init__(self, address: str, authority: Path, kit: Path | None = None) -> None:
        self.address, self._netloc = address, urlsplit(address).netloc
        self.cookies: dict[str, str] = {}
        self._tls = ssl.create_default_context(cafile=str(authority))
        if kit is not None:
            self._tls.load_cert_chain(kit / "certificate.pem", kit / "key.pem")

    def get(self, path: str, **headers: str) -> Answer:
        return self.request("GET", path, headers)

    def press(self, path: str, **headers: str) -> Answer:
        token = re.search(r'name="csrf-token" content="([^"]+)"', self.get("/budgets").text)
        csrf = {} if token is None else {"x-csrf-token": token[1]}
        usual = {"origin": self.address, "content-type": "application/json", **csrf}
        return self.request("POST", path, {**usual, **headers}, b"{}")

    def request(self, method: str, path: str, headers: dict[str, str], content: bytes = b"") -> Answer:
        connection = self._send(method, path, headers, content)
        found = connection.getresponse()
        answer = Answer(status=found.status, headers=dict(found.getheaders()), content=found.read())
        connection.close()
        for name, morsel in SimpleCookie(answer.headers.get("set-cookie", "")).items():
            self.cookies[name] = morsel.value
        return answer

    @contextmanager
    def stream(self, path: str) -> Iterator[http.client.HTTPResponse]:
        connection = self._send("GET", path, {}, b"")
        with closing(connection), connection.getresponse() as answer:
            yield answer

    def _send(self, method: str, path: str, headers: dict[str, str], content: bytes) -> http.client.HTTPSConnection:
        connection = http.client.HTTPSConnection(self._netloc, context=self._tls, timeout=60)
        eventually(lambda: _is_there(connection), "nobody listens")
        cookie = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        connection.request(method, path, content or None, {**({"cookie": cookie} if cookie else {}), **headers})
        return connection


def _is_there(connection: http.client.HTTPSConnection) -> bool:
    """A server that has just been started may not listen yet."""
    try:
        connection.connect()
    except ConnectionRefusedError:
        return False
    return True
