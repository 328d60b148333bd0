"""Find the settings of a preset, on seeds and rows that no published table is evaluated on.

    python -m bench.search gas-turbine                # each rival's own setting
    python -m bench.search gas-turbine --common       # one optimiser and one model for all algorithms
    python -m bench.search cifar10 --set engine.precision=tf32

Each rival has the same number of candidates, or all there are where its setting has fewer values, with the same seeds
and rounds. A rival's candidates are ranked by the mean over seeds of the best score on the tuning split's reference
rows. Common candidates are run with several algorithms and ranked by the mean over them, so that none is tuned for one.

Everything that was tried is written to --out, a line a run. Finished runs in it are not run again.
"""

import argparse
import json
import multiprocessing
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from bench.kept_records import read_kept
from bench.positive_number import positive_number

if TYPE_CHECKING:
    from winnow.config.schema import Experiment
    from winnow.data import DataSet

Candidate: TypeAlias = Mapping[str, str]
"""Values by the path of their setting."""

REPORTED_SEEDS = range(5)
"""Those of the published tables."""
FIRST_TUNING_SEED = 1_000
OFFICIAL_SHARE = 6
"""Where the data have an official test split, one in so many of the other rows is the tuning split."""

COMMON: dict[str, dict[str, list[str]]] = {
    "gas-turbine": {
        "model.hidden": ["[64, 32]", "[128, 64]", "[256, 128]", "[128, 128, 64]"],
        "local.name": ["sgd", "adam"],
        "local.learning_rate": ["0.001", "0.002", "0.005", "0.02", "0.05", "0.1"],
        "local.batch_size": ["8", "32"],
    },
    "mnist": {
        "local.name": ["sgd"],
        "local.learning_rate": ["0.005", "0.01", "0.02", "0.05", "0.1"],
    },
}

EIGHT_EACH: dict[str, dict[str, list[str]]] = {
    "fedprox": {"client.mu": ["1e-6", "1e-5", "1e-4", "1e-3", "1e-2", "0.1", "1.0", "10.0"]},
    "fedadam": {"server.learning_rate": ["0.003", "0.01", "0.03", "0.1"], "server.tau": ["1e-3", "1e-2"]},
    "afl": {"select.alpha1": ["0.25", "0.75"], "select.alpha2": ["0.01", "0.1"], "select.alpha3": ["0.1", "0.5"]},
    "clustered-sampling": {"select.distance": ["angle", "euclidean"]},
    "power-of-choice": {"select.candidate_factor": ["1.0", "1.25", "1.5", "2.0", "2.5", "3.0", "4.0", "5.0"]},
    "oort": {
        "select.penalty": ["0.5", "2.0"],
        "select.preferred_percentile": ["30.0", "80.0"],
        "select.cut_off": ["0.5", "0.95"],
    },
    "tifl": {"select.tiers": ["2", "3", "4", "5"], "select.interval": ["5", "20"]},
    "fedbuff": {
        "schedule.buffer_size": ["8", "10"],
        "server.name": ["momentum"],
        "server.momentum": ["0.0"],
        "server.learning_rate": ["0.25", "0.5", "1.0", "2.0"],
    },
    "safa": {"schedule.lag_tolerance": ["0", "1", "2", "3", "4", "5", "6", "7"]},
}
FOUR_EACH: dict[str, dict[str, list[str]]] = {
    "fedprox": {"client.mu": ["1e-4", "1e-3", "1e-2", "0.1"]},
    "fedadam": {"server.learning_rate": ["0.003", "0.01", "0.03", "0.1"]},
    "afl": {"select.alpha1": ["0.25", "0.75"], "select.alpha3": ["0.1", "0.5"]},
    "clustered-sampling": {"select.distance": ["angle", "euclidean"]},
}
OWN = {"gas-turbine": EIGHT_EACH, "mnist": EIGHT_EACH, "cifar10": FOUR_EACH}
"""Values of each rival's own settings; the default is among them, and clustered sampling has but two. A round of
cifar10 takes seconds on an accelerator. FedAvg, FedAvg-RP, FedBN and CFCFM have nothing to tune; FedProf keeps the
paper's α.
"""


