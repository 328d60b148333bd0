"""Which rows each client sees in which step, for a whole cohort and round."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from winnow.core import stream
from winnow.learn.local_optimiser import LocalOptimiser
from winnow.learn.stack.flat_client_data import Indices, TensorData

_PADDING = -1


class Draw(NamedTuple):
    """Which of a client's rows a batch is drawn from, and how many times `local.batch_size` it is large."""

    rows: Literal["all", "labelled", "unlabelled"] = "all"
    times: int = 1
    replacement: bool = False
    """Whether rows are drawn with replacement; then there is no last one, and other draws say how long an epoch is."""

    def pool(self, data: TensorData, client: int) -> Indices:
        """Where those rows are."""
        own = data.rows_of(client)
        if self.rows == "all":
            return own
        labelled = data.labelled[own]
        return own[labelled if self.rows == "labelled" else ~labelled]


ALL_ROWS = Draw()


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """The batches of K clients over S steps, clients with the most steps first.

    A step concerns the leading clients that still have batches. A batch smaller than B repeats its own first row, so
    that padding never brings in a value (a NaN, say) that the batch does not have.
    """

    order: Indices  # [K] positions of the clients in the request
    rows: Indices  # [S, K, B] into the flat data
    sizes: Indices  # [S, K] samples in each batch; 0 after a client's last step, or if it has no such rows
    steps: Indices  # [K]
    reported: NDArray[np.bool_]  # [S, K] whether a batch counts in the reported loss

    def segments(self) -> Iterator[tuple[int, int, range]]:
        """(clients at work, largest batch, steps) for each stretch of steps in which the first two stay the same."""
        at_work = (self.steps > np.arange(len(self.sizes))[:, None]).sum(1)
        shape = np.stack([at_work, self.sizes.max(1, initial=0)], axis=1)
        starts = [*np.flatnonzero(np.diff(shape, axis=0, prepend=-1).any(1)), len(shape)]
        for first, end in pairwise(starts):
            yield int(shape[first, 0]), int(shape[first, 1]), range(int(first), int(end))

    def width(self, step: int, clients: int) -> int:
        """Of the widest batch among the leading clients; padding takes one sample where none has any."""
        return max(1, int(self.sizes[step, :clients].max()))

    def weights(self) -> NDArray[np.float64]:
        """[S, K, B]: one over the batch size for each sample, nought for padding."""
        return np.asarray(self._inside() / np.maximum(self.sizes[:, :, None], 1))

    def counted_samples(self) -> NDArray[np.bool_]:
        """[S, K, B]: the samples that count in the reported loss."""
        return np.asarray(self._inside() & self.reported[:, :, None])

    def _inside(self) -> NDArray[np.bool_]:
        """[S, K, B]: what is no padding."""
        return np.asarray(np.arange(self.rows.shape[2]) < self.sizes[:, :, None])


@dataclass(frozen=True, kw_only=True)
class _Epochs:
    """How many samples of each client an epoch uses, and in how many batches. Both are [K]."""

    used: Indices
    batches: Indices

    @classmethod
    def of(cls, samples: Indices, batch_size: int, smallest: int) -> "_Epochs":
        left_over = samples % batch_size
        used = np.where(left_over < smallest, samples - left_over, samples)
        if batch_size < smallest:
            used = np.zeros_like(samples)
        return cls(used=used, batches=-(-used // batch_size))


def phase_stream_name(phase: int) -> tuple[str, ...]:
    """What a phase adds to the names of random streams; the first adds nothing."""
    return (f"phase {phase}",) if phase else ()


def plan_batches(
    data: TensorData,
    clients: Indices,
    local: LocalOptimiser,
    *,
    round: int,
    seed: int,
    smallest: int = 1,
    phase: int = 0,
) -> BatchPlan:
    """Lay out a round's batches; a client's own do not depend on who else is in the cohort.

    A client shuffles its samples anew for every epoch, from one stream a client and round, and keeps the last, partial
    batch. With `steps` it runs through as many epochs as that takes. Batches of fewer than `smallest` samples are left
    out: batch normalisation cannot learn from a single sample.
    """
    (plan,) = plan_draws(data, clients, local, (ALL_ROWS,), round=round, seed=seed, smallest=smallest, phase=phase)
    return plan


def plan_draws(
    data: TensorData,
    clients: Indices,
    local: LocalOptimiser,
    draws: Sequence[Draw],
    *,
    round: int,
    seed: int,
    smallest: int = 1,
    phase: int = 0,
) -> list[BatchPlan]:
    """The plans of several draws with the same steps, each draw in an order of its own, as of phases that follow.

    An epoch ends when each of the draws has come to its last row; those that are through earlier start again.
    """
    pools = [[draw.pool(data, int(client)) for client in clients] for draw in draws]
    epochs = [
        _Epochs.of(np.array([len(own) for own in pool], np.int64), draw.times * local.batch_size, smallest)
        for draw, pool in zip(draws, pools, strict=True)
    ]
    ending = [each.batches for draw, each in zip(draws, epochs, strict=True) if not draw.replacement]
    longest = np.max(ending, axis=0, initial=0)
    steps = longest * (local.epochs or 1) if local.steps is None else np.where(longest > 0, local.steps, 0)
    reported = longest if local.steps is None else steps
    order = np.argsort(-steps, kind="stable")
    first = np.array([next(iter(data.rows_of(int(client))), _PADDING) for client in clients], np.int64)
    plans = []
    for number, (draw, pool, each) in enumerate(zip(draws, pools, epochs, strict=True)):
        width = int(min(draw.times * local.batch_size, each.used.max(initial=1)))
        rows = np.full((len(clients), int(steps.max(initial=0)), width), _PADDING, np.int64)
        for place, position in enumerate(order[: np.count_nonzero(steps)]):
            generator = stream(seed, "batches", round, int(clients[position]), *phase_stream_name(phase + number))
            own, count = pool[position], int(steps[position])
            if draw.replacement:
                drawn = own[generator.integers(len(own), size=(count, width))] if len(own) else own.reshape(0, width)
            else:
                drawn = _epoch_batches(own, each, int(position), count, width, generator)
            rows[place, : len(drawn)] = drawn
        plans.append(_padded(rows, order, steps, reported, first[order]))
    return plans


def _epoch_batches(
    own: Indices, epochs: _Epochs, position: int, steps: int, width: int, generator: np.random.Generator
) -> Indices:
    """A client's batches of one draw, [steps, width]; none where it has no such rows."""
    used, per_epoch = int(epochs.used[position]), int(epochs.batches[position])
    if not per_epoch:
        return np.empty((0, width), np.int64)
    rows = np.full((-(-steps // per_epoch), per_epoch * width), _PADDING, np.int64)
    for epoch in rows:
        epoch[:used] = own[generator.permutation(len(own))[:used]]
    return rows.reshape(-1, width)[:steps]


def _padded(rows: Indices, order: Indices, steps: Indices, reported: Indices, first: Indices) -> BatchPlan:
    """Steps first, padding filled in: rows are [K, S, B] with -1 where there is no sample; a batch without any holds
    the client's `first` row.
    """
    rows = np.ascontiguousarray(rows.transpose(1, 0, 2))
    last, step = steps[order], np.arange(len(rows))[:, None]
    filling = np.where(rows[:, :, :1] == _PADDING, first[None, :, None], rows[:, :, :1])
    return BatchPlan(
        order=order,
        rows=np.where(rows == _PADDING, filling, rows),
        sizes=(rows != _PADDING).sum(2),
        steps=last,
        reported=(step >= last - reported[order]) & (step < last),
    )
