"""A browser's side of an ASGI application, without a network: any requests, cookies kept as browsers do."""

from dataclasses import dataclass
from http.cookies import SimpleCookie
from typing import Any
from urllib.parse import unquote, urlencode

import anyio

HERE = "http://127.0.0.1:8765"


@dataclass(frozen=True, kw_only=True)
class Answer:
    status: int
    headers: dict[str, str]
    content: bytes

    @property
    def text(self) -> str:
        return self.content.decode(errors="replace")


class WebClient:
    def __init__(self, app: Any, host: str = "127.0.0.1:8765") -> None:
        self.app, self.host, self.cookies = app, host, dict[str, str]()
        self.comes_from = "127.0.0.1"

    def get(self, address: str, **more: Any) -> Answer:
        return self.request("GET", address, **more)

    def post(self, address: str, **more: Any) -> Answer:
        return self.request("POST", address, **more)

    def request(
        self,
        method: str,
        address: str,
        *,
        headers: dict[str, str] | None = None,
        params: dict[str, str] | None = None,
        content: bytes = b"",
        stop_after: int | None = None,
    ) -> Answer:
        """Send a request as it is; a stream is left after so many pieces."""
        path, _, query = (address + ("?" + urlencode(params) if params else "")).partition("?")
        sent = {"host": self.host, **({"content-length": str(len(content))} if content else {}), **(headers or {})}
        if self.cookies and "cookie" not in sent:
            sent["cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        scope = {
            "type": "http",
            "asgi": {"version": "3.0"},
            "http_version": "1.1",
            "method": method,
            "scheme": "http",
            "path": unquote(path),
            "raw_path": path.encode("latin-1", "replace"),
            "query_string": query.encode("latin-1", "replace"),
            "headers": [
                (name.lower().encode("latin-1"), value.encode("latin-1", "replace")) for name, value in sent.items()
            ],
            "server": ("127.0.0.1", 8765),
            "client": (self.comes_from, 50_000),
        }
        answer = anyio.run(self._exchange, scope, content, stop_after)
        cookies = SimpleCookie(answer.headers.get("set-cookie", ""))
        self.cookies |= {name: morsel.value for name, morsel in cookies.items()}
        return answer

    async def _exchange(self, scope: dict[str, Any], content: bytes, stop_after: int | None) -> Answer:
        status, headers, pieces = 0, dict[str, str](), list[bytes]()
        asked = False

        async def receive() -> dict[str, Any]:
            nonlocal asked
            if asked:
                await anyio.sleep_forever()
            asked = True
            return {"type": "http.request", "body": content, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                headers.update({name.decode(): value.decode() for name, value in message["headers"]})
                return
            pieces.append(message.get("body", b""))
            if len(pieces) == stop_after:
                running.cancel()

        with anyio.CancelScope() as running:
            await self.app(scope, receive, send)
        return Answer(status=status, headers=headers, content=b"".join(pieces))
