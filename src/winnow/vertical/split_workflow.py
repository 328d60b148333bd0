"""The server's side of split learning: keys in common first, then epochs, each committed before the next begins."""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from winnow.core import AnyEvent, ConfigError, Failure, Federation, Reply, RoundFinished, SiteError, Snapshot, Task
from winnow.core.broadcast_and_relay import peer_messages, reject_faulty, send, wait
from winnow.privacy.set_intersection.workflow import SetIntersection
from winnow.vertical.cut_messages import checked_cut
from winnow.vertical.label_inference import SHARES
from winnow.vertical.split_plan import RowOrder, SplitPlan
from winnow.vertical.split_site import ALIGN, CUT, FORWARD, KEEP, LEARN, MAX_ATTEMPTS, SCORE, SHOW
from winnow.vertical.trained_module import TrainedModule

REFERENCE, LABELS = "reference", "labels"
PeerMessages: TypeAlias = Mapping[int, Mapping[int, bytes]]
Arrays: TypeAlias = Mapping[str, Any]


class EpochError(Exception):
    """An owner did not answer a step: the epoch begins again, from what owners kept."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.reason)
        self.failure = failure


class SplitLearning:
    """Carries activations and gradients between owners, who are named by the plan; one round an epoch.

    They travel in messages that the server cannot read, but in the U shape, where it trains the middle itself.
    """

    def __init__(self, plan: SplitPlan) -> None:
        self._plan = plan
        self._numbers: dict[str, int] = {}
        """The client that each owner is."""
        self._middle = None if plan.middle is None else TrainedModule(plan.middle, plan, "the server")
        self.round = 0
        self.size = 0
        """How many keys the owners have in common."""

    def run(self, federation: Federation) -> Iterator[AnyEvent]:
        self._numbers = _numbers(self._plan.owners, federation.population.names)
        if self.round == 0:
            yield from self._align(federation)
        while self.round - 1 < self._plan.epochs:
            yield self._epoch(federation)
        yield from self._after_epochs(federation)

    def _after_epochs(self, federation: Federation) -> Iterator[AnyEvent]:
        """What a workflow of its own does with what has been learnt."""
        return iter(())

    def snapshot(self) -> Snapshot:
        arrays = {} if self._middle is None else self._middle.arrays()
        return Snapshot(arrays=arrays, values={"round": self.round, "size": self.size})

    def restore(self, snapshot: Snapshot) -> None:
        self.round, self.size = snapshot.values["round"], snapshot.values["size"]
        if self._middle is not None:
            self._middle.restore({name: torch.as_tensor(snapshot.arrays[name]) for name in snapshot.arrays})

    @property
    def middle(self) -> TrainedModule | None:
        return self._middle

    # Rounds -----------------------------------------------------------------------------------------------------------

    def _align(self, federation: Federation) -> Iterator[AnyEvent]:
        owners = [self._numbers[name] for name in self._plan.owners]
        if len(owners) == 1:
            self.size = int(federation.population.sizes[owners[0]])
        else:
            intersection = SetIntersection(clients=owners)
            for _ in intersection.run(federation):
                self.size = intersection.size or 0
        if self.size < self._plan.minimum:
            raise ConfigError(f"owners have {self.size} keys in common; {self._plan.minimum} are the least")
        self.round = 1
        ask = Asking(federation, self._numbers, self.round, 0, 0)
        try:
            replies = ask.all([ask.task(ALIGN, name, 0) for name in self._plan.owners])
        except EpochError as error:
            raise self._site_error(error.failure) from None
        yield self._ended(federation, replies, {})

    def _epoch(self, federation: Federation) -> RoundFinished:
        epoch, before = self.round - 1, None if self._middle is None else self._middle.arrays()
        for attempt in range(MAX_ATTEMPTS):
            ask = Asking(federation, self._numbers, self.round + 1, epoch, attempt)
            try:
                replies = self._steps(ask)
                break
            except EpochError as error:
                if attempt == MAX_ATTEMPTS - 1:
                    raise self._site_error(error.failure) from None
                if self._middle is not None and before is not None:
                    self._middle.restore(before)
        self.round += 1
        told = next(reply for reply in replies if reply.task.client == self._numbers[self._plan.labels])
        return self._ended(federation, replies, told.metrics)

    def _steps(self, ask: "Asking") -> Sequence[Reply]:
        order = self._plan.rows(self.size)
        sizes = [len(order.of_step(order.trained, step)) for step in range(order.steps)]
        if self._plan.pipeline == 1:
            self._one_by_one(ask, sizes)
        else:
            self._overlapping(ask, sizes)
        self._score(ask, order)
        return ask.all([ask.task(KEEP, name, 0) for name in self._plan.owners], _metrics_fault)

    def _one_by_one(self, ask: "Asking", sizes: Sequence[int]) -> None:
        gradients = _NOTHING
        for step in range(len(sizes) + 1):
            shown = ask.all(self._forward(ask, step, gradients))
            if step < len(sizes):
                learnt = ask.all([self._learn(ask, step, self._activations(shown, sizes[step], train=True))])
                gradients = self._gradients(learnt, sizes[step])

    def _overlapping(self, ask: "Asking", sizes: Sequence[int]) -> None:
        """While labels' owner learns from a batch, the others show the next."""
        activations = gradients = _NOTHING
        for tick in range(len(sizes) + 2):
            tasks = self._forward(ask, tick, gradients)
            learns = 1 <= tick <= len(sizes)
            if learns:
                tasks = [*tasks, self._learn(ask, tick - 1, activations)]
            replies = ask.all(tasks)
            learnt = [reply for reply in replies if reply.task.name == LEARN]
            shown = [reply for reply in replies if reply.task.name == FORWARD]
            gradients = self._gradients(learnt, sizes[tick - 1]) if learns else _NOTHING
            activations = self._activations(shown, sizes[tick], train=True) if tick < len(sizes) else _NOTHING

    def _score(self, ask: "Asking", order: RowOrder) -> None:
        for batch in range(order.scored_batches):
            shown = ask.all([ask.task(SHOW, name, batch) for name in self._plan.senders])
            carried = self._activations(shown, len(order.scored(batch)), train=False)
            ask.all([ask.carrying(SCORE, self._plan.labels, batch, carried)])

    # What is carried --------------------------------------------------------------------------------------------------

    def _forward(self, ask: "Asking", step: int, gradients: "Carried") -> list[Task]:
        return [ask.carrying(FORWARD, name, step, gradients) for name in self._plan.senders]

    def _learn(self, ask: "Asking", step: int, activations: "Carried") -> Task:
        return ask.carrying(LEARN, self._plan.labels, step, activations)

    def _activations(self, shown: Sequence[Reply], rows: int, *, train: bool) -> "Carried":
        """For the owner of the labels; what the middle makes of them, where there is one."""
        if self._middle is None:
            return Carried(messages=peer_messages(shown))
        by_client = {reply.task.client: reply for reply in shown}
        inputs = [_cut(by_client[self._numbers[name]], "activations", rows) for name in self._plan.senders]
        outputs = self._middle.forward(*inputs) if train else self._middle.outputs(*inputs)
        return Carried(arrays={self._numbers[self._plan.labels]: {"activations": outputs}})

    def _gradients(self, learnt: Sequence[Reply], rows: int) -> "Carried":
        if self._middle is None:
            return Carried(messages=peer_messages(learnt))
        slopes = self._middle.backward(_cut(learnt[0], "gradient", rows))
        to = (self._numbers[name] for name in self._plan.senders)
        return Carried(arrays={client: {"gradient": slope} for client, slope in zip(to, slopes, strict=True)})

    # Outcomes ---------------------------------------------------------------------------------------------------------

    def _ended(self, federation: Federation, replies: Sequence[Reply], told: Mapping[str, float]) -> RoundFinished:
        federation.settle(reply.task for reply in replies)
        metrics: dict[str, dict[str, float]] = {}
        if told:
            metrics[REFERENCE] = {self._plan.metric.name: told["score"]}
            if labels := {name: told[name] for name in SHARES if name in told}:
                metrics[LABELS] = labels
        return RoundFinished(
            round=self.round,
            at=federation.clock.now,
            version=self.round,
            metrics=metrics,
            aggregated=np.array(sorted(reply.task.client for reply in replies), np.int64),
            loss=told.get("loss", float("nan")),
        )

    def _site_error(self, failure: Failure) -> SiteError:
        names = {number: name for name, number in self._numbers.items()}
        return SiteError(names[failure.task.client], failure.stage, failure.reason)


