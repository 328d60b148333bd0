"""Where a run's wall time goes, and how near the arithmetic comes to what the machine can do."""

import os
import time
from collections import defaultdict
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from functools import wraps
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from winnow.core import RoundFinished
from winnow.experiment.build_simulation import PreparedRun
from winnow.learn.stack import LocalTraining, Precision, autocast_context

TRAINING_PASSES = 3
"""A training step costs a forward pass, and about two more for the gradients of inputs and weights."""

PEAK_SIZES, PEAK_REPEAT = {"cpu": 1024, "cuda": 8192}, 8
OTHER = "everything else"


class Stopwatch:
    """Adds up the time spent in named parts. Time inside a part that is inside another counts for the inner one."""

    def __init__(self) -> None:
        self.spent: dict[str, float] = defaultdict(float)
        self._open: list[str] = [OTHER]
        self._since = time.perf_counter()

    def restart(self) -> None:
        """Forget the time until now."""
        self._since = time.perf_counter()

    def switch(self, part: str | None) -> None:
        """Enter a part, or leave the present one (None)."""
        now = time.perf_counter()
        self.spent[self._open[-1]] += now - self._since
        self._since = now
        if part is None:
            self._open.pop()
        else:
            self._open.append(part)

    def timed(self, part: str, function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def wrapper(*arguments: Any, **options: Any) -> Any:
            self.switch(part)
            try:
                return function(*arguments, **options)
            finally:
                self.switch(None)

        return wrapper


@dataclass(frozen=True, kw_only=True)
class TimingReport:
    """What a profiled run shows: seconds by part, and the arithmetic of its training."""

    seconds: dict[str, float]
    rounds: int
    training_flops: float
    peak_flops: float

    def lines(self) -> tuple[list[tuple[str, str, str]], str]:
        """Rows of (part, milliseconds a round, share), and the line that compares with the machine's peak."""
        whole = sum(self.seconds.values())
        parts = sorted(self.seconds.items(), key=lambda item: -item[1])
        rows = [(part, f"{1e3 * s / self.rounds:.2f}", f"{100 * s / whole:.1f} %") for part, s in parts]
        achieved, peak = self.achieved_flops / 1e9, self.peak_flops / 1e9
        share = f"{100 * achieved / peak:.1f} % of this machine's measured peak of {peak:.3g} GFLOP/s"
        return rows, f"training: {achieved:.3g} GFLOP/s, {share}"

    @property
    def achieved_flops(self) -> float:
        """Floating-point operations a second while training."""
        spent = self.seconds.get("training", 0.0)
        return self.training_flops / spent if spent else 0.0


class RoundTimer:
    """Watches a run from outside: from its start until they are closed, the parts of its rounds are timed."""

    def __init__(self) -> None:
        self._stopwatch = Stopwatch()
        self._undo = ExitStack()
        self._samples = 0.0
        self._rounds = 0

    def on_start(self, prepared: PreparedRun) -> None:
        """Begin to watch this run."""
        self._prepared = prepared
        federation, training = prepared.simulation, prepared.training
        for planning in ("plan_batches", "plan_draws"):
            self._replace(LocalTraining.train.__globals__, planning, "data")
        self._replace(federation.handlers, "train", "training")
        self._replace(federation.handlers, "profile", "profiling")
        self._attach(federation.site.evaluator, "profiles", "profiling")
        self._attach(training.evaluator, "evaluate", "evaluation")
        self._attach(type(training.algorithm.collect), "gather", "aggregation")
        self._attach(training, "apply", "aggregation")
        self._stopwatch.restart()

    def on_event(self, event: object) -> None:
        """Count the work of a finished round."""
        if isinstance(event, RoundFinished):
            sizes = self._prepared.simulation.population.sizes[event.aggregated]
            local = self._prepared.experiment.local
            self._samples += sum(float(size) * local.passes(int(size)) for size in sizes)
            self._rounds += 1

    def close(self) -> TimingReport | None:
        """Stop watching; what was seen, if the run began at all."""
        if not self._rounds:
            return None
        self._stopwatch.switch(None)
        self._undo.close()
        site = self._prepared.simulation.site
        flops = forward_flops(self._prepared.module, site.data.first_samples(1)[0])
        return TimingReport(
            seconds=dict(self._stopwatch.spent),
            rounds=self._rounds,
            training_flops=TRAINING_PASSES * flops * self._samples,
            peak_flops=peak_flops(site.data.device, self._prepared.experiment.engine.precision),
        )

    def _replace(self, table: dict[str, Any], name: str, part: str) -> None:
        former = table[name]
        table[name] = self._stopwatch.timed(part, former)
        self._undo.callback(table.__setitem__, name, former)

    def _attach(self, thing: object, method: str, part: str) -> None:
        own = vars(thing).get(method)
        setattr(thing, method, self._stopwatch.timed(part, getattr(thing, method)))
        if own is None:
            self._undo.callback(delattr, thing, method)
        else:
            self._undo.callback(setattr, thing, method, own)


@torch.no_grad()
def forward_flops(module: nn.Module, x: Tensor) -> float:
    """Floating-point operations of a forward pass over one sample, as torch counts them."""
    with FlopCounterMode(display=False) as counter:
        module.to(x.device).eval()(x)
    return float(counter.get_total_flops())


def peak_flops(device: torch.device, precision: Precision = "float32") -> float:
    """What the machine does at its best with all of its cores: the fastest of a few large products."""
    size = PEAK_SIZES[device.type]
    left, right = torch.randn(2, size, size, device=device).unbind()
    threads, best = torch.get_num_threads(), float("inf")
    torch.set_num_threads(os.cpu_count() or 1)
    try:
        for _ in range(PEAK_REPEAT):
            start = time.perf_counter()
            with autocast_context(precision, device):
                (left @ right).sum().item()
            best = min(best, time.perf_counter() - start)
    finally:
        torch.set_num_threads(threads)
    return 2 * size**3 / best
