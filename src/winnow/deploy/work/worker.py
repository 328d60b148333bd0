"""A job's process at a site: it does the tasks. `python -m winnow.deploy.work.worker FD`

It sees the data that the job asked for, and its parent; it opens no connection.
"""

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, NoReturn

from winnow.core import AnyEvent
from winnow.deploy.work.bundle import read_bundle
from winnow.deploy.work.data import SiteData, site_data
from winnow.deploy.work.desk import Desk, Service
from winnow.deploy.work.drive import OnEvent
from winnow.deploy.work.line import HaltedError, Line
from winnow.deploy.work.orders import Cannot, Do, Noted, Prepare, Quit, Ready, ToWorker
from winnow.deploy.work.orders import Place as Placed
from winnow.deploy.work.parties import AgentsWord
from winnow.deploy.work.process import note_by, open_line, perform, told_outside
from winnow.deploy.work.statements import submission_of
from winnow.experiment.conduct import Conduct, Holdings
from winnow.experiment.place import Place

if TYPE_CHECKING:
    from winnow.experiment.run import Inputs, Result
    from winnow.experiment.schema import Experiment


class AtSite(Place):
    """Answers a job's tasks with this site's data, until there are no more."""

    def __init__(self, line: Line[ToWorker], prepare: Prepare) -> None:
        self._line, self._prepare = line, prepare

    def execute(self, experiment: "Experiment", inputs: "Inputs", on_event: OnEvent) -> "Result":
        from winnow.deploy.work.training import training_service  # noqa: PLC0415 - others need no torch

        data = site_data(experiment.data.name, self._prepare.data, experiment.seed, self._prepare.job)
        submission = submission_of(read_bundle(Path(self._prepare.bundle).read_bytes()))
        parties = AgentsWord(self._line, submission, experiment.collect.third_party)
        self._serve(training_service(experiment, inputs, data, self._place(data), parties), parties.attend)

    def conduct(self, wanted: Conduct, on_event: OnEvent) -> list[AnyEvent]:
        data = site_data(wanted.data.name, self._prepare.data, wanted.seed, self._prepare.job)
        holdings = Holdings(clients=data.clients, first=self._place(data))
        self._serve(Service(site=holdings, handlers=wanted.handlers))

    def _place(self, data: SiteData) -> int:
        """Say what there is, and learn the number of the first client."""
        self._line.send(Ready(data=data.description()))
        if self._prepare.clients_from is not None:
            return self._prepare.clients_from
        placed = self._line.receive(Placed)
        assert placed is not None
        return placed.clients_from

    def _serve(self, service: Service, attend: Callable[[Do], None] = lambda order: None) -> NoReturn:
        """Answer tasks until there are no more; `attend` hears of each before it is done."""
        if self._prepare.filters:
            from winnow.deploy.work.forced import forced_filters  # noqa: PLC0415 - filters need torch
            from winnow.learn.filters import failing_alike  # noqa: PLC0415

            forced = forced_filters(self._prepare.filters)
            service = replace(service, filters=(*forced, failing_alike, *service.filters))
        desk = Desk(self._prepare.job, Path(self._prepare.folder), service)
        while (order := self._line.receive(Do)) is not None:
            attend(order)
            for did in desk.answer(order):
                self._line.send(did)
        raise HaltedError("it is over")


def main() -> None:
    line = open_line(int(sys.argv[1]), ToWorker, ends=Quit)
    prepare = line.receive(Prepare)
    assert prepare is not None
    note_by(lambda text: line.send(Noted(line=text)))
    try:
        reason = perform(Path(prepare.bundle), Path(prepare.folder), AtSite(line, prepare), told_outside)
        line.send(Cannot(reason=reason or "the job's program ended without winnow.run"))
    except HaltedError:
        pass


if __name__ == "__main__":
    main()
