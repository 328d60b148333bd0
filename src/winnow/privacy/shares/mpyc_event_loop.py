"""An event loop without sockets, timers or threads: it runs what is ready, and stops when nothing moves.

A party waits for nothing but letters, which are handed in between two runs. So it also works where another loop runs
already, as in a notebook.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import Context, copy_context
from typing import Any


class MpycEventLoop:
    """As much of an event loop as asyncio's tasks and futures need."""

    def __init__(self) -> None:
        self._ready: deque[tuple[Callable[..., object], tuple[Any, ...], Context]] = deque()

    def call_soon(self, callback: Callable[..., object], *args: Any, context: Context | None = None) -> None:
        self._ready.append((callback, args, context or copy_context()))

    def run_until_idle(self) -> None:
        """Run whatever is ready; the first error ends it."""
        with self.running():
            while self._ready:
                callback, args, context = self._ready.popleft()
                context.run(callback, *args)

    @contextmanager
    def running(self) -> Iterator[None]:
        """Within it, this is the loop that asyncio finds."""
        outer = asyncio._get_running_loop()
        asyncio._set_running_loop(self)  # type: ignore[arg-type]  # it asks for nothing more
        try:
            yield
        finally:
            asyncio._set_running_loop(outer)

    def is_running(self) -> bool:
        return True

    def get_debug(self) -> bool:
        return False

    def stop(self) -> None:
        """MPyC asks for it when a computation fails; the error itself ends the run."""

    def set_exception_handler(self, handler: object) -> None:
        """MPyC sets one that prints; errors are raised here instead."""

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Of tasks that are dropped with their party."""
