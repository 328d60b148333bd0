"""Assessing the data of 20 clients, against a training round of five local epochs.

Processor time of runs with and without assessments, by inputs, columns, labels and updates; 400 images of 28 × 28 a
client, a reference set of 500. An assessment costs a forward pass over everybody's samples and, whatever the model, the
null distributions: with a model that trains in no time these are what counts. The last rows are for a run of 50 rounds
with its five assessments.
"""

import time
from typing import Any

import numpy as np

import winnow
from bench.table import Row

CLIENTS, ROWS, HELD_OUT = 20, 400, 500
ROUNDS = {"mlp": 20, "cnn": 5}
RUN, ASSESSMENTS = 50, 5


def measure() -> list[Row]:
    rng = np.random.default_rng(0)
    count = CLIENTS * ROWS + 2 * HELD_OUT
    y = rng.integers(10, size=count)
    x = (rng.random((10, 1, 28, 28))[y] + rng.normal(0, 0.5, (count, 1, 28, 28))).astype(np.float32)
    rows = []
    for model, rounds in ROUNDS.items():
        options: dict[str, Any] = {"data": (x, y), "model": model, "clients": CLIENTS}
        _seconds(options, 1, assessed=False)
        few, many = (_seconds(options, length, assessed=False) for length in (ASSESSMENTS, ASSESSMENTS + rounds))
        with_few, with_many = (
            _seconds(options, length, assessed=True) for length in (ASSESSMENTS, ASSESSMENTS + rounds)
        )
        training, updates = (many - few) / rounds, max((with_many - with_few - many + few) / rounds, 0.0)
        assessment = (with_few - few) / ASSESSMENTS
        extra = ASSESSMENTS * assessment + RUN * updates
        rows.append(Row(name=f"{model}: an assessment", value=assessment, unit="s", baseline=training))
        rows.append(
            Row(name=f"{model}: all, per round", value=extra / RUN, unit="s", baseline=training, goal="at most 0.15")
        )
    return rows


def _seconds(options: dict[str, Any], rounds: int, *, assessed: bool) -> float:
    started = time.process_time()
    winnow.run(
        **options,
        algorithm="fedavg",
        rounds=rounds,
        reference=HELD_OUT,
        test=HELD_OUT,
        select={"fraction": 1.0},
        local={"name": "sgd", "learning_rate": 0.02, "batch_size": 32, "epochs": 5},
        quality={"assessments": ASSESSMENTS} if assessed else {"evidence": ()},
        engine={"threads": 1},
        progress=False,
    )
    return time.process_time() - started
