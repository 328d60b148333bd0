"""Giving up a transfer in which nothing moves any more."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from threading import Event, Thread


class StallDetector:
    """Patience of so many seconds with the other side; the pauses of our own do not count."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._moved = time.monotonic()
        self._paused = False

    @contextmanager
    def paused(self) -> Iterator[None]:
        self._paused = True
        try:
            yield
        finally:
            self._moved = time.monotonic()
            self._paused = False

    def track(self, items: Iterable[bytes]) -> Iterator[bytes]:
        """The other side takes one after another; making them is our own affair."""
        iterator = iter(items)
        while True:
            with self.paused():
                item = next(iterator, None)
            if item is None:
                return
            yield item

    @contextmanager
    def running(self, give_up: Callable[[], object]) -> Iterator[None]:
        """Meanwhile, call `give_up` after the timeout."""
        over = Event()

        def wait() -> None:
            while not over.wait(self._remaining()):
                if self._remaining() <= 0:
                    give_up()
                    return

        thread = Thread(target=wait, name="stall-watch", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    def _remaining(self) -> float:
        return self._seconds if self._paused else max(0.0, self._moved + self._seconds - time.monotonic())