def _numbers(owners: Sequence[str], names: Sequence[str]) -> dict[str, int]:
    if missing := [name for name in owners if name not in names]:
        taking_part = ", ".join(names)
        raise ConfigError(f"the program has a part for {missing[0]}, who does not take part; there are {taking_part}")
    return {name: names.index(name) for name in owners}


class Carried:
    """What tasks bring to their clients: messages that the server cannot read, or arrays of the U shape."""

    def __init__(self, *, messages: PeerMessages | None = None, arrays: Mapping[int, Arrays] | None = None) -> None:
        self.messages, self.arrays = messages or {}, arrays or {}


_NOTHING = Carried()


class Asking:
    """Tasks of one epoch. Every owner is needed: if one fails, the epoch does."""

    def __init__(
        self, federation: Federation, numbers: Mapping[str, int], round: int, epoch: int, attempt: int
    ) -> None:
        self._federation, self._numbers, self._round = federation, numbers, round
        self._epoch, self._attempt = epoch, attempt

    def task(self, name: str, owner: str, step: int) -> Task:
        return self.carrying(name, owner, step, _NOTHING)

    def carrying(self, name: str, owner: str, step: int, carried: Carried) -> Task:
        client = self._numbers[owner]
        settings = {"owners": dict(self._numbers), "epoch": self._epoch, "attempt": self._attempt, "step": step}
        return Task(
            name=name,
            client=client,
            round=self._round,
            version=self._round - 1,
            settings=settings,
            payload={CUT: carried.arrays[client]} if client in carried.arrays else {},
            peer_messages=carried.messages.get(client, {}),
        )

    def all(self, tasks: Iterable[Task], fault: Callable[[Reply], str | None] = lambda reply: None) -> list[Reply]:
        outcomes = [reject_faulty(outcome, fault) for outcome in wait(send(self._federation, *tasks))]
        for outcome in outcomes:
            if isinstance(outcome, Failure):
                raise EpochError(outcome)
        return [outcome for outcome in outcomes if isinstance(outcome, Reply)]


def _cut(reply: Reply, name: str, rows: int) -> Tensor:
    """Numbers of a reply in the U shape."""
    try:
        return checked_cut(torch.as_tensor(reply.payload[CUT][name]), rows)
    except (KeyError, TypeError, ValueError, RuntimeError) as error:
        raise EpochError(Failure(task=reply.task, stage=reply.task.name, reason=str(error))) from None


def _metrics_fault(reply: Reply) -> str | None:
    wrong = [name for name in SHARES if not 0 <= reply.metrics.get(name, 0.0) <= 1]
    return f"{wrong[0]} is no share" if wrong else None
