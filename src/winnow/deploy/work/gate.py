"""The gate of a site: its filters, in a process that runs none of a job's own code. `… -m winnow.deploy.work.gate FD`

It passes answers that another process made through the filters that the site insists on, and says what the data are
where nobody else could be believed.
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from winnow.core import Outcome, Payload, Reply, Task, WinnowError
from winnow.deploy.wire.arrays import StoredArrays
from winnow.deploy.wire.messages import DataDescription
from winnow.deploy.work.bundle import read_bundle
from winnow.deploy.work.data import site_data
from winnow.deploy.work.desk import Desk, Service
from winnow.deploy.work.forced import forced_filters
from winnow.deploy.work.line import HaltedError
from winnow.deploy.work.orders import Cannot, Did, Noted, Prepare, Quit, Ready, Screen, ToWorker
from winnow.deploy.work.process import note_by, open_line, told_outside

TRAIN = "train"
"""The task whose answers are updates, which filters know."""
METRICS = 32
"""A stranger's code may tell so many numbers besides its update."""


class Gate:
    def __init__(self, prepare: Prepare) -> None:
        self._job, self._folder = prepare.job, Path(prepare.folder)
        self._filters = forced_filters(prepare.filters)

    def screen(self, asked: Screen) -> Did:
        """The answer as it may leave; what a filter wants to be kept comes with it.

        Filters judge an update by what was sent: a part that is not a changed copy of one would pass them unseen.
        """
        payload = _parts(asked.did.payload)
        if payload and asked.order.task.name != TRAIN:
            raise WinnowError(
                f"this site's filters cannot judge what the job's code answers to '{asked.order.task.name}'"
            )
        if unknown := sorted(payload.keys() - asked.order.parts.keys()):
            raise WinnowError(
                f"the job's code answers with a part '{unknown[0]}' that this site's filters cannot judge"
            )
        if len(asked.did.answer.metrics) > METRICS:
            raise WinnowError(
                f"the job's code tells {len(asked.did.answer.metrics)} metrics; {METRICS} are the most here"
            )

        def made(tasks: Sequence[Task], _: None) -> list[Outcome]:
            return [
                Reply(
                    task=task,
                    payload=payload,
                    metrics=asked.did.answer.metrics,
                    keep=_parts(asked.did.keep),
                )
                for task in tasks
            ]

        handlers = {asked.order.task.name: made}
        service = Service(site=None, handlers=handlers, filters=self._filters, in_memory=None)
        [did] = Desk(self._job, self._folder, service).answer(asked.order)
        return did


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


def _screened(gate: Gate, asked: Screen) -> Did:
    try:
        return gate.screen(asked)
    except WinnowError as error:
        return Did(answer=replace(asked.did.answer, stage="filtering", failure=str(error)))


def main() -> None:
    line = open_line(int(sys.argv[1]), ToWorker, ends=Quit)
    try:
        prepare = line.receive(Prepare)
        assert prepare is not None
        note_by(lambda text: line.send(Noted(line=text)))
        gate = Gate(prepare)
        line.send(Ready(data=_description(prepare)))
        while (asked := line.receive(Screen)) is not None:
            line.send(_screened(gate, asked))
    except HaltedError:
        pass
    except WinnowError as error:
        line.send(Cannot(reason=told_outside(error)))


if __name__ == "__main__":
    main()
