"""Client quality: who has bad data, does Winnow find out, and does it say why?

    python -m bench clients                       four data sets, five seeds; an hour or more on two cores
    python -m bench clients --quick               one table, one seed, a few ways; a minute
    python -m bench clients --data adult credit --seeds 2 --workers 2

Records go to docs/results/clients.jsonl, one line a run, and the page to docs/results/clients.md. Runs that are there
already are not run again. Constants of the assessment were chosen on seeds 100 and 101, and runs of 0 to 4 were seen
while rules were changed; figures are of seeds 10 to 14.
"""

import argparse
import json
import multiprocessing
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

import torch

from bench.clients.page import page
from bench.clients.scenarios import IMAGE_WAYS, TABLE_WAYS
from bench.clients.sets import SETS, TABLES, QualitySet
from bench.clients.trial import Trial, try_clients

RESULTS = Path("docs/results")
ALPHAS = (0.3, 1.0)
QUICK_WAYS = ("shifted", "labels 40 %", "copies", "tiny")


class Wanted(NamedTuple):
    data: str
    alpha: float
    way: str
    seed: int


def main(arguments: Sequence[str]) -> None:
    options = _options(arguments)
    done = {trial.key: trial for trial in _stored(options.records)}
    missing = [each for each in _wanted(options) if each not in done]
    options.records.parent.mkdir(parents=True, exist_ok=True)
    with options.records.open("a", encoding="utf-8") as records:
        for place, trial in enumerate(_trials(missing, options), 1):
            records.write(json.dumps(trial.record()) + "\n")
            records.flush()
            done[trial.key] = trial
            print(f"{place} of {len(missing)}: {trial.data}, Dirichlet {trial.alpha}, {trial.way}, seed {trial.seed}")
    wanted = [done[each] for each in _wanted(options)]
    options.page.write_text(page(wanted), encoding="utf-8")
    print(f"wrote {options.page}")


def _options(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench clients")
    parser.add_argument("--quick", action="store_true", help="Adult, one seed, Dirichlet 0.3, a few ways")
    parser.add_argument("--data", nargs="+", choices=[*SETS], default=[*SETS])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--first-seed", type=int, default=10)
    parser.add_argument("--rival-seeds", type=int, default=5, help="how many of the seeds the rivals are tried on, too")
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument(
        "--records", type=Path, help="default: docs/results/clients.jsonl; with --quick, runs/clients-quick.jsonl"
    )
    parser.add_argument("--page", type=Path)
    parser.add_argument("--cache", type=Path, default=Path("runs/clients"), help="where features of CIFAR-10 are kept")
    options = parser.parse_args(arguments)
    folder, stem = (Path("runs"), "clients-quick") if options.quick else (RESULTS, "clients")
    options.records = options.records or folder / f"{stem}.jsonl"
    options.page = options.page or options.records.with_suffix(".md")
    return options


def _wanted(options: argparse.Namespace) -> list[Wanted]:
    if options.quick:
        return [Wanted("adult", 0.3, way, options.first_seed) for way in QUICK_WAYS]
    seeds = range(options.first_seed, options.first_seed + options.seeds)
    return [
        Wanted(data, alpha, way, seed)
        for seed in seeds
        for data in options.data
        for alpha in ALPHAS
        for way in (TABLE_WAYS if data in TABLES else IMAGE_WAYS)
    ]


def _stored(path: Path) -> list[Trial]:
    if not path.is_file():
        return []
    return [Trial(**json.loads(line)) for line in path.read_text(encoding="utf-8").splitlines()]


def _trials(missing: Sequence[Wanted], options: argparse.Namespace) -> Iterator[Trial]:
    if options.workers == 1:
        yield from (_run(each, options.cache, _with_rivals(each, options)) for each in missing)
        return
    with ProcessPoolExecutor(options.workers, mp_context=multiprocessing.get_context("spawn")) as pool:
        runs = [pool.submit(_run, each, options.cache, _with_rivals(each, options)) for each in missing]
        yield from (run.result() for run in as_completed(runs))


def _with_rivals(wanted: Wanted, options: argparse.Namespace) -> bool:
    return wanted.seed < options.first_seed + options.rival_seeds


def _run(wanted: Wanted, cache: Path, rivals: bool) -> Trial:
    torch.set_num_threads(1)
    return try_clients(_set(wanted.data, cache), wanted.alpha, wanted.way, wanted.seed, rivals=rivals)


@lru_cache(maxsize=1)
def _set(name: str, cache: Path) -> QualitySet:
    return SETS[name](cache)
