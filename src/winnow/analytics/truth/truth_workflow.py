"""The server's side of a private truth discovery: two exchanges an iteration, and only sums are opened."""

from collections.abc import Generator, Iterator, Mapping
from dataclasses import replace

import numpy as np

from winnow.analytics.truth.answer_arrays import Numbers
from winnow.analytics.truth.truth_methods import TruthEstimate
from winnow.analytics.truth.truth_site import ADD, DEAL, ESTIMATE, SUM, VALUES, AddTask
from winnow.analytics.truth.truth_terms import HEADER_BYTES, KEPT, TruthTerms
from winnow.analytics.truth.truth_vectors import estimate_from
from winnow.analytics.truth.vector_shares import ENTRY_BYTES, Elements, P, from_fixed_point, join_vector
from winnow.core import (
    AnyEvent,
    Cost,
    Failure,
    Federation,
    Payload,
    Rejected,
    Reply,
    RoundFinished,
    Snapshot,
    Stopped,
    Task,
    Work,
)
from winnow.core.array_spec import ArraySpec, spec_of
from winnow.core.broadcast_and_relay import FindFault, peer_messages, reject_faulty, wait
from winnow.core.join_names import listed
from winnow.privacy.shares.errors import SharesError

ALPHA = 3.0
"""The exponent that the paper finds best."""
MAX_REASONS = 3
"""Of holders who did not add, in one line."""


