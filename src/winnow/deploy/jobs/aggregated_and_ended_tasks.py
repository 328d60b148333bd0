"""What sites are told at the end of a round: whose replies were aggregated, and which tasks have ended."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from winnow.core import Task

SettledClients = dict[str, dict[str, list[int]]]
"""Clients, by site and wire task."""
EndedTasks = dict[str, list[str]]
"""Wire tasks, by site."""


class SettlementTracker:
    """Tracks the wire tasks at sites. For a client, a task ends once its outcome was handed to the workflow or nobody
    waits for it any more; a result that has arrived but was not handed on yet does not end it.
    """

    def __init__(self) -> None:
        self._open: dict[str, tuple[str, set[int]]] = {}
        self._sent: dict[tuple[int, int], tuple[str, str]] = {}
        """By the task's id and client: its site and wire task."""
        self._aggregated: SettledClients = {}

    def begin(self, site: str, wire_id: str, tasks: Sequence[Task]) -> None:
        clients = self._open.setdefault(wire_id, (site, set()))[1]
        clients.update(task.client for task in tasks)
        self._sent |= {(task.id, task.client): (site, wire_id) for task in tasks}

    def ended(self, wire_id: str, client: int) -> None:
        if wire_id in self._open:
            self._open[wire_id][1].discard(client)

    def aggregated(self, tasks: Iterable[Task]) -> None:
        """The replies to these tasks were aggregated. Tasks that ended in an earlier round are not tracked any more."""
        for task in tasks:
            if (task.id, task.client) in self._sent:
                site, wire_id = self._sent[task.id, task.client]
                self._aggregated.setdefault(site, {}).setdefault(wire_id, []).append(task.client)

    @property
    def idle(self) -> bool:
        """Whether no task is open at any site."""
        return not self._open

    def end_round(self) -> tuple[SettledClients, EndedTasks]:
        """Whose replies were aggregated in this round, and which tasks ended; they are not tracked any more."""
        settled, self._aggregated = self._aggregated, {}
        ended: EndedTasks = defaultdict(list)
        for wire_id, (site, clients) in list(self._open.items()):
            if not clients:
                ended[site].append(wire_id)
                del self._open[wire_id]
        self._sent = {key: sent for key, sent in self._sent.items() if sent[1] in self._open}
        return settled, dict(ended)
