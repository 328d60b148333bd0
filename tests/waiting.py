"""Waiting for what another process or thread does."""

import time
from collections.abc import Callable
from typing import Any

PATIENCE = 120.0
"""Seconds: far more than anything takes on a busy machine. Whoever waits goes on as soon as it is there."""


def eventually(
    look: Callable[[], Any],
    why: str | Callable[[], str] = "it never was",
    seconds: float = PATIENCE,
    *,
    every: float = 0.02,
) -> Any:
    """Return what `look` finds as soon as it finds something; `why` says what is missing otherwise."""
    until = time.monotonic() + seconds
    while not (found := look()):
        assert time.monotonic() < until, why if isinstance(why, str) else why()
        time.sleep(every)
    return found
