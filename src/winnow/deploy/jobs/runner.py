"""A job's process at the server: it runs the workflow. `python -m winnow.deploy.jobs.runner FD`

The same program that ran in a notebook runs here; its `winnow.run` finds this execution context and uses the real
federation.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from winnow.core import AnyEvent
from winnow.core.scatter_gather import StoringWorkflow
from winnow.deploy.jobs.deployed_run import DeployedRun, OnEvent
from winnow.deploy.jobs.ipc_messages import JobFailed, JobFinished, RunnerLogLine, StartJob, StopRunner, ToRunner
from winnow.deploy.jobs.parent_channel import StopRequestedError, open_parent_channel
from winnow.deploy.jobs.run_bundle import LineForwarder, run_job
from winnow.experiment.execution_context import ExecutionContext
from winnow.experiment.run_workflow import WorkflowSpec
from winnow.runs import RunLabel, RunView

if TYPE_CHECKING:
    from winnow.analytics.question import Question
    from winnow.config.schema import Experiment
    from winnow.experiment.build_training_workflow import RunInputs
    from winnow.experiment.run import Result


class ServerExecutionContext(ExecutionContext):
    """Runs what a job's program asks for over the job's sites."""

    def __init__(self, run: DeployedRun) -> None:
        self._run = run

    def run_experiment(self, experiment: "Experiment", inputs: "RunInputs", on_event: OnEvent) -> "Result":
        from winnow.deploy.jobs.server_training import run_training  # noqa: PLC0415 - others need no torch

        self._run.refuse_second_run()
        return run_training(self._run, experiment, inputs, on_event)

    def run_question(self, question: "Question") -> None:
        from winnow.deploy.jobs.server_analysis import run_analysis  # noqa: PLC0415 - a training needs none of it

        self._run.refuse_second_run()
        run_analysis(self._run, question)

    def run_workflow(self, spec: WorkflowSpec, on_event: OnEvent) -> list[AnyEvent]:
        run = self._run
        run.refuse_second_run()
        if isinstance(spec.workflow, StoringWorkflow) and spec.workflow.store is None:
            spec.workflow.store = run.store
        committed = run.committed_state(in_memory=False)
        if committed is not None:
            spec.workflow.restore(committed)
        run.execute(spec.workflow, on_event, now=0.0 if committed is None else committed.values["now"])
        kind = type(spec.workflow).__name__
        label = RunLabel(name=run.start.job, algorithm=kind, seed=spec.seed, metric="loss")
        run.add_result(RunView(label=label, log=run.log))
        return list(run.log)


def main() -> None:
    server = open_parent_channel(int(sys.argv[1]), ToRunner, ends=StopRunner)
    job = server.receive(StartJob)
    assert job is not None
    run = DeployedRun(server, job)
    sys.stdout = LineForwarder(lambda text: server.send(RunnerLogLine(line=text)))
    try:
        reason = run_job(Path(job.bundle), Path(job.folder), ServerExecutionContext(run))
        server.send(JobFinished(output=run.output, lines=run.lines) if reason is None else JobFailed(reason=reason))
    except StopRequestedError as stopped:
        print(f"stopped: {stopped}", file=sys.stderr)


if __name__ == "__main__":
    main()