@dataclass(frozen=True, kw_only=True)
class Trial:
    """One run of a search."""

    preset: str
    algorithm: str
    candidate: Candidate
    seed: int
    rounds: int | None
    sets: tuple[str, ...] = ()
    """What all trials of a search share, such as the engine's precision."""
    data: str | None = None

    @property
    def key(self) -> str:
        return json.dumps({**asdict(self), "data": None}, sort_keys=True)


def grid(values: Mapping[str, Sequence[str]]) -> list[Candidate]:
    return [dict(zip(values, chosen, strict=True)) for chosen in product(*values.values())]


def sensible(candidate: Candidate) -> bool:
    """Adam wants small rates, momentum large ones."""
    rate = float(candidate["local.learning_rate"])
    return rate <= 0.005 if candidate["local.name"] == "adam" else rate >= 0.005


def trials(options: argparse.Namespace) -> list[Trial]:
    if options.common:
        by_algorithm = dict.fromkeys(options.algorithms or ("fedprof", "fedavg-rp"), COMMON[options.preset])
    else:
        own = OWN[options.preset]
        by_algorithm = {name: own[name] for name in options.algorithms or own}
    return [
        Trial(
            preset=options.preset,
            algorithm=algorithm,
            candidate=candidate,
            seed=FIRST_TUNING_SEED + number,
            rounds=options.rounds,
            sets=tuple(options.sets),
            data=options.data,
        )
        for algorithm, values in by_algorithm.items()
        for candidate in grid(values)
        if not options.common or sensible(candidate)
        for number in range(options.seeds)
    ]


