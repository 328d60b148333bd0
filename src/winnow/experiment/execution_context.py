"""Where a program's `winnow.run` happens: in a simulation, unless this process takes part in a deployed job.

In a job the server and every site execute the same program; `winnow.run` finds the process's execution context there,
and takes part in the job instead of simulating it.
"""

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Protocol, TypeAlias

from winnow.core import AnyEvent

if TYPE_CHECKING:
    from winnow.analytics.question import Question
    from winnow.config.schema import Experiment
    from winnow.experiment.build_training_workflow import RunInputs
    from winnow.experiment.run import Result
    from winnow.experiment.run_workflow import WorkflowSpec

OnEvent: TypeAlias = Callable[[AnyEvent], object]


class ExecutionContext(Protocol):
    """The role of this process in a job."""

    has_data_files: ClassVar[bool] = False
    """Whether files that the program names are here: they are on the author's machine, and not at the parties."""

    def run_experiment(self, experiment: "Experiment", inputs: "RunInputs", on_event: OnEvent) -> "Result":
        """Take part in an experiment."""

    def run_question(self, question: "Question") -> None:
        """Take part in the answer to a question about a table."""

    def run_workflow(self, wanted: "WorkflowSpec", on_event: OnEvent) -> list[AnyEvent]:
        """Take part in a workflow of the program's own."""


_active: list[ExecutionContext] = []


def enter_context(context: ExecutionContext) -> None:
    """From now on, experiments run in this context."""
    _active[:] = [context]


def leave_context() -> None:
    """Back to simulation."""
    _active.clear()


def current_context() -> ExecutionContext | None:
    return _active[0] if _active else None
