"""A site's mandatory filters, in a process that runs none of a job's own code.

Started as `python -m winnow.deploy.jobs.output_filter FD`.

It passes results of another process through the site's mandatory filters, and describes the data, as a process with
the job's own code could put anything into a description.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from winnow.core import Arrays, DataError, Failure, Handler, Outcome, Payload, Reply, Task, WinnowError
from winnow.deploy.jobs.bundle_format import read_bundle
from winnow.deploy.jobs.error_redaction import redacted_error, set_private_log
from winnow.deploy.jobs.ipc_messages import (
    CannotRunJob,
    FilterResult,
    JobReady,
    PrepareJob,
    StopWorker,
    TaskResult,
    ToWorker,
    WorkerLogLine,
)
from winnow.deploy.jobs.mandatory_filters import mandatory_filters
from winnow.deploy.jobs.parent_channel import StopRequestedError, open_parent_channel
from winnow.deploy.jobs.party_data import load_site_data
from winnow.deploy.jobs.task_executor import SiteHandlers, TaskExecutor
from winnow.deploy.wire.messages import DataDescription
from winnow.deploy.wire.safetensors_files import StoredArrays

TRAIN, MODEL = "train", "model"
"""The task whose results filters can check, and the part of a result that they check."""
FILTER_STATE_PREFIX = "filters."
"""Starts the names of the state that filters keep for a client, and of no state of the job's own code."""


class OutputFilter:
    """Lets out the model of a training, as the filters leave it, and nothing else.

    The job's own code could turn everything else in a result into a message: metrics and their names, which parts there
    are, names and types of arrays, whole numbers, how long it took.
    """

    def __init__(self, prepare: PrepareJob) -> None:
        self._job, self._folder = prepare.job, Path(prepare.folder)
        self._filters = mandatory_filters(prepare.filters)

    def apply(self, request: FilterResult) -> TaskResult:
        """The result as it may leave. The client's new state comes with it, and stays at the site."""
        result, name = request.result, request.task.task.name

        def made(tasks: Sequence[Task], _: None) -> list[Outcome]:
            return [_update(task, _parts(result.payload)) for task in tasks]

        def with_separate_state(tasks: Sequence[Task], site: None, call_next: Handler[None]) -> list[Outcome]:
            """Filters add their state to the next update: code that could change it would get past them."""
            outcomes = call_next([replace(task, client_state=_filter_state(task.client_state)) for task in tasks], site)
            return [_with_state(outcome, _parts(result.new_client_state)) for outcome in outcomes]

        site = SiteHandlers(
            site=None, handlers={name: made}, filters=(with_separate_state, *self._filters), in_memory=None
        )
        [filtered] = TaskExecutor(self._job, self._folder, site).execute(request.task)
        return replace(filtered, result=replace(filtered.result, seconds=0.0))


def _update(task: Task, payload: Payload) -> Outcome:
    """The model that the job's own code returned, if it has the arrays of the one in the task."""
    sent, model = task.payload.get(MODEL, {}), payload.get(MODEL, {})
    if task.name != TRAIN:
        fault = f"this site's filters cannot check results of task '{task.name}' made by the job's own code"
    elif other := sorted(payload.keys() - {MODEL}):
        fault = f"the job's own code returned part '{other[0]}', which this site's filters cannot check"
    elif not model or _array_types(model) != _array_types(sent):
        fault = "the job's own code returned arrays that do not match the task's model (names, shapes or types)"
    else:
        update = {name: model[name] if array.is_floating_point() else array for name, array in sent.items()}
        return Reply(task=task, payload={MODEL: update})
    return Failure(task=task, stage="filtering", reason=fault)


def _array_types(arrays: Arrays) -> Mapping[str, tuple[Any, Any]]:
    return {name: (array.dtype, array.shape) for name, array in arrays.items()}


def _with_state(outcome: Outcome, own: Payload) -> Outcome:
    """The outcome with the state of filters and, under names that are not theirs, that of the job's own code."""
    if not isinstance(outcome, Reply):
        return outcome
    others = {name: part for name, part in own.items() if not name.startswith(FILTER_STATE_PREFIX)}
    return replace(
        outcome,
        new_client_state=others | {FILTER_STATE_PREFIX + name: part for name, part in outcome.new_client_state.items()},
    )


def _filter_state(kept: Payload) -> Payload:
    return {
        name.removeprefix(FILTER_STATE_PREFIX): part
        for name, part in kept.items()
        if name.startswith(FILTER_STATE_PREFIX)
    }


def _description(prepare: PrepareJob) -> DataDescription:
    """Of the data, if there are any. Which samples clients evaluate on depends on the job's seed; how many does not."""
    if not prepare.data:
        return DataDescription(sizes=[])
    bundle = read_bundle(Path(prepare.bundle).read_bytes())
    if "encode" in bundle.settings():  # own code may not run in this process, nor describe the data for it
        raise DataError("this site's filters describe samples as they are, and the job's own code encodes them first")
    return load_site_data(bundle.data_name, prepare.data, seed=0, salt=prepare.job).description()


def _parts(path: str | None) -> Payload:
    if path is None:
        return {}
    with StoredArrays(Path(path)) as stored:
        return {name: dict(part) for name, part in stored.parts().items()}


def main() -> None:
    parent = open_parent_channel(int(sys.argv[1]), ToWorker, ends=StopWorker)
    try:
        prepare = parent.receive(PrepareJob)
        assert prepare is not None
        set_private_log(lambda text: parent.send(WorkerLogLine(line=text)))
        output_filter = OutputFilter(prepare)
        parent.send(JobReady(data=_description(prepare)))
        while (request := parent.receive(FilterResult)) is not None:
            parent.send(output_filter.apply(request))
    except StopRequestedError:
        pass
    except WinnowError as error:
        parent.send(CannotRunJob(reason=redacted_error(error)))


if __name__ == "__main__":
    main()
