"""Selection where some clients' data are spoiled: at random, by profile, by profile of each class.

    python -m bench.spoiled_clients --seeds 5 --out spoiled.jsonl

20,000 images of MNIST on 50 clients, unlike by Dirichlet, 10 of them selected in a round. Finished runs in --out are
not run again.
"""

import argparse
import json
from pathlib import Path
from typing import Any

import numpy as np

from bench.kept_records import read_kept
from winnow.config.resolve import resolve
from winnow.core import RoundFinished, Selected
from winnow.data import DataSet, DataSettings, load
from winnow.experiment.build_simulation import prepare_run
from winnow.experiment.build_training_workflow import RunInputs

ALGORITHMS = ("fedavg-rp", "fedprof", "fedprof-by-class")
KEY = ("way", "alpha", "algorithm", "seed")
"""What tells one run from another."""
RANDOM_LABELS = 0.9
"""So many labels are wrong where each is drawn at random from ten."""
WAYS: dict[str, list[dict[str, Any]]] = {
    "random labels": [{"name": "flipped-labels", "fraction": 0.4, "share": RANDOM_LABELS}],
    "40 % random labels": [{"name": "flipped-labels", "fraction": 0.4, "share": 0.4 * RANDOM_LABELS}],
    "noise on inputs": [{"name": "noise", "fraction": 0.4, "sd": 1.0}],
    "half labels, half noise": [
        {"name": "flipped-labels", "fraction": 0.2, "share": RANDOM_LABELS},
        {"name": "noise", "fraction": 0.2, "sd": 1.0},
    ],
    "nothing": [],
}
WORLDS = [
    ("random labels", 0.3),
    ("nothing", 0.3),
    ("random labels", 1.0),
    ("nothing", 1.0),
    ("half labels, half noise", 0.3),
    ("noise on inputs", 0.3),
    ("40 % random labels", 0.3),
]
IMAGES, ROUNDS, WINDOW = 20_000, 40, 5
TARGETS = (0.85, 0.9)
"""Of the mean accuracy over `WINDOW` rounds; set after one look at a tuning seed, 100."""
BASE: dict[str, Any] = {
    "name": "spoiled",
    "rounds": ROUNDS,
    "data": {"name": "mnist", "clients": 50, "reference": 2000, "test": 3000},
    "model": {"name": "mlp", "hidden": [64]},
    "select": {"count": 10},
    "local": {"name": "sgd", "epochs": 2, "batch_size": 32, "learning_rate": 0.1},
}


def images(folder: Path | None) -> DataSet:
    full = load(DataSettings(name="mnist"), folder)
    assert isinstance(full, DataSet)
    some = np.random.default_rng(0).permutation(len(full.x))[:IMAGES]
    return DataSet(name=full.name, x=full.x[some], y=full.y[some], classes=full.classes)


def run(way: str, alpha: float, algorithm: str, seed: int, sets: list[str], dataset: DataSet) -> dict[str, Any]:
    data = {**BASE["data"], "partition": {"name": "dirichlet", "alpha": alpha}, "corruptions": WAYS[way]}
    experiment = resolve({**BASE, "data": data}, algorithm=algorithm, seed=seed, sets=sets)
    ready = prepare_run(experiment, RunInputs(dataset=dataset))
    accuracy, selected = [], np.zeros(len(ready.conditions.of_client))
    for event in ready.training.run(ready.federation):
        if isinstance(event, RoundFinished):
            accuracy.append(event.metrics["test"]["accuracy"])
        elif isinstance(event, Selected):
            selected[event.clients] += event.counts
    spoiled = selected[ready.conditions.of_client > 0].sum() / selected.sum()
    return {"way": way, "alpha": alpha, "algorithm": algorithm, "seed": seed, "accuracy": accuracy, "spoiled": spoiled}


def rounds_to(accuracy: list[float], target: float) -> int | None:
    """When the mean of the last rounds first reached the target."""
    means = np.convolve(accuracy, np.full(WINDOW, 1 / WINDOW), "valid")
    return int(np.argmax(means >= target)) + WINDOW if (means >= target).any() else None


def table(lines: list[dict[str, Any]]) -> list[list[str]]:
    rows = []
    for way, alpha in WORLDS:
        for algorithm in ALGORITHMS:
            found = [x for x in lines if (x["way"], x["alpha"], x["algorithm"]) == (way, alpha, algorithm)]
            if found:
                last = [100 * float(np.mean(line["accuracy"][-WINDOW:])) for line in found]
                rounds = [_listed([rounds_to(line["accuracy"], target) for line in found]) for target in TARGETS]
                share = 100 * float(np.mean([line["spoiled"] for line in found]))
                rows.append([way, f"{alpha:g}", algorithm, f"{np.mean(last):.1f} ± {np.std(last):.1f}", *rounds])
                rows[-1].append(f"{share:.0f} %")
    return rows


def _listed(rounds: list[int | None]) -> str:
    return ", ".join("never" if each is None else str(each) for each in rounds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=0)
    parser.add_argument("--set", action="append", default=[], dest="sets", help="a setting of all runs")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--data", type=Path, help="the folder with MNIST")
    options = parser.parse_args()
    done = read_kept(options.out, {*KEY, "accuracy", "spoiled"}, parser.error)
    known = {tuple(line[name] for name in KEY) for line in done}
    dataset = images(options.data)
    for way, alpha in WORLDS:
        for seed in range(options.first_seed, options.first_seed + options.seeds):
            for algorithm in ALGORITHMS:
                if (way, alpha, algorithm, seed) not in known:
                    done.append(run(way, alpha, algorithm, seed, options.sets, dataset))
                    with options.out.open("a") as out:
                        out.write(json.dumps(done[-1]) + "\n")
    header = ["spoiled by", "Dirichlet", "algorithm", "accuracy", *(f"rounds to {t}" for t in TARGETS), "spoiled share"]
    for row in (header, ["---"] * len(header), *table(done)):
        print(f"| {' | '.join(row)} |")


if __name__ == "__main__":
    main()
