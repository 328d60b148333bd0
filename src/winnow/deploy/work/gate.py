"""The gate of a site: its filters, in a process that runs none of a job's own code. `… -m winnow.deploy.work.gate FD`

It passes answers that another process made through the filters that the site insists on, and says what the data are
where nobody else could be believed.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

from winnow.core import Arrays, Failure, Handler, Outcome, Payload, Reply, Task, WinnowError
from winnow.deploy.wire.arrays import StoredArrays
from winnow.deploy.wire.messages import DataDescription
from winnow.deploy.work.bundle import read_bundle
from winnow.deploy.work.data import site_data
from winnow.deploy.work.desk import Desk, Service
from winnow.deploy.work.forced import forced_filters
from winnow.deploy.work.line import HaltedError
from winnow.deploy.work.orders import Cannot, Did, Noted, Prepare, Quit, Ready, Screen, ToWorker
from winnow.deploy.work.process import note_by, open_line, told_outside

TRAIN, MODEL = "train", "model"
"""The task whose answers filters can judge, and the part of an answer that they judge."""
FILTERS = "filters."
"""What filters keep for a client is called so, and what the job's code keeps is not."""


class Gate:
    """Lets out the model of a training, as the filters leave it, and nothing else.

    Of all else that an answer holds the job's code could make a message: metrics and their names, which parts there
    are, names and kinds of arrays, whole numbers, how long it took.
    """

    def __init__(self, prepare: Prepare) -> None:
        self._job, self._folder = prepare.job, Path(prepare.folder)
        self._filters = forced_filters(prepare.filters)

    def screen(self, asked: Screen) -> Did:
        """The answer as it may leave; what is to be kept comes with it, and stays at the site."""
        did, name = asked.did, asked.order.task.name

        def made(tasks: Sequence[Task], _: None) -> list[Outcome]:
            return [_update(task, _parts(did.payload)) for task in tasks]

        def keep_apart(tasks: Sequence[Task], site: None, call_next: Handler[None]) -> list[Outcome]:
            """Filters add what they kept to the next update: code that could change it would get past them."""
            outcomes = call_next([replace(task, kept=_of_filters(task.kept)) for task in tasks], site)
            return [_keeping(outcome, _parts(did.keep)) for outcome in outcomes]

        service = Service(site=None, handlers={name: made}, filters=(keep_apart, *self._filters), in_memory=None)
        [screened] = Desk(self._job, self._folder, service).answer(asked.order)
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
    others = {name: part for name, part in own.items() if not name.startswith(FILTERS)}
    return replace(outcome, keep=others | {FILTERS + name: part for name, part in outcome.keep.items()})


def _of_filters(kept: Payload) -> Payload:
    return {name.removeprefix(FILTERS): part for name, part in kept.items() if name.startswith(FILTERS)}


def _description(prepare: Prepare) -> DataDescription:
    """Of the data, if they were named. Which samples clients judge by depends on the job's seed; how many does not."""
    if not prepare.data:
        return DataDescription(sizes=[])
    name = read_bundle(Path(prepare.bundle).read_bytes()).data_name
    return site_data(name, prepare.data, seed=0, salt=prepare.job).description()


def _parts(path: str | None) -> Payload:
    if path is None:
        return {}
    with StoredArrays(Path(path)) as stored:
        return {name: dict(part) for name, part in stored.parts().items()}


def main() -> None:
    line = open_line(int(sys.argv[1]), ToWorker, ends=Quit)
    try:
        prepare = line.receive(Prepare)
        assert prepare is not None
        note_by(lambda text: line.send(Noted(line=text)))
        gate = Gate(prepare)
        line.send(Ready(data=_description(prepare)))
        while (asked := line.receive(Screen)) is not None:
            line.send(gate.screen(asked))
    except HaltedError:
        pass
    except WinnowError as error:
        line.send(Cannot(reason=told_outside(error)))


if __name__ == "__main__":
    main()
