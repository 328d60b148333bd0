"""A job's process at a site: it runs the tasks. `python -m winnow.deploy.jobs.worker FD`

It sees the data that the job asked for, and its parent; it opens no connection.
"""

import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

import msgspec

from winnow.config.job_settings import JobSettings
from winnow.core import AnyEvent, DataError, Population
from winnow.deploy.jobs.bundle_format import read_bundle
from winnow.deploy.jobs.client_statement_signatures import submission_id
from winnow.deploy.jobs.deployed_run import OnEvent
from winnow.deploy.jobs.error_redaction import redacted_error, set_private_log
from winnow.deploy.jobs.ipc_messages import (
    AssignClientNumbers,
    CannotRunJob,
    JobReady,
    PrepareJob,
    RunTask,
    StopWorker,
    ToWorker,
    WorkerLogLine,
)
from winnow.deploy.jobs.measurement_units_check import site_lines, unlike_columns
from winnow.deploy.jobs.parent_channel import ParentChannel, StopRequestedError, open_parent_channel
from winnow.deploy.jobs.party_data import SiteData, load_site_data
from winnow.deploy.jobs.party_signing_via_agent import AgentIdentities
from winnow.deploy.jobs.run_bundle import run_job
from winnow.deploy.jobs.task_executor import SiteHandlers, TaskExecutor
from winnow.deploy.wire.messages import DataDescription
from winnow.experiment.execution_context import ExecutionContext
from winnow.experiment.run_workflow import HostedClients, PartyContext, PartyHandlers, WorkflowSpec

if TYPE_CHECKING:
    from winnow.analytics.question import Question
    from winnow.config.schema import Experiment
    from winnow.experiment.build_training_workflow import RunInputs
    from winnow.experiment.run import Result


PARTY_RELEASE = "of a party"
"""The kind of release that a workflow between parties records."""


