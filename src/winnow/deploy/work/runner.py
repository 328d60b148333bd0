"""A job's process at the server: it runs the workflow. `python -m winnow.deploy.work.runner FD`

The same program that ran in a notebook runs here; its `winnow.run` finds this place and drives the real federation.
"""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

from winnow.core import AnyEvent
from winnow.core.workflows import Storing
from winnow.deploy.work.drive import Drive, OnEvent
from winnow.deploy.work.line import HaltedError
from winnow.deploy.work.orders import Begin, Finished, GaveUp, Halt, Said, ToRunner
from winnow.deploy.work.process import Spoken, open_line, perform
from winnow.experiment.conduct import Conduct
from winnow.experiment.place import Place
from winnow.runs import RunLabel, RunView

if TYPE_CHECKING:
    from winnow.experiment.run import Inputs, Result
    from winnow.experiment.schema import Experiment


class AtServer(Place):
    """Where a job's program drives its federation."""

    def __init__(self, drive: Drive) -> None:
        self._drive = drive

    def execute(self, experiment: "Experiment", inputs: "Inputs", on_event: OnEvent) -> "Result":
        from winnow.deploy.work.learning import learn  # noqa: PLC0415 - a workflow without torch need not load it

        self._drive.once()
        return learn(self._drive, experiment, inputs, on_event)

    def conduct(self, wanted: Conduct, on_event: OnEvent) -> list[AnyEvent]:
        drive = self._drive
        drive.once()
        if isinstance(wanted.workflow, Storing) and wanted.workflow.store is None:
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
    line = open_line(int(sys.argv[1]), ToRunner, ends=Halt)
    begin = line.receive(Begin)
    assert begin is not None
    drive = Drive(line, begin)
    sys.stdout = Spoken(lambda text: line.send(Said(line=text)))
    try:
        reason = perform(Path(begin.bundle), Path(begin.folder), AtServer(drive))
        line.send(Finished(output=drive.output, lines=drive.lines) if reason is None else GaveUp(reason=reason))
    except HaltedError as halted:
        print(f"halted: {halted}", file=sys.stderr)


if __name__ == "__main__":
    main()
