"""Somebody between a workflow and its federation, who changes tasks or replies on the way."""

from collections.abc import Callable, Iterable
from typing import Any

from winnow.core import UNTIL_ALL, Exchange, Outcome, Task, Until


class Meddling(Exchange):
    """An exchange whose outcomes, and whose tasks, a liar changes."""

    def __init__(self, inner: Exchange, outcome: Callable[[Outcome], Outcome]) -> None:
        self._inner, self._outcome = inner, outcome

    def __iter__(self) -> Any:
        return map(self._outcome, self._inner)

    def send(self, tasks: Iterable[Task], since: float | None = None) -> None:
        self._inner.send(tasks, since)

    def cancel(self, clients: Any) -> None:
        self._inner.cancel(clients)

    def close(self) -> None:
        self._inner.close()


class Liar:
    """A federation between which and the workflow somebody sits."""

    def __init__(
        self,
        federation: Any,
        task: Callable[[Task], Task] = lambda task: task,
        outcome: Callable[[Outcome], Outcome] = lambda outcome: outcome,
    ) -> None:
        self._federation, self._task, self._outcome = federation, task, outcome

    def __getattr__(self, name: str) -> Any:
        return getattr(self._federation, name)

    def dispatch(self, tasks: Iterable[Task], until: Until = UNTIL_ALL) -> Exchange:
        return Meddling(self._federation.dispatch([self._task(task) for task in tasks], until), self._outcome)
