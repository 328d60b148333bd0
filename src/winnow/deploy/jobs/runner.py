"""A job's process at the server: it runs the workflow. `python -m winnow.deploy.jobs.runner FD`

The same program that ran in a notebook runs here; its `winnow.run` finds this place and drives the real federation.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from winnow.core import AnyEvent
from winnow.core.basic_workflows import StoringWorkflow
from winnow.deploy.jobs.bootstrap import LineForwarder, open_parent_channel, run_job
from winnow.deploy.jobs.deployed_run import DeployedRun, OnEvent
from winnow.deploy.jobs.ipc import JobFailed, JobFinished, RunnerLogLine, StartJob, StopRunner, ToRunner
from winnow.deploy.jobs.parent_channel import StopRequestedError
from winnow.experiment.execution_context import ExecutionContext
from winnow.experiment.run_workflow import WorkflowSpec
from winnow.runs import RunLabel, RunView

if TYPE_CHECKING:
    from winnow.config.schema import Experiment
    from winnow.experiment.run import Result
    from winnow.experiment.setup import RunInputs


class ServerExecutionContext(ExecutionContext):
    """Where a job's program drives its federation."""

    def __init__(self, drive: DeployedRun) -> None:
        self._drive = drive

    def run_experiment(self, experiment: "Experiment", inputs: "RunInputs", on_event: OnEvent) -> "Result":
        from winnow.deploy.jobs.server_training import learn  # noqa: PLC0415 - a workflow without torch need not load it

        self._drive.once()
        return learn(self._drive, experiment, inputs, on_event)

    def run_workflow(self, wanted: WorkflowSpec, on_event: OnEvent) -> list[AnyEvent]:
        drive = self._drive
        drive.once()
        if isinstance(wanted.workflow, StoringWorkflow) and wanted.workflow.store is None:
            wanted.workflow.store = drive.store
        committed = drive.committed(in_memory=False)
        if committed is not None:
            wanted.workflow.restore(committed)
        drive.run(wanted.workflow, on_event, now=0.0 if committed is None else committed.values["now"])
        kind = type(wanted.workflow).__name__
        label = RunLabel(name=drive.begin.job, algorithm=kind, seed=wanted.seed, metric="loss")
        drive.put_out_result(RunView(label=label, log=drive.log))
        return list(drive.log)


def main() -> None:
    line = open_parent_channel(int(sys.argv[1]), ToRunner, ends=StopRunner)
    begin = line.receive(StartJob)
    assert begin is not None
    drive = DeployedRun(line, begin)
    sys.stdout = LineForwarder(lambda text: line.send(RunnerLogLine(line=text)))
    try:
        reason = run_job(Path(begin.bundle), Path(begin.folder), ServerExecutionContext(drive))
        line.send(JobFinished(output=drive.output, lines=drive.lines) if reason is None else JobFailed(reason=reason))
    except StopRequestedError as halted:
        print(f"stopped: {halted}", file=sys.stderr)


if __name__ == "__main__":
    main()
