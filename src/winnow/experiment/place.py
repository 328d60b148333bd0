"""Where a program's `winnow.run` happens: here, in a simulation, unless this process has a place in a deployed job.

There the same program is executed by the server and by every site, and `winnow.run` meets its place, which takes its
part in the job instead.
"""

from typing import TYPE_CHECKING, Protocol

from winnow.core import AnyEvent

if TYPE_CHECKING:
    from winnow.experiment.conduct import Conduct
    from winnow.experiment.run import Inputs, OnEvent, Result
    from winnow.experiment.schema import Experiment


class Place(Protocol):
    """What this process is in a job."""

    def execute(self, experiment: "Experiment", inputs: "Inputs", on_event: "OnEvent") -> "Result":
        """Take part in an experiment."""

    def conduct(self, wanted: "Conduct", on_event: "OnEvent") -> list[AnyEvent]:
        """Take part in a workflow of the program's own."""


_taken: list[Place] = []


def take(place: Place) -> None:
    """From now on, experiments run in this place."""
    _taken[:] = [place]


def leave() -> None:
    """Back to simulation."""
    _taken.clear()


def current() -> Place | None:
    return _taken[0] if _taken else None
