"""100 trees of depth 6 on Adult with five owners, simulated and between processes, over XGBoost on the pooled rows.

Seconds are told with those of CPU time, and what an owner sends and receives. The areas under the curve are of the
official test rows; the baseline of all figures is XGBoost's `hist` with as many bins. Rows are read from $WINNOW_DATA.
"""

import os
import tempfile
import time
import tomllib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import tomli_w
import xgboost
from sklearn.metrics import roc_auc_score

from bench.adult_federation import COLUMNS, OWNERS, TABLE, adult_rows, write_federation
from bench.deploy.world import world
from bench.table import Row
from winnow.analytics.question import Question, read_question
from winnow.analytics.simulate import ask_simulated
from winnow.analytics.trees.boosted_trees import BoostedTrees
from winnow.core import AnyEvent, RoundFinished

ROUNDS, DEPTH, BINS, RATE = 100, 6, 64, 0.1
TARGET, POSITIVE = "income", ">50K"
MEGABYTE = 1e6


def measure() -> list[Row]:
    rows, test = adult_rows(), adult_test_rows()
    if rows is None or test is None:
        print("  Adult is missing: set WINNOW_DATA to a folder with tabular/adult.data.gz and adult.test.gz")
        return []
    with tempfile.TemporaryDirectory(prefix="winnow-bench-", ignore_cleanup_errors=True) as scratch:
        folder = Path(scratch)
        federation = write_federation(rows, folder)
        simulated = _Timed(lambda on_event: ask_simulated(_question(), federation, on_event=on_event))
        trees = BoostedTrees(simulated.answer)
        seconds, pooled_area = pooled_booster(trees, rows, test)
        found = [
            Row(
                name="area under the curve",
                value=area(trees, test),
                unit="",
                baseline=pooled_area,
                goal="at least 0.9258",
            ),
            Row(name="simulated", value=simulated.seconds, unit="s", baseline=seconds, goal="at most 15 s"),
            Row(name="simulated, CPU time", value=simulated.cpu, unit="s", baseline=seconds),
            Row(name="an owner sends and receives", value=simulated.megabytes, unit="MB", baseline=70, goal="70 MB"),
        ]
        return found + _deployed(folder / "world", federation, simulated.answer, seconds)


class _Timed:
    """An answer, and what it cost."""

    def __init__(self, ask: Callable[[Callable[[AnyEvent], None]], Mapping[str, Any]]) -> None:
        self._bytes, begun, cpu = 0.0, time.perf_counter(), time.process_time()
        self.answer = ask(self._count)
        self.seconds, self.cpu = time.perf_counter() - begun, time.process_time() - cpu

    def _count(self, event: AnyEvent) -> None:
        if isinstance(event, RoundFinished):
            self._bytes += event.cost.sent_bytes

    @property
    def megabytes(self) -> float:
        return self._bytes / OWNERS / MEGABYTE


def _question(**settings: Any) -> Question:
    given = {"kind": "trees", "table": TABLE, "target": TARGET, "positive": POSITIVE, "rounds": ROUNDS, "depth": DEPTH}
    return read_question({**given, "bins": BINS, "learning_rate": RATE, **settings})


def _deployed(folder: Path, federation: Path, simulated: Mapping[str, Any], baseline: float) -> list[Row]:
    declared = tomllib.loads(federation.read_text())["tables"][TABLE]

    def configure(place: int, kit: Path) -> None:
        table = {"file": declared["files"][place], "columns": declared["columns"]}
        rule = {"people": ["me"], "tables": [TABLE], "allow": ["trees", "per-owner"]}
        (kit / "site.toml").write_text(tomli_w.dumps({"tables": {TABLE: table}}))
        (kit / "policy.toml").write_text(tomli_w.dumps({"queries": [rule]}))

    found = []
    with world(folder, OWNERS, configure) as here:
        for name, secure, goal in (("plain", False, 60), ("masked", True, 180)):
            asked = _question(secure=secure)
            timed = _Timed(lambda on_event, asked=asked: here.connection.ask(asked, on_event=on_event).values)
            same = timed.answer["trees"] == simulated["trees"]
            print(f"  deployed, {name}: {timed.seconds:.1f} s; the model is {'the same' if same else 'another one'}")
            found.append(
                Row(
                    name=f"deployed, {name}", value=timed.seconds, unit="s", baseline=baseline, goal=f"at most {goal} s"
                )
            )
    return found


def adult_test_rows() -> pd.DataFrame | None:
    path = Path(os.environ.get("WINNOW_DATA", "")) / "tabular" / "adult.test.gz"
    if not path.is_file():
        return None
    rows = pd.read_csv(path, names=list(COLUMNS), skipinitialspace=True, na_values="?", skiprows=1)
    return rows.assign(income=rows[TARGET].str.rstrip("."))


def area(trees: BoostedTrees, test: pd.DataFrame) -> float:
    return float(roc_auc_score(test[TARGET] == POSITIVE, trees.predict(test)))


def pooled_booster(trees: BoostedTrees, rows: pd.DataFrame, test: pd.DataFrame) -> tuple[float, float]:
    """Seconds and area of XGBoost on all rows, in one thread."""
    begun = time.perf_counter()
    data = xgboost.QuantileDMatrix(trees.cells(rows), (rows[TARGET] == POSITIVE).astype(np.int64), max_bin=BINS)
    settings = {"objective": "binary:logistic", "max_depth": DEPTH, "eta": RATE, "max_bin": BINS, "nthread": 1}
    booster = xgboost.train(settings, data, ROUNDS)
    seconds = time.perf_counter() - begun
    predicted = booster.predict(xgboost.DMatrix(trees.cells(test)))
    return seconds, float(roc_auc_score(test[TARGET] == POSITIVE, predicted))
