"""Which rows each client sees in which step, for a whole cohort and round."""

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from winnow.core import stream
from winnow.learn.local_optimiser import LocalOptimiser
from winnow.learn.stack.flat_client_data import Indices, TensorData

_PADDING = -1


@dataclass(frozen=True, kw_only=True)
class BatchPlan:
    """The batches of K clients over S steps, clients with the most steps first.

    A step concerns the leading clients that still have batches. A batch smaller than B repeats its own first row, so
    that padding never brings in a value (a NaN, say) that the batch does not have.
    """

    order: Indices  # [K] positions of the clients in the request
    rows: Indices  # [S, K, B] into the flat data
    sizes: Indices  # [S, K] samples in each batch, 0 after a client's last step
    reported: NDArray[np.bool_]  # [S, K] whether a batch counts in the reported loss

    def segments(self) -> Iterator[tuple[int, int, range]]:
        """(clients at work, largest batch, steps) for each stretch of steps in which the first two stay the same."""
        shape = np.stack([(self.sizes > 0).sum(1), self.sizes.max(1, initial=0)], axis=1)
        starts = [*np.flatnonzero(np.diff(shape, axis=0, prepend=-1).any(1)), len(shape)]
        for first, end in pairwise(starts):
            yield int(shape[first, 0]), int(shape[first, 1]), range(int(first), int(end))

    def weights(self) -> NDArray[np.float64]:
        """[S, K, B]: one over the batch size for each sample, nought for padding."""
        sizes = self.sizes[:, :, None]
        inside = np.arange(self.rows.shape[2]) < sizes
        return np.asarray(inside / np.maximum(sizes, 1))


@dataclass(frozen=True, kw_only=True)
class _Schedule:
    """How many batches each client takes, and how many of its samples an epoch uses. All arrays are [K]."""

    used: Indices
    epoch_batches: Indices
    batches: Indices
    reported: Indices  # at the end of the schedule

    @classmethod
    def of(cls, samples: Indices, local: LocalOptimiser, smallest: int) -> "_Schedule":
        left_over = samples % local.batch_size
        used = np.where(left_over < smallest, samples - left_over, samples)
        if local.batch_size < smallest:
            used = np.zeros_like(samples)
        epoch_batches = -(-used // local.batch_size)
        if local.steps is None:
            return cls(
                used=used,
                epoch_batches=epoch_batches,
                batches=epoch_batches * (local.epochs or 1),
                reported=epoch_batches,
            )
        batches = np.where(used > 0, local.steps, 0)
        return cls(used=used, epoch_batches=epoch_batches, batches=batches, reported=batches)


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
    samples = data.sizes(clients)
    schedule = _Schedule.of(samples, local, smallest)
    order = np.argsort(-schedule.batches, kind="stable")
    longest = int(schedule.batches.max(initial=0))
    width = int(min(local.batch_size, schedule.used.max(initial=1)))
    rows = np.full((len(clients), longest, width), _PADDING, np.int64)
    for place, position in enumerate(order[: np.count_nonzero(schedule.batches)]):
        client, batches = int(clients[position]), int(schedule.batches[position])
        own = data.rows_of(client)
        used, epoch_batches = int(schedule.used[position]), int(schedule.epoch_batches[position])
        generator = stream(seed, "batches", round, client, *phase_stream_name(phase))
        epochs = np.full((-(-batches // epoch_batches), epoch_batches * width), _PADDING, np.int64)
        for epoch in epochs:
            epoch[:used] = own[generator.permutation(len(own))[:used]]
        rows[place, :batches] = epochs.reshape(-1, width)[:batches]
    return _padded(rows, order, schedule)


def _padded(rows: Indices, order: Indices, schedule: _Schedule) -> BatchPlan:
    """Steps first, padding filled in: rows are [K, S, B] with -1 where there is no sample."""
    rows = np.ascontiguousarray(rows.transpose(1, 0, 2))
    last, step = schedule.batches[order], np.arange(len(rows))[:, None]
    return BatchPlan(
        order=order,
        rows=np.where(rows == _PADDING, rows[:, :, :1], rows),
        sizes=(rows != _PADDING).sum(2),
        reported=(step >= last - schedule.reported[order]) & (step < last),
    )
