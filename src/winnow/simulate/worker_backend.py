"""What a worker pool needs from its workers, whatever they are."""

import traceback
from collections.abc import Sequence
from typing import NamedTuple, Protocol, TypeAlias

from winnow.core import Outcome, Task, WinnowError
from winnow.simulate.cohort_chunks import Indices


class WorkerReady(NamedTuple):
    """A worker has started and can be given work."""

    worker: int


class ChunkFinished(NamedTuple):
    """A worker is done with its chunk."""

    worker: int
    outcomes: Sequence[Outcome]


class WorkerLost(NamedTuple):
    """A worker will not answer any more."""

    worker: int
    reason: str


WorkerEvent: TypeAlias = WorkerReady | ChunkFinished | WorkerLost


class WorkerBackend(Protocol):
    """Workers numbered 0, 1, 2 …, which all answer alike."""

    @property
    def processes(self) -> dict[int, int]:
        """The number of each worker's process, on the worker's machine."""

    def start(self, worker: int) -> None:
        """Start a worker; an event says when it is ready."""

    def set_cohort(self, tasks: Sequence[Task]) -> None:
        """The cohort that the next chunks belong to."""

    def submit(self, worker: int, chunk: Indices) -> None:
        """Have the tasks at these places of the cohort answered. If the worker is gone, an event says so."""

    def next_event(self) -> WorkerEvent:
        """Wait until something happens. An error that a handler raised is raised here."""

    def stop_all(self) -> None:
        """Stop all workers at once."""


class WorkerFailure(NamedTuple):
    """A handler raised an error, on its way to where it can be raised again."""

    error: WinnowError | None
    trace: str

    @classmethod
    def from_exception(cls, error: Exception) -> "WorkerFailure":
        """A user's mistake travels as it is, or as its one line if it takes more than that to make it."""
        if not isinstance(error, WinnowError):
            return cls(None, "".join(traceback.format_exception(error)))
        plain = type(error).__init__ is Exception.__init__
        return cls(error if plain else WinnowError(str(error)), "")

    def exception(self) -> Exception:
        return self.error or RuntimeError(f"a worker failed\n{self.trace}")
