"""Who finds the truth of real crowds best: `python -m bench.truth FOLDER`, with a folder for each set in it.

Each has label.csv (item, worker, label) and truth.csv (item, truth). Majority vote, Winnow's own methods, rivals by
hand (one-coin Dawid–Skene, ZenCrowd, CRH for labels and CATD), and GLAD and MACE of crowd-kit where $TRUTH_VENVS names
a folder with an environment `crowdkit` (crowd-kit, pandas, scikit-learn, nltk, tqdm, attrs). Ties are shared evenly;
what is random is run with five seeds.
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from winnow.analytics.truth.answer_arrays import AnswerArrays
from winnow.analytics.truth.crowd_answers import CrowdAnswers
from winnow.analytics.truth.truth_methods import METHODS
from winnow.analytics.truth.truth_vectors import discover_plainly
from winnow.papers.truth.known_truth import accuracy, read_crowd

Scores = NDArray[np.float64]
"""By item and label, the truth being the label with the highest; of two labels, by item for the second."""
ITERATIONS = 50
START = 0.8
LEAST = 1e-6
SEEDS = 5


def majority(crowd: CrowdAnswers) -> Scores:
    return crowd.votes()


def own(method: str, iterations: int) -> Callable[[CrowdAnswers], Scores]:
    def scores(crowd: CrowdAnswers) -> Scores:
        return discover_plainly(METHODS[method], crowd.arrays, iterations).confidence

    return scores


def one_coin(crowd: CrowdAnswers, *, prior: bool = True) -> Scores:
    """One probability of being right a worker, by expectation maximisation; ZenCrowd has no prior of classes."""
    answers, k = crowd.arrays, crowd.arrays.classes
    right, frequent = np.full(answers.worker_count, START), np.full(k, 1 / k)
    for _ in range(ITERATIONS):
        p = right.clip(LEAST, 1 - LEAST)[answers.workers]
        wrong = np.log((1 - p) / (k - 1))
        logs = np.log(frequent) + np.bincount(answers.items, wrong, answers.item_count)[:, None]
        np.add.at(logs, (answers.items, answers.labels), np.log(p) - wrong)
        posterior = np.exp(logs - logs.max(axis=1, keepdims=True))
        posterior /= posterior.sum(axis=1, keepdims=True)
        right = answers.mean_by_worker(posterior[answers.items, answers.labels], START)
        frequent = posterior.mean(axis=0).clip(LEAST) if prior else frequent
    return posterior


def zencrowd(crowd: CrowdAnswers) -> Scores:
    return one_coin(crowd, prior=False)


def crh(crowd: CrowdAnswers) -> Scores:
    """w = −log(err/Σ err), err the share of answers that differ from the truth (Li et al., 2014)."""
    return _weighted(crowd.arrays, lambda errors, counts: -np.log((errors / counts) / (errors / counts).sum()))


def catd(crowd: CrowdAnswers) -> Scores:
    """w = χ²(0.975; answers)/errors: few answers, little weight (Li et al., 2014)."""
    return _weighted(crowd.arrays, lambda errors, counts: chi2.ppf(0.975, counts) / errors)


def _weighted(answers: AnswerArrays, weigh: Callable[[Scores, Scores], Scores]) -> Scores:
    counts = np.maximum(np.bincount(answers.workers, minlength=answers.worker_count), 1).astype(float)
    weights = np.ones(answers.worker_count)
    for _ in range(ITERATIONS):
        scores = np.zeros((answers.item_count, answers.classes))
        np.add.at(scores, (answers.items, answers.labels), weights[answers.workers])
        missed = (scores.argmax(axis=1)[answers.items] != answers.labels).astype(float)
        weights = weigh(np.bincount(answers.workers, missed, answers.worker_count) + 0.01, counts)
    return scores


RIVALS: dict[str, Callable[[CrowdAnswers], Scores]] = {
    "majority": majority,
    "sum": own("sum", 10),
    "logistic": own("logistic", 10),
    "Dawid–Skene": own("dawid-skene", 50),
    "one-coin DS": one_coin,
    "ZenCrowd": zencrowd,
    "CRH": crh,
    "CATD": catd,
}


def by_crowdkit(place: Path, crowd: CrowdAnswers) -> dict[str, list[Scores]]:
    """What crowd-kit's methods find, by seed; nothing without its environment."""
    venvs = os.environ.get("TRUTH_VENVS")
    if venvs is None:
        return {}
    script = Path(__file__).parent / "rivals" / "crowdkit_truth.py"
    command = [Path(venvs) / "crowdkit" / "bin" / "python", script, place / "label.csv", str(SEEDS)]
    done = subprocess.run(command, check=True, capture_output=True, timeout=900)
    k = len(crowd.labels)
    return {
        name: [np.eye(k)[[crowd.labels.index(found[item]) for item in crowd.items]] for found in runs]
        for name, runs in json.loads(done.stdout).items()
    }


def cell(values: list[float], best: float) -> str:
    mean, spread = float(np.mean(values)), float(np.std(values))
    text = f"{mean:.3f}" if spread < 5e-4 else f"{mean:.3f} ± {spread:.3f}"
    return f"**{text}**" if mean > best - 5e-4 else text


def main(folder: Path) -> None:
    header: list[str] = []
    for place in sorted(path.parent for path in folder.glob("*/label.csv")):
        crowd, truth = read_crowd(place)
        scores = {name: [rival(crowd)] for name, rival in RIVALS.items()} | by_crowdkit(place, crowd)
        found = {name: [accuracy(each, truth) for each in runs] for name, runs in scores.items()}
        if not header:
            header = [*found]
            print("| set | " + " | ".join(header) + " |\n|---|" + "---|" * len(header))
        best = max(float(np.mean(values)) for values in found.values())
        print(f"| {place.name} | " + " | ".join(cell(found[name], best) for name in header) + " |", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]))
