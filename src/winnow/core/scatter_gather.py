"""Two workflows to start from: scatter and gather, and a transfer from client to client.

They know no model, only arrays that can be multiplied and added, and look at one at a time: however large the whole,
memory holds a few of them.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np

from winnow.core.array_spec import ArraySpec, spec_of
from winnow.core.broadcast_and_relay import broadcast, reject_faulty, relay, wait
from winnow.core.events import AnyEvent, Rejected, RoundFinished, Selected
from winnow.core.federation import Federation
from winnow.core.reported_number_checks import MAX_METRIC
from winnow.core.task import Arrays, Cost, Outcome, Reply, Task
from winnow.core.workflow import Snapshot

PART = "model"
INTERCHANGEABLE_DTYPES = {"float32", "float64"}

ArrayStore: TypeAlias = Callable[[Arrays], Arrays]
"""Works arrays out and keeps them somewhere: `dict` does in memory."""


@runtime_checkable
class StoringWorkflow(Protocol):
    """A workflow that keeps what a round has made where it is told to. Where it is not, a deployed job uses files."""

    store: ArrayStore | None


class WeightedMean(Mapping[str, Any]):
    """Σ_k w_k·a_k / Σ_k w_k of several groups of arrays; each is worked out when it is asked for."""

    def __init__(self, groups: Sequence[Arrays], weights: Sequence[float]) -> None:
        self._groups, self._shares = groups, [weight / sum(weights) for weight in weights]

    def __iter__(self) -> Iterator[str]:
        return iter(self._groups[0])

    def __len__(self) -> int:
        return len(self._groups[0])

    def dtype_and_shape(self, name: str) -> Any:
        """What an array will be like, if the groups can tell without reading it."""
        described = getattr(self._groups[0], "dtype_and_shape", None)
        return None if described is None else described(name)

    def __getitem__(self, name: str) -> Any:
        total = self._groups[0][name] * self._shares[0]
        for group, share in zip(self._groups[1:], self._shares[1:], strict=True):
            total += group[name] * share
        return total


class _RoundWorkflow(ABC):
    """Rounds with something that goes out and comes back: what differs is how a round is held."""

    def __init__(
        self,
        task: str,
        arrays: Arrays,
        rounds: int,
        *,
        settings: object = None,
        store: ArrayStore | None = None,
    ) -> None:
        """`task` is the name of what clients are asked; `store` keeps what a round has made, in memory unless told."""
        self._task, self._settings, self._rounds = task, settings, rounds
        self.store = store
        self.arrays = arrays
        self.round = 0

    def run(self, federation: Federation) -> Iterator[AnyEvent]:
        clients = np.arange(len(federation.population))
        while self.round < self._rounds:
            self.round += 1
            at, ones = federation.clock.now, np.ones_like(clients)
            yield Selected(round=self.round, at=at, version=self.round - 1, clients=clients, counts=ones)
            task = Task(
                name=self._task,
                client=0,
                round=self.round,
                version=self.round - 1,
                payload={PART: self.arrays},
                settings=self._settings,
            )
            outcomes = [reject_faulty(outcome, _fault) for outcome in self._ask(federation, task, clients.tolist())]
            replies = [outcome for outcome in outcomes if isinstance(outcome, Reply)]
            if replies:
                self.arrays = (self.store or dict)(self._fold(federation, replies))
            federation.settle(reply.task for reply in replies)
            yield from self._ended(federation, outcomes, replies)

    @abstractmethod
    def _ask(self, federation: Federation, task: Task, clients: list[int]) -> Iterable[Outcome]:
        """Hand out a round's tasks."""

    @abstractmethod
    def _fold(self, federation: Federation, replies: Sequence[Reply]) -> Arrays:
        """What the round has made of at least one reply."""

    def _ended(self, federation: Federation, outcomes: list[Outcome], replies: list[Reply]) -> Iterator[AnyEvent]:
        now = federation.clock.now
        for outcome in outcomes:
            if not isinstance(outcome, Reply):
                yield Rejected(round=self.round, at=now, client=outcome.task.client, reason=outcome.reason)
        spent = Cost.total([reply.cost for reply in replies])
        told = [reply.metrics["loss"] for reply in replies if "loss" in reply.metrics]
        losses = [loss for loss in told if abs(loss) <= MAX_METRIC]
        loss = float(np.mean(losses)) if losses else float("nan")
        yield RoundFinished(
            round=self.round,
            at=now,
            version=self.round,
            metrics={"clients": {"loss": loss}} if losses else {},
            aggregated=np.array([reply.task.client for reply in replies], np.int64),
            loss=loss,
            joules=spent.joules,
            cost=spent,
        )

    def snapshot(self) -> Snapshot:
        return Snapshot(arrays=self.arrays, values={"round": self.round})

    def restore(self, snapshot: Snapshot) -> None:
        self.arrays, self.round = snapshot.arrays, snapshot.values["round"]


class ScatterAndGather(_RoundWorkflow):
    """All clients get the arrays, and the mean of what they return, weighted by their samples, goes out next."""

    def _ask(self, federation: Federation, task: Task, clients: list[int]) -> Iterable[Outcome]:
        return wait(broadcast(federation, task, clients))

    def _fold(self, federation: Federation, replies: Sequence[Reply]) -> Arrays:
        sizes = federation.population.sizes
        return WeightedMean(
            [reply.payload[PART] for reply in replies], [float(sizes[reply.task.client]) for reply in replies]
        )


class CyclicTransfer(_RoundWorkflow):
    """The arrays go from client to client (cyclic weight transfer, Chang et al., 2018)."""

    def _ask(self, federation: Federation, task: Task, clients: list[int]) -> Iterable[Outcome]:
        return relay(federation, task, clients, _fault)

    def _fold(self, federation: Federation, replies: Sequence[Reply]) -> Arrays:
        return replies[-1].payload[PART]


def _fault(reply: Reply) -> str | None:
    """What keeps a reply from taking the place of what its client was sent; None if nothing does."""
    arrays, sent = reply.payload.get(PART, {}), reply.task.payload[PART]
    if arrays.keys() != sent.keys():
        return f"part {PART!r} of the reply does not have the same arrays as the task"
    for name in sent:
        if not _fits(spec_of(arrays, name), spec_of(sent, name)):
            return f"array {name!r} of the reply differs in shape or type from the one sent"
    if not all(_finite(arrays[name]) for name in arrays):
        return "the reply contains NaN or infinite values"
    return None


def _fits(kind: ArraySpec, sent: ArraySpec) -> bool:
    """The same shape and type; only single and double precision may stand for each other."""
    return kind.shape == sent.shape and (kind.dtype == sent.dtype or {kind.dtype, sent.dtype} <= INTERCHANGEABLE_DTYPES)


def _finite(array: Any) -> bool:
    """Whether all numbers are: times zero they are zero, in torch as in NumPy."""
    return bool((array * 0 == 0).all())
