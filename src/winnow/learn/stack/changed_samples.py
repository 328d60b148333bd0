"""Changed samples of the steps to come: changing those of many steps at once takes little longer than those of one."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from torch import Tensor

from winnow.learn.sample_draws import SampleDraws
from winnow.learn.stack.batch_plan import BatchPlan
from winnow.learn.stack.flat_client_data import TensorData

Change: TypeAlias = Callable[[Tensor, SampleDraws], Tensor]
"""Augmentation: every sample in its own way, by draws of its own."""

BYTES_AHEAD, BYTES_AHEAD_ON_CPU = 1 << 24, 1 << 21
"""So much of a draw is changed together, or else the samples of one step. More leaves a processor's caches."""


class _Block(NamedTuple):
    steps: range
    x: Tensor  # [S, K, B, ...]


@dataclass(frozen=True, kw_only=True)
class ChangedSamples:
    """The samples of a round's batches, changed; `rows` are those of the plans, on the device of the data."""

    data: TensorData
    plans: Sequence[BatchPlan]
    rows: Sequence[Tensor]
    _blocks: dict[str, _Block] = field(default_factory=dict)

    def of_step(self, change: Change, purpose: str, keys: Tensor, draw: int, step: int) -> Tensor:
        """What a draw's batches of the leading clients become in a step, [K·B, ...]. The clients' keys, [K], and the
        step say all that is random.
        """
        block = self._blocks.get(purpose)
        if block is None or step not in block.steps:
            block = self._blocks[purpose] = self._changed(change, keys, draw, step)
        clients, width = len(keys), self.plans[draw].width(step, len(keys))
        return block.x[step - block.steps.start, :clients, :width].flatten(0, 1)

    def _changed(self, change: Change, keys: Tensor, draw: int, step: int) -> _Block:
        """Of this step and as many of the next as fit."""
        rows = self.rows[draw]
        limit = BYTES_AHEAD_ON_CPU if self.data.device.type == "cpu" else BYTES_AHEAD
        most = max(1, limit // max(1, rows[0, : len(keys)].numel() * self.data.x[:1].nbytes))
        rows = rows[step : step + most, : len(keys)]
        steps = range(step, step + len(rows))
        x = change(self.data.x.index_select(0, rows.flatten()), SampleDraws.of_clients(keys, rows.shape[2], steps))
        return _Block(steps, x.view(*rows.shape, *x.shape[1:]))
