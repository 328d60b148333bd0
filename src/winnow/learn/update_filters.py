"""Filters: what happens to an update between a client's training and the fold.

A `TwoSidedFilter` is a value in the configuration that the server and its sites both read. Its one side wraps the
handlers at a site; the other undoes at the server what has to be undone (bytes become a model again). Filters apply
in the order in which they are written, and are undone in the opposite one. None of them edits an algorithm.
"""

import logging
from abc import abstractmethod
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from msgspec.structs import replace

from winnow.core import (
    UNTIL_ALL,
    Arrays,
    Choice,
    Clock,
    Exchange,
    Failure,
    Federation,
    Filter,
    Handler,
    Outcome,
    Population,
    Randomness,
    Reply,
    Task,
    Until,
)
from winnow.learn.algorithm_part import AlgorithmPart
from winnow.learn.client_round_method import TrainSettings
from winnow.learn.pseudo_labels import TOLD_OF_LABELS
from winnow.learn.reply_checks import unexpected_fault
from winnow.learn.secure_randomness import secure_stream

if TYPE_CHECKING:
    from winnow.learn.algorithm import Algorithm

log = logging.getLogger(__name__)


def task_generator(randomness: Randomness, task: Task, purpose: str) -> np.random.Generator:
    """The randomness for one purpose in one training task."""
    if isinstance(task.settings, TrainSettings):
        return randomness(task.settings.seed, purpose, task.round, task.client)
    assert randomness is secure_stream, "only training tasks carry the seed that randomness repeats under"
    return secure_stream(0)


@dataclass(frozen=True, kw_only=True)
class MessageEstimate:
    """What is known of a message before it is made: the part of an update that it carries, the arrays of that of which
    it tells anything, and what it weighs.
    """

    whole: Arrays
    tells: Arrays
    nbytes: int

    @classmethod
    def plain(cls, part: Arrays) -> "MessageEstimate":
        return cls(whole=part, tells=part, nbytes=sum(tensor.nbytes for tensor in part.values()))


class TwoSidedFilter(Choice, AlgorithmPart):
    """A filter, as both sides know it."""

    packs: ClassVar[bool] = False
    """Whether it turns updates into packets, which no filter after it could read."""

    @abstractmethod
    def at_site(self, randomness: Randomness) -> Filter[Any]:
        """What stands around a site's handlers. It sees what a client has kept, and may add to it."""

    def leaving(self, task: Task) -> Task:
        """The task as it leaves the server. Tasks of one cohort must still share a payload."""
        return task

    def arriving(self, outcome: Outcome) -> Outcome:
        """What arrived, as the workflow may see it."""
        return outcome

    def shrunk(self, message: MessageEstimate) -> MessageEstimate:
        """What becomes of the model's message to the server, as far as that is known in advance."""
        return message

    @abstractmethod
    def privacy_text(self) -> str:
        """Who learns what, under which assumptions, and what it costs."""


def drop_training_loss(tasks: Sequence[Task], site: Any, call_next: Handler[Any]) -> list[Outcome]:
    """A filter for sites whose clients noise hides: none is added to the loss of a training, so it stays there."""
    return [without_training_loss(outcome) for outcome in call_next(tasks, site)]


def without_training_loss(outcome: Outcome) -> Outcome:
    """The outcome of a training without its loss and what else its samples say."""
    if not isinstance(outcome, Reply) or outcome.task.name != "train":
        return outcome
    kept = {name: value for name, value in outcome.metrics.items() if name not in ("loss", *TOLD_OF_LABELS)}
    return replace(outcome, metrics=kept)


def hide_failure_reasons(tasks: Sequence[Task], site: Any, call_next: Handler[Any]) -> list[Outcome]:
    """A filter around what noise is to hide: however a training or a profile fails, it is told in the same words. The
    server chooses the model, and could give each question an error of its own. The site's log says more.
    """
    if tasks[0].name not in ("train", "profile"):
        return list(call_next(tasks, site))
    try:
        outcomes = call_next(tasks, site)
    except Exception as error:
        log.exception("a task raised an exception; the server receives a generic reason")
        outcomes = [Failure(task=task, stage="", reason=str(error)) for task in tasks]
    return [_untold_failure(each) if isinstance(each, Failure) else each for each in outcomes]


