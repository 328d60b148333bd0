"""A job's process at a site: it does the tasks. `python -m winnow.deploy.work.worker FD`

It sees the data that the job asked for, and its parent; it opens no connection.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import torch
from pydantic import TypeAdapter

from winnow.core import AnyEvent, Filter, Handler, wrap
from winnow.data import ClientData, ClientsOnDemand, Examples
from winnow.deploy.work.data import SiteData, site_data
from winnow.deploy.work.desk import Desk
from winnow.deploy.work.line import HaltedError, Line
from winnow.deploy.work.orders import Cannot, Do, Prepare, Quit, Ready, ToWorker
from winnow.deploy.work.orders import Place as Placed
from winnow.deploy.work.process import open_line, perform
from winnow.experiment.conduct import Conduct, Holdings
from winnow.experiment.place import Place
from winnow.experiment.run import Inputs, OnEvent, Result
from winnow.experiment.schema import Experiment
from winnow.experiment.subject import SAMPLE, Subject, device_for, loss_for, module_for
from winnow.learn.filters import Filtering, site_filters, unforeseeable
from winnow.learn.handlers import HANDLERS
from winnow.learn.stack import ClientSamples, LoadedData, TensorData, allow_tf32, as_tensor


class AtSite(Place):
    """Answers a job's tasks with this site's data, until there are no more."""

    def __init__(self, line: Line[ToWorker], prepare: Prepare) -> None:
        self._line, self._prepare = line, prepare
        self._folder = Path(prepare.folder)

    def execute(self, experiment: Experiment, inputs: Inputs, on_event: OnEvent) -> Result:
        torch.set_num_threads(experiment.engine.threads or 1)
        allow_tf32(experiment.engine.precision)
        data = site_data(experiment.data.name, self._prepare.data, experiment.seed)
        first = self._place(data)
        subject, samples, own_test = _subject(experiment, inputs, data, first)
        besides = experiment.collect.at_sites().around(experiment.select.matched.at_sites())
        filters = (*besides.filters, *site_filters(experiment.filters, unforeseeable))
        handlers = {**HANDLERS, **besides.handlers}
        self._serve(handlers, subject.site(samples, own_test), filters, frozenset(besides.handlers))

    def conduct(self, wanted: Conduct, on_event: OnEvent) -> list[AnyEvent]:
        data = site_data(wanted.data.name, self._prepare.data, wanted.seed)
        holdings = Holdings(clients=data.clients, first=self._place(data))
        self._serve(wanted.handlers, holdings, (), frozenset())

    def _place(self, data: SiteData) -> int:
        """Say what there is, and learn the number of the first client."""
        self._line.send(Ready(data=data.description()))
        if self._prepare.clients_from is not None:
            return self._prepare.clients_from
        placed = self._line.receive(Placed)
        assert placed is not None
        return placed.clients_from

    def _serve(
        self, handlers: Mapping[str, Handler[Any]], site: Any, filters: Sequence[Filter[Any]], volatile: frozenset[str]
    ) -> NoReturn:
        """Answer tasks until there are no more."""
        forced = site_filters([_FILTER.validate_python(each) for each in self._prepare.filters], unforeseeable)
        wrapped = {name: wrap(handler, (*forced, *filters)) for name, handler in handlers.items()}
        desk = Desk(self._prepare.job, self._folder, site, wrapped, volatile)
        while (order := self._line.receive(Do)) is not None:
            for did in desk.answer(order):
                self._line.send(did)
        raise HaltedError("it is over")


_FILTER: TypeAdapter[Filtering] = TypeAdapter(Filtering)


def _subject(
    experiment: Experiment, inputs: Inputs, data: SiteData, first: int
) -> tuple[Subject, ClientSamples, TensorData | None]:
    device = device_for(experiment.engine.device)
    clients, some = data.clients, _few(data.clients)
    module = inputs.module if inputs.module is not None else module_for(experiment, some, clients.classes)
    subject = Subject(
        experiment=experiment,
        module=module.to(device),
        loss=loss_for(experiment, clients.classes, inputs.loss),
        some=(as_tensor(some.x, device), as_tensor(some.y, device)),
        classes=clients.classes,
    )
    own_test = None if data.own_test is None else _in_memory(data.own_test, first, device)
    return subject, _samples(clients, first, device), own_test


def _few(clients: ClientData | ClientsOnDemand) -> Examples:
    """Some samples to try the model on."""
    one = clients.load(0) if isinstance(clients, ClientsOnDemand) else Examples(x=clients.x, y=clients.y)
    return Examples(x=one.x[:SAMPLE], y=one.y[:SAMPLE])


def _samples(clients: ClientData | ClientsOnDemand, first: int, device: torch.device) -> ClientSamples:
    """The samples under the numbers that their clients have in the job."""
    if isinstance(clients, ClientsOnDemand):
        return LoadedData(source=_Numbered(clients, first), device=device)
    return _in_memory(clients, first, device)


def _in_memory(clients: ClientData, first: int, device: torch.device) -> TensorData:
    held = np.arange(first, first + len(clients))
    return replace(TensorData.from_client_data(clients, device), held=held)


class _Numbered:
    """A site's clients, asked for by their numbers in the job."""

    def __init__(self, clients: ClientsOnDemand, first: int) -> None:
        self._clients, self._first = clients, first
        self.sizes = np.concatenate([np.zeros(first, np.int64), clients.sizes])
        self.sample_bytes = clients.sample_bytes

    def gather(self, clients: "np.ndarray[tuple[int], np.dtype[np.int64]]") -> ClientData:
        return self._clients.gather(clients - self._first)


def main() -> None:
    line = open_line(int(sys.argv[1]), ToWorker, ends=Quit)
    prepare = line.receive(Prepare)
    assert prepare is not None
    try:
        reason = perform(Path(prepare.bundle), Path(prepare.folder), AtSite(line, prepare))
        line.send(Cannot(reason=reason or "the job's program ended without winnow.run"))
    except HaltedError:
        pass


if __name__ == "__main__":
    main()
