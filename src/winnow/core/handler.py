"""Handlers say what a site can do; filters wrap them.

A site hosts one client or many, and receives the tasks of a round for all of its clients at once: a whole cohort in
simulation, a single task at a hospital, ten at a gateway with ten sensors. So a handler takes a sequence, and a single
client is a cohort of one.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Protocol, TypeAlias, TypeVar

from winnow.core.task import Outcome, Task

Site = TypeVar("Site")

Handler: TypeAlias = Callable[[Sequence[Task], Site], Sequence[Outcome]]
"""Answers tasks that share a name, a version and their settings; one outcome a task, in order."""


class Filter(Protocol[Site]):
    """Middleware around a handler: may change the tasks on their way in and the replies on their way out."""

    def __call__(self, tasks: Sequence[Task], site: Site, call_next: Handler[Site]) -> Sequence[Outcome]: ...


def wrap(handler: Handler[Site], filters: Sequence[Filter[Site]]) -> Handler[Site]:
    """The handler inside its filters; the first filter is the outermost."""
    for layer in reversed(filters):
        handler = partial(layer, call_next=handler)
    return handler
