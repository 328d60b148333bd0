"""What it costs to look at updates and contributions: 20 clients with 425 rows, five local epochs, 20 rounds.

Baseline: a training round. Looking at updates is measured per round; contributions over the whole run, in rounds.
Processor time on one core, so that others on the machine do not count.
"""

import time
from itertools import pairwise

import numpy as np
import torch
from torch import Tensor

from bench.clients.observations import recorded_rounds
from bench.table import Row
from winnow.config.resolve import resolve
from winnow.core import stream
from winnow.data import from_arrays
from winnow.experiment.build_simulation import PreparedRun, prepare_run
from winnow.experiment.build_training_workflow import RunInputs
from winnow.learn.client_quality.contribution import ContributionEstimator, evaluations_per_round
from winnow.learn.client_quality.reference_utility import ReferenceUtility
from winnow.learn.client_quality.update_evidence import UpdateEvidence

CLIENTS, ROWS, ROUNDS, EPOCHS, REFERENCE = 20, 425, 20, 5, 1_000
CASES = {"table, mlp": ((107,), {"name": "mlp", "hidden": [64]}), "images, lenet5": ((1, 28, 28), {"name": "lenet5"})}


def measure() -> list[Row]:
    torch.set_num_threads(1)
    return [row for name, (shape, model) in CASES.items() for row in _case(name, shape, model)]


def _case(name: str, shape: tuple[int, ...], model: dict[str, object]) -> list[Row]:
    ready, x, y = _prepared(shape, model)
    moments = []
    with ready, recorded_rounds(ready.training) as rounds:
        for event in ready.training.run(ready.federation):
            if event.kind == "round_finished":
                moments.append(time.process_time())
    base = float(np.median([1e3 * (after - before) for before, after in pairwise(moments)]))
    updates, estimator = UpdateEvidence(ready.plan.layout.trained), ContributionEstimator()
    utility = ReferenceUtility(ready.simulation.site.execution, x, y, stream(0, "rows"))
    allowed = evaluations_per_round(trained_rows=CLIENTS * ROWS * EPOCHS, reference_rows=utility.rows, rounds=ROUNDS)
    looked, searched = [], []
    for i, each in enumerate(rounds):
        start = time.process_time()
        updates.observe(each.replies, each.weights)
        middle = time.process_time()
        estimator.observe(each.start, each.replies, each.weights, utility, stream(0, "bench", i), allowed)
        looked.append(1e3 * (middle - start))
        searched.append(1e3 * (time.process_time() - middle))
    observed = max(each.rounds for each in estimator.estimates().values())
    return [
        Row(name=f"{name}: a training round", value=base, unit="ms", baseline=base),
        Row(
            name=f"{name}: updates, a round", value=float(np.median(looked)), unit="ms", baseline=base, goal="≤ 0.05 ×"
        ),
        Row(
            name=f"{name}: contributions, a run",
            value=sum(searched),
            unit="ms",
            baseline=base,
            goal=f"≤ 5 × ({observed} rounds looked at)",
        ),
    ]


def _prepared(shape: tuple[int, ...], model: dict[str, object]) -> tuple[PreparedRun, Tensor, Tensor]:
    rng = np.random.default_rng(0)
    y = rng.integers(0, 10, CLIENTS * ROWS + REFERENCE + 100)
    x = (rng.normal(size=(10, *shape))[y] + rng.normal(size=(len(y), *shape))).astype(np.float32)
    data = from_arrays(x, y, name="clouds", scale="none")
    wanted = resolve(
        {
            "name": "contribution",
            "rounds": ROUNDS,
            "target": 0.9,
            "data": {"clients": CLIENTS, "reference": REFERENCE, "test": 100, "partition": {"name": "iid"}},
            "model": model,
            "select": {"count": CLIENTS},
            "local": {"name": "sgd", "epochs": EPOCHS, "batch_size": 32, "learning_rate": 0.01},
            "quality": {"evidence": []},
            "engine": {"threads": 1},
        },
        algorithm="fedavg-rp",
    )
    ready = prepare_run(wanted, RunInputs(dataset=data))
    return ready, torch.from_numpy(x[:REFERENCE]), torch.from_numpy(y[:REFERENCE])
