"""What sites hear at the end of a round: whose replies were aggregated, and which tasks have ended."""

from collections import defaultdict
from collections.abc import Iterable, Sequence

from winnow.core import Task

SettledClients = dict[str, dict[str, list[int]]]
"""By site and task, clients."""


class SettlementTracker:
    """Keeps count of the tasks at sites. A client's part in a task ends once its outcome has been used, or nobody waits
    for it any more; an answer that has arrived and waits for its turn is not over yet.
    """

    def __init__(self) -> None:
        self._open: dict[str, tuple[str, set[int]]] = {}
        self._sent: dict[tuple[int, int], tuple[str, str]] = {}
        """By the task's id and client: its site, and its id on the wire."""
        self._folded: SettledClients = {}

    def begin(self, site: str, wire_id: str, tasks: Sequence[Task]) -> None:
        clients = self._open.setdefault(wire_id, (site, set()))[1]
        clients.update(task.client for task in tasks)
        self._sent |= {(task.id, task.client): (site, wire_id) for task in tasks}

    def ended(self, wire_id: str, client: int) -> None:
        if wire_id in self._open:
            self._open[wire_id][1].discard(client)

    def fold(self, tasks: Iterable[Task]) -> None:
        """The replies to these tasks were folded. Of those that ended in an earlier round nothing is held any more."""
        for task in tasks:
            if (task.id, task.client) in self._sent:
                site, wire_id = self._sent[task.id, task.client]
                self._folded.setdefault(site, {}).setdefault(wire_id, []).append(task.client)

    @property
    def idle(self) -> bool:
        """Whether no site has anything to do."""
        return not self._open

    def take(self) -> tuple[SettledClients, dict[str, list[str]]]:
        """Whose replies were folded since this was asked last, and which tasks ended; they are forgotten here."""
        settled, self._folded = self._folded, {}
        over: dict[str, list[str]] = defaultdict(list)
        for wire_id, (site, clients) in list(self._open.items()):
            if not clients:
                over[site].append(wire_id)
                del self._open[wire_id]
        self._sent = {key: sent for key, sent in self._sent.items() if sent[1] in self._open}
        return settled, dict(over)
