"""A round of local training and an evaluation by each execution; the baseline is a plain loop on one thread.

gas-turbine: 10 clients of about 514 rows, 2 epochs, batch 8, MLP 9-64-32-2. mnist: 25 clients of 120 images, 5 epochs,
batch 32, LeNet-5. The values are random: what a step costs does not depend on them.
"""

import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from bench.table import Row
from winnow.core import stream
from winnow.learn.local_optimiser import Sgd
from winnow.learn.metrics import METRICS
from winnow.learn.model_evaluator import ModelEvaluator
from winnow.learn.models import LeNet5Model, MlpModel, ModelSettings, build_model
from winnow.learn.stack import Execution, LocalTraining, TensorData, as_loss, choose_execution, model_state

REPEAT = 5
WAYS = {"loop": ("loop", 1), "stacked": ("stacked", 1), "native, 1 thread": ("native", 1), "native": ("native", None)}


@dataclass(frozen=True, kw_only=True)
class Workload:
    model: ModelSettings
    shape: tuple[int, ...]
    outputs: int
    loss: str
    metric: str
    sizes: tuple[int, ...]
    local: Sgd
    examined: int
    goal: str


WORKLOADS = {
    "gas-turbine": Workload(
        model=MlpModel(hidden=(64, 32)),
        shape=(9,),
        outputs=2,
        loss="mse",
        metric="relative-accuracy",
        sizes=(420, 455, 480, 500, 510, 518, 530, 550, 575, 602),
        local=Sgd(epochs=2, batch_size=8, learning_rate=0.005, momentum=0.9),
        examined=11_000,
        goal="< 12 ms",
    ),
    "mnist": Workload(
        model=LeNet5Model(),
        shape=(1, 28, 28),
        outputs=10,
        loss="cross-entropy",
        metric="accuracy",
        sizes=(120,) * 25,
        local=Sgd(epochs=5, batch_size=32, learning_rate=0.01, momentum=0.9),
        examined=10_000,
        goal="< 450 ms",
    ),
}


def measure() -> list[Row]:
    torch.set_num_threads(1)
    return [row for name, workload in WORKLOADS.items() for row in _rows(name, workload)]


def _rows(name: str, workload: Workload) -> list[Row]:
    """Training and evaluation by every way, the fastest of several tries: others may be using the machine."""
    torch.manual_seed(0)
    rows = sum(workload.sizes)
    x = torch.randn(max(rows, workload.examined), *workload.shape)
    y = torch.randint(0, workload.outputs, (len(x),)) if workload.loss == "cross-entropy" else torch.rand(len(x), 2)
    data = TensorData(x=x, y=y, rows=np.arange(rows), offsets=np.cumsum([0, *workload.sizes]))
    module = build_model(workload.model, workload.shape, workload.outputs, 0)
    state, loss, clients = model_state(module), as_loss(workload.loss), np.arange(len(workload.sizes))
    score = METRICS[workload.metric](y)

    def training(execution: Execution) -> float:
        job = LocalTraining(
            execution=execution,
            data=data,
            clients=clients,
            local=workload.local,
            round=1,
            seed=0,
            randomness=stream,
            sent={"model": state},
            stored=(),
        )
        return _fastest(job.train)

    def evaluation(execution: Execution) -> float:
        evaluator = ModelEvaluator(module, loss, None, execution)
        return _fastest(lambda: evaluator.evaluate(state, x[: workload.examined], y[: workload.examined], score))

    executions = {way: choose_execution(module, x[:4], y[:4], loss, *how) for way, how in WAYS.items()}
    result = []
    for what, measured, ways in (("train", training, WAYS), ("evaluate", evaluation, ("loop", "native"))):
        found = {way: measured(executions[way]) for way in ways}
        for way, milliseconds in found.items():
            goal = workload.goal if (what, way) == ("train", "native") else ""
            label = f"{name}, {what}: {way}"
            result.append(Row(name=label, value=milliseconds, unit="ms", baseline=found["loop"], goal=goal))
    return result


def _fastest(action: Callable[[], object]) -> float:
    times = []
    for _ in range(REPEAT):
        start = time.perf_counter()
        action()
        times.append(1e3 * (time.perf_counter() - start))
    return min(times)
