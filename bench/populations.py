"""Rounds with 100,000 clients whose data are generated when they are invited, 100 of them a round.

Time a round from the second on, and the peak memory of the process meanwhile, read from Linux's /proc. FedProf's first
profiles, for which every client is loaded once, are told apart; what the allocator keeps of that memory is given back
before the rounds are looked at. Baseline: the same with 1,000 clients.
"""

import ctypes
import json
import subprocess
import sys
import time
from pathlib import Path

import numpy as np

from bench.table import Row
from winnow.config.resolve import resolve
from winnow.core import RoundFinished, Selected, stream
from winnow.data import OnDemand
from winnow.experiment.build_simulation import prepare_run
from winnow.experiment.build_training_workflow import RunInputs

FEW, MANY, INVITED, ROUNDS = 1_000, 100_000, 100, 6
ROWS, SHAPE, CLASSES = 20, (1, 8, 8), 10
SETTINGS = {
    "rounds": ROUNDS,
    "model": {"name": "mlp", "hidden": [64]},
    "select": {"count": INVITED},
    "local": {"name": "sgd", "learning_rate": 0.05, "batch_size": 10, "epochs": 2},
    "data": {"name": "generated"},
    "quality": {"evidence": []},
}


def measure() -> list[Row]:
    rows = []
    for algorithm in ("fedavg-rp", "fedprof"):
        few, many = _in_a_process(FEW, algorithm), _in_a_process(MANY, algorithm)
        units = {"round": "ms", "memory": "MB", "profiles": "s", "profiles' memory": "MB"}
        for what in few:
            goal = "ratio near 1" if what in ("round", "memory") else f"{MANY // FEW} × the clients"
            name = f"{algorithm}, {{:,}}: {what}"
            rows.append(Row(name=name.format(FEW), value=few[what], unit=units[what], baseline=few[what]))
            rows.append(Row(name=name.format(MANY), value=many[what], unit=units[what], baseline=few[what], goal=goal))
    return rows


def generate(client: int) -> tuple[np.ndarray, np.ndarray]:
    rng = stream(0, "population", client)
    labels = rng.integers(0, CLASSES, ROWS)
    return rng.standard_normal((ROWS, *SHAPE), np.float32) + labels[:, None, None, None], labels


def _in_a_process(clients: int, algorithm: str) -> dict[str, float]:
    command = [sys.executable, "-m", "bench.populations", str(clients), algorithm]
    made = subprocess.run(command, capture_output=True, text=True, check=True)
    found: dict[str, float] = json.loads(made.stdout)
    return found


def _course(clients: int, algorithm: str) -> dict[str, float]:
    data = OnDemand(clients=clients, sizes=ROWS, load=generate, classes=CLASSES, reference=generate(-1))
    found: dict[str, float] = {}
    ends = []
    with prepare_run(resolve(SETTINGS, algorithm=algorithm), RunInputs(dataset=data)) as ready:
        start = time.perf_counter()
        for event in ready.training.run(ready.federation):
            if isinstance(event, Selected) and event.round == 1 and algorithm == "fedprof":
                found = {"profiles": time.perf_counter() - start, "profiles' memory": _peak_megabytes()}
            if isinstance(event, RoundFinished):
                if event.round == 1:
                    _forget_peak()
                ends.append(time.perf_counter())
    return {"round": 1e3 * float(np.median(np.diff(ends))), "memory": _peak_megabytes(), **found}


def _peak_megabytes() -> float:
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def _forget_peak() -> None:
    """From now on the peak is that of what follows."""
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")


if __name__ == "__main__":
    print(json.dumps(_course(int(sys.argv[1]), sys.argv[2])))
