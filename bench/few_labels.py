"""What a round of FixMatch costs: CPU time against a round of FedAvg, in the same execution and in compiled code.

Ten clients of the data set digits, half of whose rows have labels. FedAvg trains on those; FixMatch goes over them as
often, and takes as many unlabelled samples with each batch, forward twice and back once. A round's time is that of a
run of many rounds less one of a single round, each the fastest of several.
"""

import time

import winnow
from bench.table import Row

ROUNDS, REPEATS = 20, 5
LIMIT = 2.5
NETWORKS = {
    "CNN 8-16-32": {"name": "cnn", "channels": [8, 16], "hidden": 32},
    "MLP 64": {"name": "mlp", "hidden": [64]},
}


def settings(algorithm: str, network: dict[str, object], execution: str, rounds: int) -> dict[str, object]:
    client = {"client": {"unlabelled_ratio": 1}} if algorithm == "fixmatch" else {}
    return {
        "data": {"name": "digits", "clients": 10, "labels": {"at": "clients", "share": 0.5}},
        "model": network,
        "algorithm": algorithm,
        "rounds": rounds,
        "select": {"fraction": 1.0},
        "local": {"name": "sgd", "epochs": 2, "batch_size": 16, "learning_rate": 0.05},
        "engine": {"execution": execution},
        "quality": {"evidence": []},
        **client,
    }


def seconds(algorithm: str, network: dict[str, object], execution: str) -> float:
    """The CPU time of a round."""

    def fastest(rounds: int) -> float:
        taken = []
        for _ in range(REPEATS):
            before = time.process_time()
            winnow.run(settings(algorithm, network, execution, rounds))
            taken.append(time.process_time() - before)
        return min(taken)

    fastest(1)
    return (fastest(1 + ROUNDS) - fastest(1)) / ROUNDS


def measure() -> list[Row]:
    rows = []
    for name, network in NETWORKS.items():
        stacked, compiled = (1e3 * seconds("fedavg", network, execution) for execution in ("stacked", "native"))
        fixmatch = 1e3 * seconds("fixmatch", network, "stacked")
        rows += [
            Row(name=f"{name}: FedAvg, stacked", value=stacked, unit="ms", baseline=stacked),
            Row(name=f"{name}: FedAvg, compiled", value=compiled, unit="ms", baseline=stacked),
            Row(name=f"{name}: FixMatch", value=fixmatch, unit="ms", baseline=stacked, goal=f"< {LIMIT:g} ×"),
            Row(name=f"{name}: FixMatch to compiled", value=fixmatch, unit="ms", baseline=compiled),
        ]
    return rows
