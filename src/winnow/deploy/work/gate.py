"""The gate of a site: its filters, in a process that runs none of a job's own code. `… -m winnow.deploy.work.gate FD`

It passes answers that another process made through the filters that the site insists on. It sees no data.
"""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

import winnow.experiment.schema  # noqa: F401 - brings all filters that there are
from winnow.core import Filter, Outcome, Payload, Reply, Task, WinnowError, wrap
from winnow.deploy.wire.arrays import StoredArrays
from winnow.deploy.wire.messages import DataDescription
from winnow.deploy.work.desk import Desk
from winnow.deploy.work.line import HaltedError
from winnow.deploy.work.orders import Cannot, Did, Prepare, Quit, Ready, Screen, ToWorker
from winnow.deploy.work.process import open_line
from winnow.learn.filters import Filtering, site_filters, unforeseeable

_FILTER: TypeAdapter[Filtering] = TypeAdapter(Filtering)


class Gate:
    def __init__(self, prepare: Prepare) -> None:
        self._job, self._folder = prepare.job, Path(prepare.folder)
        self._filters: tuple[Filter[Any], ...] = site_filters(
            [_FILTER.validate_python(each) for each in prepare.filters], unforeseeable
        )

    def screen(self, asked: Screen) -> Did:
        """The answer as it may leave; what a filter wants to be kept comes with it."""

        def made(tasks: Sequence[Task], _: None) -> list[Outcome]:
            return [
                Reply(
                    task=task,
                    payload=_parts(asked.did.payload),
                    metrics=asked.did.answer.metrics,
                    keep=_parts(asked.did.keep),
                )
                for task in tasks
            ]

        handlers = {asked.order.task.name: wrap(made, self._filters)}
        [did] = Desk(self._job, self._folder, None, handlers, frozenset()).answer(asked.order)
        return did


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
        gate = Gate(prepare)
        line.send(Ready(data=DataDescription(sizes=[])))
        while (asked := line.receive(Screen)) is not None:
            line.send(gate.screen(asked))
    except (WinnowError, ValidationError) as error:
        if not isinstance(error, HaltedError):
            line.send(Cannot(reason=str(error).splitlines()[0]))


if __name__ == "__main__":
    main()
