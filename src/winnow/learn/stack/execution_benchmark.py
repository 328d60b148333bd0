"""Which of two ways of training is faster on this machine: measured for a few steps, and remembered.

Whether stacking pays depends on the model: grouped convolutions may take longer than one convolution a client. What was
found is kept in the user's cache folder, so that the next run of the same kind on the same machine takes the same way.
"""

import contextlib
import os
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from winnow.learn.stack.cache_directory import cache_folder, cache_key, processor_description
from winnow.learn.stack.execution_interface import Batch, Execution, min_batch_size
from winnow.learn.stack.native.kernel_calls import available_threads
from winnow.learn.stack.trainable_state import model_state, repeat_state

BENCHMARK_CLIENTS = 4
"""Enough to show which way is faster, and few enough for a large model. Batches must have their real size."""
LONG_STEP_SECONDS = 0.5
"""A step that takes so many seconds is measured once."""
MIN_SPEEDUP = 1.1
"""The second way must be faster by this factor: a close race should have the same winner every time."""


@dataclass(frozen=True, kw_only=True)
class StepBenchmark:
    """What to measure: steps of a few clients with batches of this size."""

    clock: Callable[[], float]
    batch_size: int

    def ratio(self, first: Execution, second: Execution, x: Tensor, y: Tensor, *, threads: int | None = None) -> float:
        """How many times as long a step takes by the first way as by the second, now or when it was last measured.

        The threads are those of native execution; torch has its own.
        """
        kept = cache_folder("benchmark") / self._key(first, second, x, threads)
        with contextlib.suppress(OSError, ValueError):
            return float(kept.read_text())
        found = self._seconds(first, x, y) / self._seconds(second, x, y)
        with contextlib.suppress(OSError):  # a cache that cannot be written to is none
            _keep(kept, found)
        return found

    def _key(self, first: Execution, second: Execution, x: Tensor, threads: int | None) -> str:
        machine = (
            f"{processor_description()} {torch.__version__} {torch.get_num_threads()} {threads or available_threads()}"
        )
        ways = f"{first.name} {second.name} {first.precision}"
        return cache_key(machine, ways, repr(first.module), repr((x[0].shape, x.dtype, self.batch_size)))

    @torch.no_grad()
    def _seconds(self, execution: Execution, x: Tensor, y: Tensor) -> float:
        states = repeat_state(model_state(execution.module), BENCHMARK_CLIENTS)
        layout = execution.layout
        size = max(self.batch_size, min_batch_size(execution.module))
        batch = repeated_batch(x, y, BENCHMARK_CLIENTS, size, states[layout.trained[0]].dtype)
        cohort = execution.bind_cohort(
            [states[name] for name in layout.trained], [states[name] for name in layout.carried]
        )
        fastest = float("inf")
        with torch.random.fork_rng([]):  # dropout's noise is nobody's business here
            for _ in range(3):
                begun = self.clock()
                cohort.gradients(batch)
                fastest = min(fastest, self.clock() - begun)
                if fastest > LONG_STEP_SECONDS:
                    break
        return fastest


def repeated_batch(x: Tensor, y: Tensor, clients: int, size: int, dtype: torch.dtype) -> Batch:
    """Full batches for so many clients out of a few samples."""
    rows = torch.arange(clients * size, device=x.device) % len(x)
    weight = torch.full((clients, size), 1 / size, dtype=dtype, device=x.device)
    return Batch(x[rows], y[rows], weight, np.full(clients, size), full=True)


def _keep(path: Path, ratio: float) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent)
    try:
        with os.fdopen(handle, "w") as file:
            file.write(f"{ratio:.2f}\n")
        Path(name).replace(path)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise
