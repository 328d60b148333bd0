"""Seconds a round and bytes a client sends: FedCLIP's adapter over frozen features, and FedAvg of the whole encoder.

    python -m bench.frozen_encoder

Both train on the same made-up pictures, on one thread: what they learn does not matter here. Seconds are the
processor's, so that a busy machine changes little. A round's are the median over rounds after the first, with the
evaluation on a few pictures; the encoder's only pass is not in it, and is shown by itself.
"""

import time
from statistics import median

import numpy as np

from winnow.config.resolve import resolve
from winnow.core import AnyEvent, RoundFinished
from winnow.data import DataSet, from_arrays
from winnow.experiment.build_training_workflow import RunInputs
from winnow.experiment.run import run_experiment

CLIENTS, SAMPLES, HELD = 2, 64, 8
ROUNDS = {"adapter": 12, "whole": 3}


def pictures() -> DataSet:
    rng = np.random.default_rng(0)
    rows = CLIENTS * SAMPLES + 2 * HELD
    x = rng.uniform(0, 255, (rows, 3, 64, 64)).astype(np.float32)
    return from_arrays(x, np.arange(rows) % 7, name="pictures", scale="none")


def measured(name: str, model: dict[str, object], encode: dict[str, object] | None) -> tuple[float, float, int]:
    """Seconds a round, seconds before the first one, and bytes a client sends in a round."""
    table = {
        "name": name,
        "rounds": ROUNDS[name],
        "data": {"clients": CLIENTS, "reference": HELD, "test": HELD},
        "model": model,
        "select": {"fraction": 1.0},
        "local": {"name": "adam", "batch_size": 32},
        "engine": {"execution": "loop", "device": "cpu", "threads": 1},
        "quality": {"evidence": []},
        **({"encode": encode} if encode else {}),
    }
    ends: list[float] = []

    def note(event: AnyEvent) -> None:
        if isinstance(event, RoundFinished):
            ends.append(time.process_time())

    began = time.process_time()
    result = run_experiment(resolve(table, algorithm="fedclip"), inputs=RunInputs(dataset=pictures()), on_event=note)
    return float(median(np.diff(ends))), ends[0] - began, result.plan.message_bytes


def main() -> None:
    texts = tuple(f"a picture of a {kind}" for kind in ("dog", "cat", "cow", "guitar", "horse", "house", "person"))
    encode = {"name": "efficientnet-lite0", "align": "ridge"}
    adapter = measured("adapter", {"name": "adapter", "texts": texts}, encode)
    whole = measured("whole", {"name": "efficientnet-lite0"}, None)
    print(f"{CLIENTS} clients with {SAMPLES} pictures each, one thread")
    for name, (seconds, first, sent) in (("adapter", adapter), ("whole encoder", whole)):
        print(f"{name:>14}: {seconds:8.3f} s a round, {sent / 1e6:6.2f} MB sent a client; until round 1: {first:.1f} s")
    print(f"ratio: 1/{whole[0] / adapter[0]:.0f} of the seconds, 1/{whole[2] / adapter[2]:.1f} of the bytes")


if __name__ == "__main__":
    main()
