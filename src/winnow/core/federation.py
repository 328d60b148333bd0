"""A federation reaches clients: in this process, in worker processes, or over a network.

`dispatch` opens an exchange. Iterate it for outcomes in the order in which they finish, send it more tasks while it is
open, close it to cancel the rest.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Protocol, Self

import numpy as np
from numpy.typing import NDArray

from winnow.core.clock import Clock
from winnow.core.random_streams import Randomness
from winnow.core.task import Outcome, Task


@dataclass(frozen=True, kw_only=True, slots=True)
class Population:
    """All that a workflow may know of the clients before asking them: how many samples each holds, and in some
    federations what they are called.
    """

    sizes: NDArray[np.int64]
    names: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.sizes)


def clients_of(tasks: Sequence[Task]) -> NDArray[np.int64]:
    """The numbers of the clients that the tasks are for."""
    return np.fromiter((task.client for task in tasks), np.int64, len(tasks))


@dataclass(frozen=True, kw_only=True, slots=True)
class Until:
    """When an exchange has enough: after so many replies (failures are none), after so many seconds, or when nobody is
    left who could answer.
    """

    replies: int | None = None
    seconds: float | None = None


UNTIL_ALL = Until()


class Exchange(Protocol):
    """Tasks that were sent to clients, and their outcomes. Leaving its context closes it."""

    def __iter__(self) -> Iterator[Outcome]: ...

    def send(self, tasks: Iterable[Task], since: float | None = None) -> None:
        """Add tasks while the exchange is open; their outcomes join the iteration.

        A workflow that was interrupted sends again what was under way; on virtual time that has been so since then.
        """

    def cancel(self, clients: Collection[int]) -> None:
        """Give up the unanswered tasks of these clients: no outcome of them will come."""

    def close(self) -> None:
        """Cancel what has not been answered."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Federation(Protocol):
    """Sends tasks to clients and receives their replies."""

    @property
    def population(self) -> Population: ...

    @property
    def clock(self) -> Clock: ...

    @property
    def randomness(self) -> Randomness:
        """The source of noise, and of everything else that nobody may predict."""

    @property
    def simulated(self) -> bool:
        """Whether all clients are in this process: nobody lies, and what fails over a valid reply is a bug."""

    def dispatch(self, tasks: Iterable[Task], until: Until = UNTIL_ALL) -> Exchange:
        """Open an exchange with these tasks."""

    def settle(self, tasks: Iterable[Task]) -> None:
        """The replies to these tasks were aggregated: their sites keep what they proposed to keep.

        What others proposed is discarded: a cancelled straggler or a rejected reply changes nothing.
        """