def _untold_failure(failure: Failure) -> Failure:
    log.warning("client %d: %s: %s", failure.task.client, failure.stage, failure.reason)
    return replace(failure, stage="answering", reason="the task failed; see the site's log for the reason")


def site_filters(filters: Sequence[TwoSidedFilter], randomness: Randomness) -> tuple[Filter[Any], ...]:
    """The sites' side, for `wrap`, whose first filter is the outermost: an update meets the last of these first."""
    return tuple(each.at_site(randomness) for each in reversed(filters))


def filter_conflict(filters: Sequence[TwoSidedFilter], whole: "Algorithm") -> str | None:
    """The first conflict between filters, or between a filter and the algorithm; None if there is none."""
    if filters and whole.client.sends_predictions:
        return f"filters change models, and client.name = {getattr(whole.client, 'name', '')!r} sends none; remove them"
    for place, each in enumerate(filters):
        later = [getattr(after, "name", "") for after in filters[place + 1 :]]
        if each.packs and later:
            return f"filters: {getattr(each, 'name', '')} must come last; {later[0]!r} cannot read what it has packed"
        if (conflict := each.conflict(whole)) is not None:
            return conflict
    return None


class FilteredFederation:
    """A federation whose updates pass through filters, around any other that has the sites' side of them."""

    def __init__(self, federation: Federation, filters: Sequence[TwoSidedFilter]) -> None:
        self._federation, self._filters = federation, tuple(filters)
        self._share: float | None = None

    @property
    def population(self) -> Population:
        return self._federation.population

    @property
    def clock(self) -> Clock:
        return self._federation.clock

    @property
    def randomness(self) -> Randomness:
        return self._federation.randomness

    @property
    def simulated(self) -> bool:
        return self._federation.simulated

    def dispatch(self, tasks: Iterable[Task], until: Until = UNTIL_ALL) -> "FilteredExchange":
        exchange = FilteredExchange(self)
        exchange.begin(self._federation, tasks, until)
        return exchange

    def settle(self, tasks: Iterable[Task]) -> None:
        self._federation.settle(tasks)

    def leaving(self, task: Task) -> Task:
        """The task as it is sent. A training task says what its reply will really weigh."""
        for each in self._filters:
            task = each.leaving(task)
        if task.name != "train":
            return task
        upload = round(task.work.upload_bytes * self._shrinkage(task))
        return task if upload == task.work.upload_bytes else replace(task, work=replace(task.work, upload_bytes=upload))

    def arriving(self, outcome: Outcome) -> Outcome:
        """The outcome as the workflow sees it."""
        task = outcome.task
        try:
            for each in reversed(self._filters):
                outcome = each.arriving(outcome)
        except Exception as error:
            reason = unexpected_fault("the update cannot be unpacked", task.client, error)
            return Failure(task=task, stage="sending its update", reason=reason)
        return outcome

    def _shrinkage(self, task: Task) -> float:
        """What a reply weighs with these filters, of what it weighs without; shapes are the same all through a run."""
        if self._share is None:
            message = plain = MessageEstimate.plain(task.payload["model"])
            for each in self._filters:
                message = each.shrunk(message)
            self._share = message.nbytes / plain.nbytes
        return self._share


class FilteredExchange(Exchange):
    """An open exchange of a filtered federation."""

    def __init__(self, federation: FilteredFederation) -> None:
        self._filtered = federation
        self._made: dict[tuple[int, int], Task] = {}
        """The tasks as the workflow made them, by id and client."""

    def begin(self, federation: Federation, tasks: Iterable[Task], until: Until) -> None:
        self._exchange: Exchange = federation.dispatch(self._leaving(tasks), until)

    def send(self, tasks: Iterable[Task], since: float | None = None) -> None:
        self._exchange.send(self._leaving(tasks), since)

    def __iter__(self) -> Iterator[Outcome]:
        for outcome in self._exchange:
            made = self._made.pop((outcome.task.id, outcome.task.client), outcome.task)
            yield self._filtered.arriving(replace(outcome, task=made))

    def cancel(self, clients: Collection[int]) -> None:
        self._exchange.cancel(clients)
        self._made = {key: task for key, task in self._made.items() if task.client not in clients}

    def close(self) -> None:
        self._exchange.close()
        self._made.clear()

    def _leaving(self, tasks: Iterable[Task]) -> list[Task]:
        made = list(tasks)
        self._made |= {(task.id, task.client): task for task in made}
        return [self._filtered.leaving(task) for task in made]
