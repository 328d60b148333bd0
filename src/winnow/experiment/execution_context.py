"""Where a program's `winnow.run` happens: here, in a simulation, unless this process has a place in a deployed job.

There the same program is executed by the server and by every site, and `winnow.run` meets its place, which takes its
part in the job instead.
"""

from typing import TYPE_CHECKING, Protocol

from winnow.core import AnyEvent

if TYPE_CHECKING:
    from winnow.config.schema import Experiment
    from winnow.experiment.run import OnEvent, Result, RunInputs
    from winnow.experiment.run_workflow import WorkflowSpec


class ExecutionContext(Protocol):
    """What this process is in a job."""

    def execute(self, experiment: "Experiment", inputs: "RunInputs", on_event: "OnEvent") -> "Result":
        """Take part in an experiment."""

    def conduct(self, wanted: "WorkflowSpec", on_event: "OnEvent") -> list[AnyEvent]:
        """Take part in a workflow of the program's own."""


_active: list[ExecutionContext] = []


def enter_context(place: ExecutionContext) -> None:
    """From now on, experiments run in this place."""
    _active[:] = [place]


def leave_context() -> None:
    """Back to simulation."""
    _active.clear()


def current_context() -> ExecutionContext | None:
    return _active[0] if _active else None
