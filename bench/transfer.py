"""Transfer to an owner without labels (docs/transfer.md): Adult, its columns divided between two owners.

    python -m bench.transfer                          # 200, 500 and 2,000 common rows, five seeds
    python -m bench.transfer --workers 8 --out transfer.jsonl

The owner of the labels has 12,000 people besides, and eight columns; the other has eight, of which three are the same,
and 4,000 people besides, without labels. Every way has four candidates, compared on a seed that is not reported. Scored
is AUC on 8,000 people that nobody trains on, by the other owner's columns. A finished run in --out is not run again.
"""

import argparse
import json
import multiprocessing
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, stdev
from typing import TYPE_CHECKING, Any

import numpy as np

from bench.adult_federation import adult_rows

if TYPE_CHECKING:
    from pandas import DataFrame
    from torch import nn

COMMON = ("age", "race", "sex")
WITH_LABELS = (*COMMON, "workclass", "education", "education-num", "marital-status", "occupation")
WITHOUT = (*COMMON, "relationship", "capital-gain", "capital-loss", "hours-per-week", "native-country")
OVERLAPS, SEEDS, TUNING_SEED = (200, 500, 2000), range(5), 1000
OWN, OTHERS, TESTED, WIDTH = 12_000, 4_000, 8_000, 8
Candidate = dict[str, float]
CANDIDATES: dict[str, list[Candidate]] = {
    "overlap": [{"epochs": epochs, "weight_decay": decay} for epochs in (20, 60) for decay in (1e-4, 1e-2)],
    "common": [{"epochs": epochs, "weight_decay": decay} for epochs in (3, 8) for decay in (1e-4, 1e-2)],
    "transfer": [{"epochs": epochs, "align": align} for epochs in (30, 60) for align in (1.0, 3.0)],
    "all-labels": [{"epochs": epochs, "weight_decay": decay} for epochs in (3, 8) for decay in (1e-4, 1e-2)],
}
TITLES = {
    "overlap": "Own columns, labels of the common rows alone",
    "common": "The labels' owner's model of the three columns that both have",
    "transfer": "winnow.transfer",
    "all-labels": "Own columns, labels of all 12,000 and the common rows (out of reach)",
}


def encoder(inputs: int) -> "nn.Module":
    from torch import nn

    return nn.Sequential(nn.Linear(inputs, 32), nn.ReLU(), nn.Linear(32, WIDTH))


class Case:
    """Who has whom, for one seed and one number of common rows."""

    def __init__(self, people: "DataFrame", common: int, seed: int) -> None:
        order = np.random.default_rng(seed).permutation(len(people))
        self.tested, rest = people.iloc[order[:TESTED]], order[TESTED:]
        self.common, self.own = people.iloc[rest[:common]], people.iloc[rest[common : common + OWN]]
        self.others = people.iloc[rest[common + OWN : common + OWN + OTHERS]]
        self.seed = seed

    def score(self, outputs: Any) -> float:
        from sklearn.metrics import roc_auc_score

        return float(roc_auc_score(self.tested["income"] == ">50K", outputs[:, 1] - outputs[:, 0]))

    def transfer(self, candidate: Candidate) -> float:
        import pandas as pd
        import torch

        import winnow

        held = {
            "bank": pd.concat([self.own, self.common])[["key", *WITH_LABELS, "income"]],
            "shop": pd.concat([self.common, self.others])[["key", *WITHOUT]],
        }
        columns = {name: frame.drop(columns=["key", "income"], errors="ignore") for name, frame in held.items()}
        torch.manual_seed(self.seed)
        result = winnow.transfer(
            encoders={name: encoder(_features(frame)) for name, frame in columns.items()},
            head=torch.nn.Linear(WIDTH, 2),
            labels="bank",
            target="income",
            parts=held,
            epochs=int(candidate["epochs"]),
            align=candidate["align"],
            seed=self.seed,
        )
        return self.score(result.outputs(self.tested[list(WITHOUT)]).numpy())

    def overlap(self, candidate: Candidate) -> float:
        return self._by_itself(self.common, WITHOUT, candidate, 32)

    def common_columns(self, candidate: Candidate) -> float:
        import pandas as pd

        return self._by_itself(pd.concat([self.own, self.common]), COMMON, candidate, 64)

    def all_labels(self, candidate: Candidate) -> float:
        import pandas as pd

        return self._by_itself(pd.concat([self.own, self.common]), WITHOUT, candidate, 64)

    def _by_itself(self, rows: "DataFrame", columns: tuple[str, ...], candidate: Candidate, batch_size: int) -> float:
        """The same network with labels, trained by Adam in one place; features as `winnow.transfer` makes them."""
        import torch
        from torch.nn import functional

        from winnow.vertical.keyed_rows import OwnerColumns, keyed_rows

        held = keyed_rows(
            rows[["key", *columns, "income"]], OwnerColumns(key="key", target="income", features=columns), "rows"
        )
        assert held.x is not None
        assert held.y is not None
        assert held.preprocessing is not None
        torch.manual_seed(self.seed)
        network = torch.nn.Sequential(encoder(held.x.shape[1]), torch.nn.Linear(WIDTH, 2))
        optimiser = torch.optim.Adam(network.parameters(), 0.001, weight_decay=candidate["weight_decay"])
        rng = np.random.default_rng(self.seed)
        for _ in range(int(candidate["epochs"])):
            shuffled = rng.permutation(len(held))
            for start in range(0, len(held), batch_size):
                batch = torch.from_numpy(shuffled[start : start + batch_size])
                optimiser.zero_grad()
                loss = functional.cross_entropy(network(held.x[batch]), held.y[batch])
                loss.backward()  # type: ignore[no-untyped-call]
                optimiser.step()
        with torch.no_grad():
            tested = held.preprocessing.transform(self.tested[list(columns)], "tested")
            return self.score(network(torch.as_tensor(tested)).numpy())


