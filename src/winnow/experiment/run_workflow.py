"""Custom workflows with custom handlers, where `winnow.run` would train a model."""

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from pydantic import ValidationError

from winnow.config.validation_error_message import config_error
from winnow.core import AnyEvent, Handler, Population, Randomness, Workflow
from winnow.data import ClientData, ClientsOnDemand, DataSettings, Examples, federate
from winnow.experiment.execution_context import OnEvent, current_context
from winnow.experiment.load_data import load_data


@dataclass(frozen=True, kw_only=True)
class HostedClients:
    """What a site hosts: the samples of its clients, by their numbers in the federation."""

    clients: ClientData | ClientsOnDemand
    first: int = 0

    def examples(self, client: int) -> Examples:
        """A client's own samples."""
        place = client - self.first
        return self.clients.load(place) if isinstance(self.clients, ClientsOnDemand) else self.clients.client(place)


@dataclass(frozen=True, kw_only=True)
class PartyContext:
    """A site that is one client itself, known by its name."""

    section: Mapping[str, Any]
    """What its configuration says of the data that the program asks for."""
    site_of: Callable[[int], str]
    """Which site a client of the job is, by its certificate."""
    randomness: Randomness
    """The source of noise."""
    release: Callable[[int, int, int], bool]
    """Records for good that something of a client leaves in the round of the present task, for the n-th time: whether
    it may.
    """


PartyHandlers: TypeAlias = Callable[[PartyContext], tuple[Mapping[str, Handler[Any]], int]]
"""Gives a party's handlers, and how many rows it has."""


@dataclass(frozen=True, kw_only=True)
class WorkflowSpec:
    """What is to be run: a workflow, and what sites can do for it."""

    workflow: Workflow
    handlers: Mapping[str, Handler[HostedClients]]
    data: DataSettings
    seed: int = 0
    volatile: frozenset[str] = frozenset()
    party_handlers: PartyHandlers | None = None
    """Instead of `handlers`, where every site is one client and reads its data itself."""


def run_workflow(
    workflow: Workflow,
    handlers: Mapping[str, Handler[HostedClients]],
    *,
    data: str | Mapping[str, Any],
    seed: int = 0,
    volatile: Collection[str] = (),
    on_event: OnEvent = lambda event: None,
) -> list[AnyEvent]:
    """Run a workflow over clients whose sites have these handlers: `(tasks, holdings) -> outcomes`.

    `data` names a known set, or is a [data] section (`{"name": "digits", "clients": 10}`). In a submitted program the
    sites' data of that name are used. `volatile` names handlers whose replies hold only while their site's process
    lives, like letters under a key that it drew: a site writes none of them to its disk. Gives what happened; what was
    achieved is in the workflow. Nothing after it is executed at a site, nor where the program is only asked what it
    wants to run.
    """
    settings = _data_settings({"name": data} if isinstance(data, str) else dict(data))
    wanted = WorkflowSpec(workflow=workflow, handlers=handlers, data=settings, seed=seed, volatile=frozenset(volatile))
    context = current_context()
    if context is not None:
        return context.run_workflow(wanted, on_event)
    from winnow.fleet import Devices  # noqa: PLC0415 - in a job none of this is needed, nor torch
    from winnow.simulate import SimulatedFederation  # noqa: PLC0415

    spread = federate(load_data(settings), settings, seed)
    clients = spread.clients
    federation = SimulatedFederation(
        site=HostedClients(clients=clients),
        handlers=handlers,
        population=Population(sizes=clients.sizes),
        fleet=Devices().draw(len(clients), seed, sample_bits=1, corrupted=spread.conditions.corrupted),
    )
    events = []
    for event in workflow.run(federation):
        events.append(event)
        on_event(event)
    return events


def _data_settings(table: dict[str, Any]) -> DataSettings:
    try:
        return DataSettings.model_validate(table)
    except ValidationError as error:
        raise config_error(error, "data", DataSettings, table) from None