class SiteExecutionContext(ExecutionContext):
    """Runs a job's tasks with this site's data, until there are no more."""

    def __init__(self, parent: ParentChannel[ToWorker], prepare: PrepareJob) -> None:
        self._parent, self._prepare = parent, prepare

    def run_experiment(self, experiment: "Experiment", inputs: "RunInputs", on_event: OnEvent) -> "Result":
        from winnow.deploy.jobs.encode_party_data import encode_site_data  # noqa: PLC0415
        from winnow.deploy.jobs.site_training import training_handlers  # noqa: PLC0415 - others need no torch

        raw, folder = self._training_data(experiment), Path(self._prepare.folder)
        standardised = experiment.encode is not None and experiment.encode.scale == "standard"
        # Means are taken over rows without labels, too; otherwise what nobody learns from need not be encoded.
        chosen = raw if standardised else self._labelled(experiment, raw)
        encoded = encode_site_data(experiment, chosen, folder, self._log)
        data = self._labelled(experiment, encoded) if standardised else encoded
        submission = submission_id(read_bundle(Path(self._prepare.bundle).read_bytes()))
        identities = AgentIdentities(self._parent, submission, experiment.collect.third_party)
        handlers = training_handlers(
            experiment,
            inputs,
            data,
            self._first_client(data, self._unlike_columns(experiment, data)),
            identities,
            confusion_matrix=self._prepare.confusion_matrix,
            share_evidence=self._prepare.share_evidence,
        )
        self._execute_tasks(handlers, identities.set_task)

    def _log(self, line: str) -> None:
        self._parent.send(WorkerLogLine(line=line))

    def _training_data(self, experiment: "Experiment") -> SiteData:
        wanted, section, job = experiment.data, self._prepare.data, self._prepare.job
        if "columns" not in section:  # which a declared table has
            return load_site_data(wanted.name, section, experiment.seed, job, wanted.preprocessing)
        from winnow.deploy.jobs.table_data import load_table_data  # noqa: PLC0415 - pyarrow is an extra

        return load_table_data(section, wanted, job)

    def _labelled(self, experiment: "Experiment", data: SiteData) -> SiteData:
        """Without rows that lack a label, where the method learns from labels alone."""
        from winnow.config.label_checks import method_name  # noqa: PLC0415 - others need no torch

        if experiment.client.uses_unlabelled:
            return data
        method = method_name(experiment.client)
        labelled, notice = data.labelled_rows(method)
        if notice and self._prepare.filters:  # a process of the site's own describes all rows to the server
            raise DataError(
                f"data {experiment.data.name}: some rows have no label, and {method} learns from labels alone; "
                "remove such rows, because this site's filters count them"
            )
        if notice:
            self._parent.send(WorkerLogLine(line=f"data {experiment.data.name}: {notice}"))
        return labelled

    def run_question(self, question: "Question") -> None:
        from winnow.deploy.jobs.site_analysis import analysis_handlers  # noqa: PLC0415 - a training needs none of it

        bundle = read_bundle(Path(self._prepare.bundle).read_bytes())
        submission = submission_id(bundle)
        identities = AgentIdentities(self._parent, submission)
        parties = JobSettings.model_validate(bundle.settings().get("job", {})).needed
        handlers = analysis_handlers(question, self._prepare, self._client_number, identities, submission, parties)
        self._execute_tasks(handlers, identities.set_task)

    def run_workflow(self, spec: WorkflowSpec, on_event: OnEvent) -> list[AnyEvent]:
        if spec.party_handlers is not None:
            self._run_party(spec, spec.party_handlers)
        data = load_site_data(spec.data.name, self._prepare.data, spec.seed, self._prepare.job, spec.data.preprocessing)
        holdings = HostedClients(clients=data.clients, first=self._first_client(data))
        self._execute_tasks(SiteHandlers(site=holdings, handlers=spec.handlers, volatile=spec.volatile))

    def _run_party(self, spec: WorkflowSpec, party_handlers: PartyHandlers) -> NoReturn:
        """A workflow in which this site is one client, known by its name."""
        from winnow.learn.secure_randomness import secure_stream  # noqa: PLC0415 - others need no torch

        identities = AgentIdentities(self._parent, submission_id(read_bundle(Path(self._prepare.bundle).read_bytes())))
        party = PartyContext(
            section=self._prepare.data,
            site_of=identities.site,
            randomness=secure_stream,
            release=lambda client, number, time: identities.release(client, number, f"{PARTY_RELEASE} {time}") > 0,
        )
        handlers, rows = party_handlers(party)
        self._client_number(DataDescription(sizes=[rows]))
        self._execute_tasks(SiteHandlers(site=None, handlers=handlers, volatile=spec.volatile), identities.set_task)

    def _unlike_columns(self, experiment: "Experiment", data: SiteData) -> Mapping[int, int]:
        """The columns that are not as the job states, for the server; this site's log has them in any case."""
        from winnow.privacy.dp import accountant_for  # noqa: PLC0415 - others need no torch

        unlike = unlike_columns(data) if experiment.data.preprocessing is not None else {}
        for line in site_lines(data.preprocessing, unlike):
            self._parent.send(WorkerLogLine(line=f"data {experiment.data.name}: {line}"))
        guarantees = accountant_for(experiment.composed(), experiment.filters, selection_is_public=True)
        private = guarantees(Population(sizes=data.clients.sizes)) is not None
        return {} if private or self._prepare.filters else unlike

    def _first_client(self, data: SiteData, unlike: Mapping[int, int] | None = None) -> int:
        return self._client_number(msgspec.structs.replace(data.description(), unlike_columns=dict(unlike or {})))

    def _client_number(self, description: DataDescription) -> int:
        """Describe the data to the agent, and wait for the number of this site's first client."""
        self._parent.send(JobReady(data=description))
        if self._prepare.first_client is not None:
            return self._prepare.first_client
        assigned = self._parent.receive(AssignClientNumbers)
        assert assigned is not None
        return assigned.first_client

    def _execute_tasks(self, site: SiteHandlers, before: Callable[[RunTask], None] = lambda run: None) -> NoReturn:
        """Until the agent stops this process; `before` is called with each task before it is executed."""
        if self._prepare.filters:
            from winnow.deploy.jobs.mandatory_filters import mandatory_filters  # noqa: PLC0415 - filters need torch
            from winnow.learn.update_filters import hide_failure_reasons  # noqa: PLC0415

            mandatory = mandatory_filters(self._prepare.filters)
            site = replace(site, filters=(*mandatory, hide_failure_reasons, *site.filters))
        executor = TaskExecutor(self._prepare.job, Path(self._prepare.folder), site)
        while (run := self._parent.receive(RunTask)) is not None:
            before(run)
            for result in executor.execute(run):
                self._parent.send(result)
        raise StopRequestedError("the parent stopped the job")


def main() -> None:
    parent = open_parent_channel(int(sys.argv[1]), ToWorker, ends=StopWorker)
    prepare = parent.receive(PrepareJob)
    assert prepare is not None
    set_private_log(lambda text: parent.send(WorkerLogLine(line=text)))
    try:
        reason = run_job(
            Path(prepare.bundle), Path(prepare.folder), SiteExecutionContext(parent, prepare), redacted_error
        )
        parent.send(CannotRunJob(reason=reason or "the job's program ended without calling winnow.run"))
    except StopRequestedError:
        pass


if __name__ == "__main__":
    main()