class TruthDiscovery:
    """A workflow after which `estimate` says how likely each item is; `stopped` says why it ended early, if it did.

    Whoever misses an exchange is not asked again: a participant that came back while the others had settled would show
    its answers by the difference.
    """

    def __init__(self, terms: TruthTerms, iterations: int | None = None, alpha: float = ALPHA) -> None:
        """`alpha` is the exponent of the adaptive update's weight (equation 28)."""
        self.terms, self.iterations, self._alpha = terms, iterations or terms.method.iterations, alpha
        self.estimate: TruthEstimate | None = None
        self.stopped: str | None = None
        self.round = 0
        self.present = list(range(terms.participants))
        self.holders = list(terms.holders)
        """Those who hold shares of everything that was counted."""

    def run(self, federation: Federation) -> Iterator[AnyEvent]:
        while self.round < self.iterations and self.stopped is None:
            spent: list[Cost] = []
            try:
                sums = yield from self._iteration(federation, spent)
            except SharesError as error:
                self.stopped = f"iteration {self.round + 1}: {error}"
                yield Stopped(round=self.round + 1, at=federation.clock.now, reason=self.stopped)
                return
            before, self.estimate = self.estimate, self._next_estimate(sums)
            self.round += 1
            cost = Cost.total(spent)
            yield RoundFinished(
                round=self.round,
                at=federation.clock.now,
                version=self.round,
                metrics={"truth": {"change": _change(before, self.estimate), "present": float(len(self.present))}},
                aggregated=np.array(self.present, np.int64),
                joules=cost.joules,
                cost=cost,
            )

    def snapshot(self) -> Snapshot:
        """Participants keep what they dealt and hold themselves."""
        arrays = {} if self.estimate is None else dict(_estimate_arrays(self.estimate))
        values = {"round": self.round, "stopped": self.stopped, "present": self.present, "holders": self.holders}
        return Snapshot(arrays=arrays, values=values)

    def restore(self, snapshot: Snapshot) -> None:
        values = snapshot.values
        self.round, self.stopped = values["round"], values["stopped"]
        self.present, self.holders = list(values["present"]), list(values["holders"])
        self.estimate = TruthEstimate(**snapshot.arrays) if snapshot.arrays else None

    def _iteration(self, federation: Federation, spent: list[Cost]) -> Generator[AnyEvent, None, Elements]:
        dealt = yield from self._replies(federation, self._deal_tasks(), self._deal_fault, spent)
        self.present = sorted(dealt)
        self.holders = [holder for holder in self.holders if holder in dealt]
        if len(dealt) < self.terms.threshold:
            raise SharesError(f"{len(dealt)} participants dealt shares; {self.terms.threshold} are needed")
        federation.settle([reply.task for reply in dealt.values()])
        refusals: list[str] = []
        asked = len(self.holders)
        tasks = self._add_tasks(dealt)
        added = yield from self._replies(federation, tasks, self._add_fault, spent, refusals)
        self.holders = sorted(added)
        if len(added) < self.terms.threshold:
            why = f" ({listed(sorted({*refusals}), MAX_REASONS)})" if refusals else ""
            raise SharesError(f"{len(added)} of {asked} holders added shares; {self.terms.threshold} are needed{why}")
        sums = {holder: np.asarray(reply.payload[SUM][VALUES]) for holder, reply in added.items()}
        opened = join_vector(sums, self.terms.threshold)
        federation.settle([reply.task for reply in added.values()])
        return opened

    def _deal_tasks(self) -> list[Task]:
        terms, k = self.terms, len(self.terms.holders)
        payload: Payload = {} if self.estimate is None else {ESTIMATE: _estimate_arrays(self.estimate)}
        work = Work(
            training_passes=1.0,  # over one's own answers; who leaves, leaves here
            download_bytes=8 * (terms.items * terms.columns + terms.method.shared_sums),
            upload_bytes=k * (HEADER_BYTES + ENTRY_BYTES * terms.length),
        )
        return [self._task(DEAL, client, payload=payload, work=work) for client in self.present]

    def _add_tasks(self, dealt: Mapping[int, Reply]) -> list[Task]:
        """The senders are fixed here, and are the same for all holders."""
        order, messages = AddTask(senders=tuple(sorted(dealt))), peer_messages(dealt.values())
        size = ENTRY_BYTES * self.terms.length
        work = Work(download_bytes=len(dealt) * (HEADER_BYTES + size), upload_bytes=size)
        return [
            self._task(ADD, holder, settings=order, work=work, peer_messages=messages[holder])
            for holder in self.holders
        ]

    def _task(
        self,
        name: str,
        client: int,
        *,
        work: Work,
        payload: Payload | None = None,
        settings: AddTask | None = None,
        peer_messages: Mapping[int, bytes] | None = None,
    ) -> Task:
        return Task(
            name=name,
            client=client,
            round=self.round + 1,
            version=self.round,
            payload=payload or {},
            settings=settings,
            work=work,
            peer_messages=peer_messages or {},
        )

    def _replies(
        self,
        federation: Federation,
        tasks: list[Task],
        fault: FindFault,
        spent: list[Cost],
        refusals: list[str] | None = None,
    ) -> Generator[AnyEvent, None, dict[int, Reply]]:
        """Every valid reply by client; the others are named, with the reason."""
        replies: dict[int, Reply] = {}
        for outcome in wait(federation.dispatch(tasks)):
            checked, client = reject_faulty(outcome, fault), outcome.task.client
            if isinstance(checked, Failure):
                if refusals is not None:
                    refusals.append(checked.reason)
                yield Rejected(round=self.round + 1, at=federation.clock.now, client=client, reason=checked.reason)
            else:
                spent.append(checked.cost)
                replies[client] = checked
        return replies

    def _deal_fault(self, reply: Reply) -> str | None:
        client, holders = reply.task.client, {*self.terms.holders}
        if reply.payload or {*reply.peer_messages} != holders:
            return f"participant {client} did not write to the {len(holders)} holders alone"
        if len({len(message) for message in reply.peer_messages.values()}) > 1:
            return f"participant {client} wrote messages of different lengths"
        return None

    def _add_fault(self, reply: Reply) -> str | None:
        client = reply.task.client
        if reply.peer_messages or {*reply.payload} != {SUM} or {*reply.payload[SUM]} != {VALUES}:
            return f"participant {client} sent something else than a sum"
        if spec_of(reply.payload[SUM], VALUES) != ArraySpec("uint32", (self.terms.length,)):
            return f"participant {client} sent a sum that does not have {self.terms.length} whole numbers"
        if (np.asarray(reply.payload[SUM][VALUES]) >= P).any():
            return f"participant {client} sent a sum with a value outside the field"
        return None

    def _next_estimate(self, opened: Elements) -> TruthEstimate:
        terms, before = self.terms, self.estimate
        found = estimate_from(terms.method, from_fixed_point(opened, terms.bits), terms.items, before)
        if terms.dropouts == KEPT or before is None:
            return found
        weight = (len(self.present) / terms.participants) ** self._alpha  # equations 27 and 28
        return replace(found, confidence=weight * found.confidence + (1 - weight) * before.confidence)


def _estimate_arrays(estimate: TruthEstimate) -> Mapping[str, Numbers]:
    return {"confidence": estimate.confidence, "shared": estimate.shared}


def _change(before: TruthEstimate | None, after: TruthEstimate) -> float:
    """The largest change of a confidence."""
    if before is None:
        return float("nan")
    return float(np.abs(after.confidence - before.confidence).max())