def _features(frame: "DataFrame") -> int:
    """How many features become of an owner's columns."""
    from winnow.vertical.keyed_rows import OwnerColumns, keyed_rows

    numbered = frame.assign(key=np.arange(len(frame)))
    x = keyed_rows(numbered, OwnerColumns(key="key"), "rows").x
    assert x is not None
    return int(x.shape[1])


WAYS: dict[str, Callable[[Case, Candidate], float]] = {
    "overlap": Case.overlap,
    "common": Case.common_columns,
    "transfer": Case.transfer,
    "all-labels": Case.all_labels,
}


def _measured(job: tuple[str, int, int, int]) -> dict[str, Any]:
    import torch

    torch.set_num_threads(1)
    way, common, seed, number = job
    people = adult_rows()
    assert people is not None
    people = people.fillna("missing").assign(key=np.arange(len(people)))
    case = Case(people, common, seed)
    score = WAYS[way](case, CANDIDATES[way][number])
    return {"way": way, "common": common, "seed": seed, "candidate": number, "auc": round(score, 5)}


def _all(jobs: list[tuple[str, int, int, int]], path: Path, workers: int) -> dict[tuple[str, int, int, int], float]:
    def known() -> dict[tuple[str, int, int, int], float]:
        lines = path.read_text().splitlines() if path.exists() else []
        read = (json.loads(line) for line in lines)
        return {(each["way"], each["common"], each["seed"], each["candidate"]): each["auc"] for each in read}

    missing = [job for job in jobs if job not in known()]
    with multiprocessing.get_context("spawn").Pool(workers) as pool, path.open("a") as file:
        for line in pool.imap_unordered(_measured, missing):
            file.write(json.dumps(line) + "\n")
            file.flush()
    return known()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("transfer.jsonl"))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--common", type=int, nargs="+", default=list(OVERLAPS), help="numbers of common rows")
    given = parser.parse_args()
    if adult_rows() is None:
        raise SystemExit("tabular/adult.data.gz is not in $WINNOW_DATA")
    tuning = [
        (way, n, TUNING_SEED, c) for n in given.common for way, tried in CANDIDATES.items() for c in range(len(tried))
    ]
    scores = _all(tuning, given.out, given.workers)
    best = {(way, n): max(range(4), key=lambda c: scores[way, n, TUNING_SEED, c]) for way in WAYS for n in given.common}
    jobs = [(way, n, seed, best[way, n]) for n in given.common for seed in SEEDS for way in WAYS]
    scores = _all(jobs, given.out, given.workers)
    print("| " + " | ".join(["AUC, mean ± sd over 5 seeds", *(f"{n:,} common rows" for n in given.common)]) + " |")
    print("|---" * (len(given.common) + 1) + "|")
    for way, title in TITLES.items():
        cells = []
        for n in given.common:
            found = [scores[way, n, seed, best[way, n]] for seed in SEEDS]
            cells.append(f"{fmean(found):.4f} ± {stdev(found):.4f}")
        print("| " + " | ".join([title, *cells]) + " |")


if __name__ == "__main__":
    main()
