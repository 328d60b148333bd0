"""Where noise comes from: the operating system, unless a simulation says that it should repeat under the run's seed."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import numpy as np

from winnow.core import Handler, Outcome, Task
from winnow.learn.randomness import secure_generator

_SIMULATED: ContextVar[bool] = ContextVar("simulated", default=False)


def simulated(tasks: Sequence[Task], site: Any, call_next: Handler[Any]) -> Sequence[Outcome]:
    """A filter around all handlers of a simulated site: within it noise repeats."""
    with _repeating():
        return call_next(tasks, site)


def site_noise(named: Callable[[], np.random.Generator]) -> np.random.Generator:
    """A site's noise: the named stream in a simulation, and otherwise what nobody can foresee."""
    return named() if _SIMULATED.get() else secure_generator()


@contextmanager
def _repeating() -> Iterator[None]:
    before = _SIMULATED.set(True)
    try:
        yield
    finally:
        _SIMULATED.reset(before)