def tuning_split(dataset: "DataSet", experiment: "Experiment") -> "DataSet":
    """The data with the rows that no published run is evaluated on as their official test split.

    Where the data have such a split already, published runs are evaluated on it: it is left out altogether, and a part
    of the other rows takes its place.
    """
    import numpy as np

    from winnow.core import stream
    from winnow.data.federate import held_out_rows

    if dataset.test_rows is not None:
        kept = np.setdiff1d(np.arange(len(dataset)), dataset.test_rows)
        drawn = stream(FIRST_TUNING_SEED, "tuning split").permutation(len(kept))[: len(kept) // OFFICIAL_SHARE]
        owners = None if dataset.owners is None else dataset.owners[kept]
        return replace(dataset, x=dataset.x[kept], y=dataset.y[kept], owners=owners, test_rows=np.sort(drawn))
    reported = [rows for seed in REPORTED_SEEDS for rows in held_out_rows(dataset, experiment.data, seed)]
    return replace(dataset, test_rows=np.setdiff1d(np.arange(len(dataset)), np.concatenate(reported)))


def run(trial: Trial) -> dict[str, object]:
    from winnow.config.resolve import resolve
    from winnow.data import DataSet, load
    from winnow.experiment.build_training_workflow import RunInputs
    from winnow.experiment.run import run_experiment

    sets = [*trial.sets, *(f"{key}={value}" for key, value in trial.candidate.items())]
    wanted = {"algorithm": trial.algorithm, "seed": trial.seed, "rounds": trial.rounds}
    published = resolve(trial.preset, sets=sets, **wanted)
    dataset = load(published.data, Path(trial.data) if trial.data else None)
    assert isinstance(dataset, DataSet), "presets are about whole sets"
    split = tuning_split(dataset, published)
    assert split.test_rows is not None
    test = len(split.test_rows) // 10
    sets += [f"data.test={test}", f"data.reference={len(split.test_rows) - test}"]
    summary = run_experiment(resolve(trial.preset, sets=sets, **wanted), inputs=RunInputs(dataset=split)).summary
    assert summary.best is not None
    assert summary.test_best is not None
    return {
        **{key: value for key, value in asdict(trial).items() if key != "data"},
        "best": round(summary.best.value, 5),
        "test": round(summary.test_best.value, 5),
        "rounds_to_target": summary.rounds_to_target,
    }


def use_one_thread() -> None:
    import torch

    torch.set_num_threads(1)


KEPT = ("preset", "algorithm", "candidate", "seed", "rounds")
"""What a record says of its trial."""


def trial_of(record: Mapping[str, object]) -> Trial:
    known = {key: record[key] for key in KEPT}
    return Trial(**known, sets=tuple(record.get("sets", ())))


@dataclass(frozen=True, kw_only=True)
class Score:
    """What a candidate came to with some algorithms."""

    candidate: Candidate
    best: float
    test: float
    reached: str


def ranked(records: Iterable[Mapping[str, object]]) -> list[Score]:
    """The best candidate first; every algorithm counts alike."""
    groups: dict[str, dict[str, list[Mapping[str, object]]]] = {}
    for record in records:
        by_algorithm = groups.setdefault(json.dumps(record["candidate"]), {})
        by_algorithm.setdefault(str(record["algorithm"]), []).append(record)
    scores = []
    for candidate, by_algorithm in groups.items():
        rounds = [r["rounds_to_target"] for runs in by_algorithm.values() for r in runs]
        reached = [int(str(each)) for each in rounds if each is not None]
        mean = f"{statistics.mean(reached):.1f} rounds" if reached else "no run"
        scores.append(
            Score(
                candidate=json.loads(candidate),
                best=_mean(by_algorithm, "best"),
                test=_mean(by_algorithm, "test"),
                reached=f"{mean} ({len(reached)} of {len(rounds)})",
            )
        )
    return sorted(scores, key=lambda score: -score.best)


def _mean(by_algorithm: Mapping[str, Sequence[Mapping[str, object]]], name: str) -> float:
    return statistics.mean(statistics.mean(float(str(r[name])) for r in runs) for runs in by_algorithm.values())


def show(records: Sequence[Mapping[str, object]], common: bool) -> None:
    names = ["all algorithms"] if common else list(dict.fromkeys(str(record["algorithm"]) for record in records))
    for name in names:
        print(name)
        for score in ranked(r for r in records if common or r["algorithm"] == name):
            chosen = ", ".join(f"{key}={value}" for key, value in score.candidate.items())
            print(f"  best {score.best:.4f}  test {score.test:.4f}  target after {score.reached}  {chosen}")


def run_all(missing: Sequence[Trial], workers: int, out: Path) -> list[dict[str, object]]:
    """Their records, each written to `out` as soon as it is there."""
    if not missing:
        return []
    records = []
    pool = multiprocessing.get_context("spawn").Pool(workers, initializer=use_one_thread)
    with pool, out.open("a") as log:
        for record in pool.imap_unordered(run, missing):
            records.append(record)
            log.write(json.dumps(record) + "\n")
            log.flush()
    return records


def main() -> None:
    from winnow.core import WinnowError
    from winnow.learn.algorithm import Recipe

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("preset", choices=OWN)
    parser.add_argument("--common", action="store_true", help="search what all algorithms share")
    parser.add_argument(
        "--algorithms", type=lambda text: text.split(","), metavar="NAME,NAME", help="default: all with a grid"
    )
    parser.add_argument("--seeds", type=positive_number, default=2, metavar="N", help="how many seeds; default: 2")
    parser.add_argument("--rounds", type=positive_number, metavar="N", help="default: the preset's")
    parser.add_argument(
        "--workers", type=positive_number, default=2, metavar="N", help="how many runs at once; default: 2"
    )
    parser.add_argument(
        "--set", dest="sets", action="append", default=[], metavar="KEY.PATH=VALUE", help="a setting of all runs"
    )
    parser.add_argument("--data", metavar="DIR", help="the folder with the data sets; default: $WINNOW_DATA")
    parser.add_argument("--out", type=Path, default=Path("search.jsonl"), metavar="FILE", help="default: search.jsonl")
    options = parser.parse_args()
    if options.common and options.preset not in COMMON:
        parser.error(f"nothing is searched in common for {options.preset}")
    known = Recipe.known if options.common else OWN[options.preset]
    if unknown := set(options.algorithms or ()) - set(known):
        parser.error(f"nothing to search for {', '.join(sorted(unknown))}; algorithms are {', '.join(sorted(known))}")
    records = read_kept(options.out, {*KEPT, "best", "test", "rounds_to_target"}, parser.error)
    done, wanted = {trial_of(record).key for record in records}, trials(options)
    missing = [trial for trial in wanted if trial.key not in done]
    print(f"{len(missing)} runs", flush=True)
    try:
        records += run_all(missing, options.workers, options.out)
    except (WinnowError, OSError) as error:
        parser.error(str(error))
    keys = {trial.key for trial in wanted}
    show([record for record in records if trial_of(record).key in keys], options.common)


if __name__ == "__main__":
    main()
