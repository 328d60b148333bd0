"""Who asks whom: one client asks each of the others in turn, each time about what is left."""

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from winnow.core import (
    AnyEvent,
    ConfigError,
    Cost,
    Failure,
    Federation,
    Reply,
    RoundFinished,
    SiteError,
    Snapshot,
    Task,
)
from winnow.core.broadcast_and_relay import peer_messages, send, wait
from winnow.privacy.set_intersection.psi_protocol import Reveal
from winnow.privacy.set_intersection.site import ANSWER, FINISH, INTERSECT, QUERY, SHARE_RESULT

ROUND = 1
MAX_SIZE = 2**53
"""No intersection is larger."""


class SetIntersection:
    """A workflow after which `size` says how many identifiers all `clients` have in common.

    Only sites learn which they are (see `SetIntersectionSite`). The first of the clients asks, the others answer. With
    three or more it also learns what it shares with the second, the second and third, and so on; each of the others
    learns how many identifiers the first has. That is more than a size, so with three or more `reveal` cannot be
    "size". The server relays messages that sites encrypt for one another, and learns the size, and from the messages'
    lengths roughly how many identifiers each has.
    """

    def __init__(self, *, clients: Sequence[int] | None = None, reveal: Reveal = "intersection") -> None:
        self._clients, self._reveal = clients, reveal
        self._spent: list[Cost] = []
        self.size: int | None = None

    def run(self, federation: Federation) -> Iterator[AnyEvent]:
        if self.size is not None:
            return
        asker, *others = self._parties(len(federation.population))
        for other in others:
            question = self._ask(federation, QUERY, asker, settings=other)
            answer = self._ask(federation, ANSWER, other, peer_messages([question]).get(other, {}))
            self._ask(federation, INTERSECT, asker, peer_messages([answer]).get(asker, {}))
        end = self._ask(federation, FINISH, asker)
        size = end.metrics.get("size", -1.0)
        if not 0 <= size <= MAX_SIZE:
            raise SiteError(f"of client {asker}", FINISH, "its reply has no valid intersection size")
        shared = peer_messages([end])
        for other in others:
            if other in shared:
                self._ask(federation, SHARE_RESULT, other, shared[other])
        self.size = int(size)
        spent = Cost.total(self._spent)
        yield RoundFinished(
            round=ROUND,
            at=federation.clock.now,
            version=ROUND,
            metrics={"intersection": {"size": float(self.size)}},
            aggregated=np.array([asker, *others], np.int64),
            joules=spent.joules,
            cost=spent,
        )

    def snapshot(self) -> Snapshot:
        """Before the end there is nothing to keep: an interrupted intersection begins again, with fresh keys."""
        return Snapshot(arrays={}, values={"size": self.size})

    def restore(self, snapshot: Snapshot) -> None:
        self.size = snapshot.values["size"]

    def _parties(self, population: int) -> list[int]:
        found = list(range(population) if self._clients is None else self._clients)
        if len({*found}) != len(found) or len(found) < 2 or not {*found} <= {*range(population)}:
            raise ConfigError(f"clients: an intersection takes two or more different ones out of 0 to {population - 1}")
        if self._reveal == "size" and len(found) > 2:
            raise ConfigError(
                f'reveal = "size" takes two clients, not {len(found)}: the first would learn which identifiers it '
                'shares with the second; write reveal = "intersection", or ask two at a time'
            )
        return found

    def _ask(
        self,
        federation: Federation,
        name: str,
        client: int,
        received: Mapping[int, bytes] | None = None,
        settings: int | None = None,
    ) -> Reply:
        task = Task(
            name=name, client=client, round=ROUND, version=ROUND - 1, settings=settings, peer_messages=received or {}
        )
        (outcome,) = wait(send(federation, task))
        if isinstance(outcome, Failure):
            raise SiteError(f"of client {client}", outcome.stage, outcome.reason)
        self._spent.append(outcome.cost)
        return outcome
