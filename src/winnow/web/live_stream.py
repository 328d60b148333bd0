"""Server-sent events: what changes on a page while it is open."""

from collections.abc import AsyncIterator, Callable
from typing import Any, TypeAlias

import anyio
import anyio.to_thread
import msgspec
from fastapi import Request
from fastapi.responses import StreamingResponse

from winnow.runs.event_log import json_default
from winnow.web.sessions import Session

Look: TypeAlias = Callable[[], dict[str, Any] | None]
"""What is new for a page since the last time; None for nothing. `ended` in it ends the stream."""
POLL_SECONDS, KEEP_ALIVE_SECONDS = 0.25, 15.0
CALM_SECONDS = 10.0
"""After so long without news, a page is looked after half as often."""


def live_response(request: Request, look: Look, seconds: float = POLL_SECONDS) -> StreamingResponse:
    """A stream that asks `look` every so often, in a thread, and sends what it finds."""
    session: Session = request.scope["winnow.session"]
    session.check_streams()
    return StreamingResponse(_messages(session, look, seconds), media_type="text/event-stream")


async def _messages(session: Session, look: Look, seconds: float) -> AsyncIterator[bytes]:
    quiet = since_keep_alive = 0.0
    with session.stream():
        yield b"retry: 1000\n\n"
        while not session.is_over:
            found = await anyio.to_thread.run_sync(look)
            if found is not None:
                if "id" in found:  # which a browser says when it comes back
                    yield f"id: {found['id']}\n".encode()
                yield b"data: " + msgspec.json.encode(found, enc_hook=json_default) + b"\n\n"
                quiet = since_keep_alive = 0.0
                if found.get("ended"):
                    return
            elif since_keep_alive >= KEEP_ALIVE_SECONDS:
                yield b": nothing new\n\n"  # so that a browser that has gone is noticed
                since_keep_alive = 0.0
            pause = seconds if quiet < CALM_SECONDS else 2 * seconds
            await anyio.sleep(pause)
            quiet, since_keep_alive = quiet + pause, since_keep_alive + pause
