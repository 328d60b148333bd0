"""A job's process at a site: it does the tasks. `python -m winnow.deploy.jobs.worker FD`

It sees the data that the job asked for, and its parent; it opens no connection.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from winnow.core import AnyEvent
from winnow.deploy.jobs.agent_identities import AgentIdentities
from winnow.deploy.jobs.bootstrap import open_parent_channel, redacted_error, run_job, set_private_log
from winnow.deploy.jobs.bundle_format import read_bundle
from winnow.deploy.jobs.deployed_run import OnEvent
from winnow.deploy.jobs.ipc import AssignClientNumbers as Placed
from winnow.deploy.jobs.ipc import CannotRunJob, JobReady, PrepareJob, RunTask, StopWorker, ToWorker, WorkerLogLine
from winnow.deploy.jobs.local_data import SiteData, load_site_data
from winnow.deploy.jobs.parent_channel import ParentChannel, StopRequestedError
from winnow.deploy.jobs.signed_statements import submission_id
from winnow.deploy.jobs.task_executor import SiteHandlers, TaskExecutor
from winnow.experiment.execution_context import ExecutionContext
from winnow.experiment.run_workflow import HostedClients, WorkflowSpec

if TYPE_CHECKING:
    from winnow.config.schema import Experiment
    from winnow.experiment.run import Result
    from winnow.experiment.setup import RunInputs


class SiteExecutionContext(ExecutionContext):
    """Answers a job's tasks with this site's data, until there are no more."""

    def __init__(self, line: ParentChannel[ToWorker], prepare: PrepareJob) -> None:
        self._line, self._prepare = line, prepare

    def run_experiment(self, experiment: "Experiment", inputs: "RunInputs", on_event: OnEvent) -> "Result":
        from winnow.deploy.jobs.site_training import training_handlers  # noqa: PLC0415 - others need no torch

        data = load_site_data(experiment.data.name, self._prepare.data, experiment.seed, self._prepare.job)
        submission = submission_id(read_bundle(Path(self._prepare.bundle).read_bytes()))
        parties = AgentIdentities(self._line, submission, experiment.collect.third_party)
        self._serve(training_handlers(experiment, inputs, data, self._place(data), parties), parties.attend)

    def run_workflow(self, wanted: WorkflowSpec, on_event: OnEvent) -> list[AnyEvent]:
        data = load_site_data(wanted.data.name, self._prepare.data, wanted.seed, self._prepare.job)
        holdings = HostedClients(clients=data.clients, first=self._place(data))
        self._serve(SiteHandlers(site=holdings, handlers=wanted.handlers))

    def _place(self, data: SiteData) -> int:
        """Say what there is, and learn the number of the first client."""
        self._line.send(JobReady(data=data.description()))
        if self._prepare.clients_from is not None:
            return self._prepare.clients_from
        placed = self._line.receive(Placed)
        assert placed is not None
        return placed.clients_from

    def _serve(self, service: SiteHandlers, attend: Callable[[RunTask], None] = lambda order: None) -> NoReturn:
        """Answer tasks until there are no more; `attend` hears of each before it is done."""
        if self._prepare.filters:
            from winnow.deploy.jobs.mandatory_filters import mandatory_filters  # noqa: PLC0415 - filters need torch
            from winnow.learn.update_filters import hide_failure_reasons  # noqa: PLC0415

            forced = mandatory_filters(self._prepare.filters)
            service = replace(service, filters=(*forced, hide_failure_reasons, *service.filters))
        desk = TaskExecutor(self._prepare.job, Path(self._prepare.folder), service)
        while (order := self._line.receive(RunTask)) is not None:
            attend(order)
            for did in desk.answer(order):
                self._line.send(did)
        raise StopRequestedError("it is over")


def main() -> None:
    line = open_parent_channel(int(sys.argv[1]), ToWorker, ends=StopWorker)
    prepare = line.receive(PrepareJob)
    assert prepare is not None
    set_private_log(lambda text: line.send(WorkerLogLine(line=text)))
    try:
        reason = run_job(
            Path(prepare.bundle), Path(prepare.folder), SiteExecutionContext(line, prepare), redacted_error
        )
        line.send(CannotRunJob(reason=reason or "the job's program ended without winnow.run"))
    except StopRequestedError:
        pass


if __name__ == "__main__":
    main()
