"""Find one optimiser and one model for all algorithms of a preset.

    python -m bench.search gas-turbine --workers 16 --seeds 3 --out search.jsonl

Every candidate is run with every algorithm; candidates are ranked by the mean over algorithms of the best score on the
reference set, so that none is tuned for one of them. Finished runs in --out are not run again.
"""

import argparse
import json
import multiprocessing
import statistics
from collections import defaultdict
from itertools import product
from pathlib import Path

GRIDS: dict[str, dict[str, list[str]]] = {
    "gas-turbine": {
        "model.hidden": ["[64, 32]", "[128, 64]", "[256, 128]", "[128, 128, 64]"],
        "local.name": ["sgd", "adam"],
        "local.learning_rate": ["0.001", "0.002", "0.005", "0.02", "0.05", "0.1"],
        "local.batch_size": ["8", "32"],
    },
    "mnist": {
        "local.name": ["sgd"],
        "local.learning_rate": ["0.005", "0.01", "0.02", "0.05"],
        "local.batch_size": ["32"],
        "local.momentum": ["0.0", "0.5", "0.9"],
    },
}


def sensible(candidate: dict[str, str]) -> bool:
    """Adam wants small rates, momentum large ones."""
    rate = float(candidate["local.learning_rate"])
    return rate <= 0.005 if candidate["local.name"] == "adam" else rate >= 0.005


def run(wanted: tuple[str, str, int, int | None, dict[str, str], str | None]) -> dict[str, object]:
    from winnow.config.resolve import resolve
    from winnow.experiment.run import run_experiment
    from winnow.experiment.setup import RunInputs

    preset, algorithm, seed, rounds, candidate, data = wanted
    sets = [f"{key}={value}" for key, value in candidate.items()]
    experiment = resolve(preset, sets=sets, algorithm=algorithm, seed=seed, rounds=rounds)
    inputs = RunInputs(data_directory=Path(data) if data else None)
    summary = run_experiment(experiment, inputs=inputs).summary
    assert summary.best is not None
    return {
        "candidate": candidate,
        "algorithm": algorithm,
        "seed": seed,
        "best": summary.best.value,
        "rounds_to_target": summary.rounds_to_target,
    }


def missing_runs(options: argparse.Namespace, done: list[dict[str, object]]) -> list[tuple[object, ...]]:
    grid = GRIDS[options.preset]
    known = {json.dumps([r["candidate"], r["algorithm"], r["seed"]], sort_keys=True) for r in done}
    candidates = [dict(zip(grid, values, strict=True)) for values in product(*grid.values())]
    return [
        (options.preset, algorithm, seed, options.rounds, candidate, options.data)
        for candidate in candidates
        if sensible(candidate)
        for seed in range(options.seeds)
        for algorithm in options.algorithms.split(",")
        if json.dumps([candidate, algorithm, seed], sort_keys=True) not in known
    ]


def show(records: list[dict[str, object]]) -> None:
    groups: dict[str, dict[str, list[dict[str, object]]]] = defaultdict(lambda: defaultdict(list))
    for record in records:
        groups[json.dumps(record["candidate"])][str(record["algorithm"])].append(record)

    def mean_best(runs: list[dict[str, object]]) -> float:
        return statistics.mean(float(str(r["best"])) for r in runs)

    ranked = sorted(groups.items(), key=lambda item: -statistics.mean(mean_best(runs) for runs in item[1].values()))
    for candidate, by_algorithm in ranked:
        cells = []
        for algorithm, runs in sorted(by_algorithm.items()):
            reached = [int(str(r["rounds_to_target"])) for r in runs if r["rounds_to_target"] is not None]
            rounds = f"{statistics.mean(reached):.0f}" if reached else "-"
            cells.append(f"{algorithm} {mean_best(runs):.4f} ({rounds} rounds, {len(reached)}/{len(runs)})")
        print("  ".join(cells), candidate)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset", choices=GRIDS)
    parser.add_argument("--algorithms", default="fedprof,fedavg-rp")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--rounds", type=int)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--data")
    parser.add_argument("--out", type=Path, default=Path("search.jsonl"))
    options = parser.parse_args()
    records = [json.loads(line) for line in options.out.read_text().splitlines()] if options.out.exists() else []
    runs = missing_runs(options, records)
    print(f"{len(runs)} runs", flush=True)
    with multiprocessing.get_context("spawn").Pool(options.workers) as pool, options.out.open("a") as log:
        for record in pool.imap_unordered(run, runs):
            records.append(record)
            log.write(json.dumps(record) + "\n")
            log.flush()
    show(records)


if __name__ == "__main__":
    main()
