"""What a round costs beyond its work: 1,000 invited clients whose tasks are empty.

Measured through a whole `TrainingWorkflow` round: selection, tasks, virtual clock, exchange, reply checks, aggregation
of a model of one number, evaluation, events. Baseline: making 1,000 tasks and 1,000 replies, and nothing else.
"""

import time
from collections.abc import Callable, Sequence
from itertools import pairwise

import numpy as np
import torch

from bench.table import Row
from winnow.core import Population, Reply, Task
from winnow.fleet import Devices
from winnow.learn.aggregation import PartialAggregation
from winnow.learn.algorithm import Algorithm
from winnow.learn.evaluation import CombinedEvaluator, Evaluation
from winnow.learn.local_optimiser import Sgd
from winnow.learn.metrics import METRICS
from winnow.learn.run_plan import TrainingPlan
from winnow.learn.selection import UniformSelector
from winnow.learn.stack import StateLayout
from winnow.learn.training_workflow import TrainingWorkflow
from winnow.simulate import SimulatedFederation

CLIENTS, INVITED, ROUNDS = 10_000, 1_000, 30
MODEL = {"w": torch.zeros(1)}
LIMIT_MS = 10.0


def answer(tasks: Sequence[Task], site: None) -> list[Reply]:
    payload = {"model": MODEL}
    return [Reply(task=task, payload=payload) for task in tasks]


class NoReference:
    def evaluate(self, *_: object) -> Evaluation:
        return Evaluation(metrics={"reference": {"accuracy": 0.0}}, profile=None)


def federation() -> SimulatedFederation[None]:
    return SimulatedFederation(
        site=None,
        handlers={"train": answer},
        population=Population(sizes=np.full(CLIENTS, 100)),
        fleet=Devices().draw(CLIENTS, 0),
    )


def milliseconds_per_round() -> list[float]:
    plan = TrainingPlan(
        algorithm=Algorithm(select=UniformSelector(count=INVITED), local=Sgd(), aggregate=PartialAggregation()),
        rounds=ROUNDS,
        seed=0,
        metrics=(METRICS["accuracy"],),
        message_bytes=4,
        profile_bytes=0,
        elements=0,
        layout=StateLayout(names=("w",), trained=("w",), carried=(), aliases={}),
        sample_shape=(1,),
        outputs=2,
        built_outputs=2,
        classes=2,
    )
    moments = []
    for event in TrainingWorkflow(plan, MODEL, CombinedEvaluator(NoReference())).run(federation()):
        if event.kind == "round_finished":
            moments.append(time.perf_counter())
    return [1e3 * (after - before) for before, after in pairwise(moments)]


def exchange_milliseconds() -> list[float]:
    """The exchange alone: dispatch, order by arrival, answer, deliver."""
    reached = federation()
    tasks = [Task(name="train", client=k, round=1, version=0) for k in range(INVITED)]

    def once() -> None:
        with reached.dispatch(tasks) as exchange:
            for _ in exchange:
                pass

    return repeat(once)


def baseline_milliseconds() -> list[float]:
    def once() -> None:
        answer([Task(name="train", client=k, round=1, version=0) for k in range(INVITED)], None)

    return repeat(once)


def repeat(action: Callable[[], None]) -> list[float]:
    times = []
    for _ in range(ROUNDS):
        start = time.perf_counter()
        action()
        times.append(1e3 * (time.perf_counter() - start))
    return times


def measure() -> list[Row]:
    base = float(np.median(baseline_milliseconds()))
    rows = [Row(name="1,000 tasks and replies made", value=base, unit="ms", baseline=base)]
    for name, times in (
        ("exchange, 1,000 invited", exchange_milliseconds()),
        ("whole round, 1,000 invited", milliseconds_per_round()),
    ):
        median = float(np.median(times))
        rows.append(Row(name=name, value=median, unit="ms", baseline=base, goal=f"< {LIMIT_MS:g} ms"))
    return rows
