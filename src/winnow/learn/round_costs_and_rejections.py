"""What a round costs and whom it rejects, noted until the round's end is reported."""

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from winnow.core import AnyEvent, Cost, Metrics, Rejected, Reply, RoundFinished
from winnow.learn.collect import RoundResult
from winnow.learn.reply_checks import Rejection


class RoundRecord:
    """The costs and rejections of the round under way: those of its training and of every exchange besides."""

    def __init__(self) -> None:
        self._costs: list[Cost] = []
        self._rejections: list[Rejection] = []

    def add(self, answered: Iterable[Reply], rejections: Sequence[Rejection]) -> None:
        self._costs += [reply.cost for reply in answered]
        self._rejections += rejections

    def add_training(self, gathered: RoundResult) -> None:
        self.add(gathered.answered, _once_each(gathered.rejected))

    def finish(self, round: int, at: float, gathered: RoundResult, metrics: Metrics) -> Iterator[AnyEvent]:
        """The events that end the round; the record is empty then, for the next one."""
        yield from self.rejected(round, at)
        costs, self._costs = self._costs, []
        spent = Cost.total(costs)
        losses = [reply.metrics["loss"] for reply in gathered.aggregated if "loss" in reply.metrics]
        yield RoundFinished(
            round=round,
            at=at,
            version=round,
            metrics=metrics,
            aggregated=np.array([reply.task.client for reply in gathered.aggregated], np.int64),
            loss=float(np.nanmean(losses)) if np.isfinite(losses).any() else float("nan"),
            joules=spent.joules,
            cost=spent,
        )

    def rejected(self, round: int, at: float) -> Iterator[Rejected]:
        """Whom the record rejects; nobody any more afterwards."""
        rejections, self._rejections = self._rejections, []
        for rejection in rejections:
            yield Rejected(round=round, at=at, client=rejection.client, reason=rejection.reason)


def _once_each(rejections: Sequence[Rejection]) -> list[Rejection]:
    """A collection of several steps may refuse a client for what it did, and again as the round is abandoned: the first
    reason is its own.
    """
    first: dict[int, Rejection] = {}
    for rejection in rejections:
        first.setdefault(rejection.client, rejection)
    return list(first.values())
