"""A site's mandatory filters, in a process that runs none of a job's own code.

Started as `python -m winnow.deploy.jobs.output_filter FD`.

It passes answers that another process made through the filters that the site insists on, and says what the data are
where nobody else could be believed.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from winnow.core import Arrays, Failure, Handler, Outcome, Payload, Reply, Task, WinnowError
from winnow.deploy.jobs.bootstrap import open_parent_channel, redacted_error, set_private_log
from winnow.deploy.jobs.bundle_format import read_bundle
from winnow.deploy.jobs.ipc import (
    CannotRunJob,
    FilterResult,
    JobReady,
    PrepareJob,
    StopWorker,
    TaskResult,
    ToWorker,
    WorkerLogLine,
)
from winnow.deploy.jobs.local_data import load_site_data
from winnow.deploy.jobs.mandatory_filters import mandatory_filters
from winnow.deploy.jobs.parent_channel import StopRequestedError
from winnow.deploy.jobs.task_executor import SiteHandlers, TaskExecutor
from winnow.deploy.wire.messages import DataDescription
from winnow.deploy.wire.safetensors_files import StoredArrays

TRAIN, MODEL = "train", "model"
"""The task whose answers filters can judge, and the part of an answer that they judge."""
FILTER_STATE_PREFIX = "filters."
"""What filters keep for a client is called so, and what the job's code keeps is not."""


class OutputFilter:
    """Lets out the model of a training, as the filters leave it, and nothing else.

    Of all else that an answer holds the job's code could make a message: metrics and their names, which parts there
    are, names and kinds of arrays, whole numbers, how long it took.
    """

    def __init__(self, prepare: PrepareJob) -> None:
        self._job, self._folder = prepare.job, Path(prepare.folder)
        self._filters = mandatory_filters(prepare.filters)

    def screen(self, asked: FilterResult) -> TaskResult:
        """The answer as it may leave; what is to be kept comes with it, and stays at the site."""
        did, name = asked.did, asked.order.task.name

        def made(tasks: Sequence[Task], _: None) -> list[Outcome]:
            return [_update(task, _parts(did.payload)) for task in tasks]

        def keep_apart(tasks: Sequence[Task], site: None, call_next: Handler[None]) -> list[Outcome]:
            """Filters add what they kept to the next update: code that could change it would get past them."""
            outcomes = call_next([replace(task, client_state=_of_filters(task.client_state)) for task in tasks], site)
            return [_keeping(outcome, _parts(did.new_client_state)) for outcome in outcomes]

        service = SiteHandlers(site=None, handlers={name: made}, filters=(keep_apart, *self._filters), in_memory=None)
        [screened] = TaskExecutor(self._job, self._folder, service).answer(asked.order)
        return replace(screened, answer=replace(screened.answer, seconds=0.0))


def _update(task: Task, payload: Payload) -> Outcome:
    """The model that the job's code answers with, if it has the arrays of the one that came with the task."""
    sent, model = task.payload.get(MODEL, {}), payload.get(MODEL, {})
    if task.name != TRAIN:
        fault = f"this site's filters cannot judge what the job's code answers to '{task.name}'"
    elif other := sorted(payload.keys() - {MODEL}):
        fault = f"the job's code answers with a part '{other[0]}' that this site's filters cannot judge"
    elif not model or _kinds(model) != _kinds(sent):
        fault = "the job's code answers with other arrays than those of the model that came with the task"
    else:
        update = {name: model[name] if array.is_floating_point() else array for name, array in sent.items()}
        return Reply(task=task, payload={MODEL: update})
    return Failure(task=task, stage="filtering", reason=fault)


def _kinds(arrays: Arrays) -> Mapping[str, tuple[Any, Any]]:
    return {name: (array.dtype, array.shape) for name, array in arrays.items()}


def _keeping(outcome: Outcome, own: Payload) -> Outcome:
    """The outcome with what filters keep and, under names that are not theirs, what the job's code does."""
    if not isinstance(outcome, Reply):
        return outcome
    others = {name: part for name, part in own.items() if not name.startswith(FILTER_STATE_PREFIX)}
    return replace(
        outcome,
        new_client_state=others | {FILTER_STATE_PREFIX + name: part for name, part in outcome.new_client_state.items()},
    )


def _of_filters(kept: Payload) -> Payload:
    return {
        name.removeprefix(FILTER_STATE_PREFIX): part
        for name, part in kept.items()
        if name.startswith(FILTER_STATE_PREFIX)
    }


def _description(prepare: PrepareJob) -> DataDescription:
    """Of the data, if they were named. Which samples clients judge by depends on the job's seed; how many does not."""
    if not prepare.data:
        return DataDescription(sizes=[])
    name = read_bundle(Path(prepare.bundle).read_bytes()).data_name
    return load_site_data(name, prepare.data, seed=0, salt=prepare.job).description()


def _parts(path: str | None) -> Payload:
    if path is None:
        return {}
    with StoredArrays(Path(path)) as stored:
        return {name: dict(part) for name, part in stored.parts().items()}


def main() -> None:
    line = open_parent_channel(int(sys.argv[1]), ToWorker, ends=StopWorker)
    try:
        prepare = line.receive(PrepareJob)
        assert prepare is not None
        set_private_log(lambda text: line.send(WorkerLogLine(line=text)))
        gate = OutputFilter(prepare)
        line.send(JobReady(data=_description(prepare)))
        while (asked := line.receive(FilterResult)) is not None:
            line.send(gate.screen(asked))
    except StopRequestedError:
        pass
    except WinnowError as error:
        line.send(CannotRunJob(reason=redacted_error(error)))


if __name__ == "__main__":
    main()
