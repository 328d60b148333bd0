"""A round on a CUDA device: steps of K clients with batches of 32; the baseline is one client after another.

What is timed is a whole round of 20 steps, its plan and copies included. Operations are counted as `winnow run
--timing` counts them, and the peak is that of a large product in the same precision and run.
"""

import time
from dataclasses import dataclass

import numpy as np
import torch

from bench.table import Row
from winnow.core import stream
from winnow.learn.local_optimiser import Sgd
from winnow.learn.models import LeNet5Model, ModelSettings, ShuffleNetV2Model, build_model
from winnow.learn.stack import (
    LOSSES,
    ExecutionSetting,
    LocalTraining,
    Precision,
    TensorData,
    allow_tf32,
    choose_execution,
    model_state,
)
from winnow.progress.time_breakdown import TRAINING_PASSES, forward_flops, peak_flops

BATCH, STEPS, LOOP_STEPS, REPEAT = 32, 20, 2, 3


@dataclass(frozen=True, kw_only=True)
class Workload:
    name: str
    model: ModelSettings
    shape: tuple[int, ...]
    cohorts: tuple[int, ...]
    goals: dict[int, str]


WORKLOADS = (
    Workload(
        name="lenet5",
        model=LeNet5Model(),
        shape=(1, 28, 28),
        cohorts=(1, 3, 10, 30, 100, 300, 1000),
        goals={100: "≤ 0.02 ×"},
    ),
    Workload(
        name="shufflenet-v2",
        model=ShuffleNetV2Model(),
        shape=(3, 32, 32),
        cohorts=(5,),
        goals={5: "≤ 0.25 ×"},
    ),
)
PRECISIONS: tuple[Precision, ...] = ("float32", "tf32", "bfloat16")


def measure() -> list[Row]:
    if not torch.cuda.is_available():
        print("\nno CUDA device here: nothing to measure on it")
        return []
    device = torch.device("cuda")
    return [row for precision in PRECISIONS for row in _in_precision(precision, device)]


def _in_precision(precision: Precision, device: torch.device) -> list[Row]:
    allow_tf32(precision)
    peak = peak_flops(device, precision)
    rows = [Row(name=f"{precision}: a large product", value=peak / 1e12, unit="TF/s", baseline=peak / 1e12)]
    for workload in WORKLOADS:
        cohorts = workload.cohorts if precision == "float32" else tuple(workload.goals)
        rows += [_row(workload, clients, precision, peak, device) for clients in cohorts]
        rows += [_row(workload, clients, precision, peak, device, compiled=True) for clients in workload.goals]
    allow_tf32("float32")
    return rows


def _row(
    workload: Workload,
    clients: int,
    precision: Precision,
    peak: float,
    device: torch.device,
    *,
    compiled: bool = False,
) -> Row:
    """Milliseconds a step, beside those of a loop in the same precision."""
    torch.manual_seed(0)
    rows = clients * BATCH
    data = TensorData(
        x=torch.randn(rows, *workload.shape, device=device),
        y=torch.randint(0, 10, (rows,), device=device),
        rows=np.arange(rows),
        offsets=np.arange(clients + 1) * BATCH,
    )
    stacked = _milliseconds(workload, data, precision, "stacked", STEPS, compiled=compiled)
    loop = _milliseconds(workload, data, precision, "loop", LOOP_STEPS)
    module = build_model(workload.model, workload.shape, 10, 0)
    work = TRAINING_PASSES * forward_flops(module, data.x[:1]) * rows / (stacked / 1e3)
    reached = f"{loop / stacked:.0f} times as fast, {work / 1e12:.2f} TF/s, {100 * work / peak:.1f} % of peak"
    goal = f"{reached}  {workload.goals.get(clients, '')}"
    name = f"{precision}: {workload.name}, {clients} clients{', compiled' if compiled else ''}"
    return Row(name=name, value=stacked, unit="ms", baseline=loop, goal=goal)


def _milliseconds(
    workload: Workload,
    data: TensorData,
    precision: Precision,
    force: ExecutionSetting,
    steps: int,
    *,
    compiled: bool = False,
) -> float:
    """The time of a step in the fastest of a few rounds; the first captures what the others replay."""
    module = build_model(workload.model, workload.shape, 10, 0).to(data.device)
    execution = choose_execution(
        module, data.x[:4], data.y[:4], LOSSES["cross-entropy"], force, precision=precision, compiled=compiled
    )
    local = Sgd(steps=steps, batch_size=BATCH, learning_rate=0.01, momentum=0.9)
    job = LocalTraining(
        execution=execution,
        data=data,
        clients=np.arange(len(data.offsets) - 1),
        local=local,
        round=1,
        seed=0,
        randomness=stream,
        sent={"model": model_state(module)},
        stored=(),
    )
    times = []
    for _ in range(REPEAT):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        job.train()
        torch.cuda.synchronize()
        times.append(1e3 * (time.perf_counter() - begun) / steps)
    return min(times)
