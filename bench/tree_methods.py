"""Trees of all rows beside those that owners grow alone: area under the curve on Adult, over XGBoost on pooled rows.

Five owners, 100 rounds of depth 6 (a forest's depth is 10), with rows divided by chance, and with nine tenths of them
sorted by the outcome. Nothing is protected here: masks give the same trees. Rows are read from $WINNOW_DATA.
"""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as arrow
from numpy.typing import NDArray

from bench.adult_federation import OWNERS, TABLE, adult_rows, write_federation
from bench.table import Row
from bench.trees import POSITIVE, ROUNDS, TARGET, adult_test_rows, area, pooled_booster
from winnow.analytics.program import run_plain
from winnow.analytics.question import merge_terms, read_question
from winnow.analytics.simulated_tables import simulated_tables
from winnow.analytics.tables.federation_file import load_federation
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.analytics.trees.boosted_trees import BoostedTrees

DEPTHS = {"histogram": 6, "bagging": 6, "cyclic": 6, "forest": 10}
SORTED_SHARE = 0.9


def measure() -> list[Row]:
    rows, test = adult_rows(), adult_test_rows()
    if rows is None or test is None:
        print("  Adult is missing: set WINNOW_DATA to a folder with tabular/adult.data.gz and adult.test.gz")
        return []
    found, pooled = [], 0.0
    with tempfile.TemporaryDirectory(prefix="winnow-bench-", ignore_cleanup_errors=True) as scratch:
        federation = load_federation(write_federation(rows, Path(scratch)))
        for method, depth in DEPTHS.items():
            given = {"kind": "trees", "table": TABLE, "target": TARGET, "positive": POSITIVE, "method": method}
            question = read_question({**given, "rounds": ROUNDS, "depth": depth})
            tables, terms = simulated_tables(question, federation)
            merged = merge_terms(question, terms)
            for name, divided in _divisions(list(tables.values())).items():
                trees = BoostedTrees(run_plain(lambda: question.program(merged), divided))  # noqa: B023 - run at once
                pooled = pooled or pooled_booster(trees, rows, test)[1]
                found.append(Row(name=f"{method}, {name}", value=area(trees, test), unit="", baseline=pooled))
                print(f"  {found[-1].name}: {found[-1].value:.4f}; pooled {pooled:.4f}")
    return found


def _divisions(tables: list[OwnerTable]) -> dict[str, list[OwnerTable]]:
    rows = arrow.concat_tables([table.rows for table in tables]).combine_chunks()
    outcome = np.array(rows.column(TARGET).to_pylist()) == POSITIVE
    rng, count = np.random.default_rng(0), len(outcome)
    by_chance = rng.integers(0, OWNERS, count)
    ranks = np.argsort(np.argsort(outcome, kind="stable"))
    by_outcome = np.where(rng.random(count) < SORTED_SHARE, ranks * OWNERS // count, by_chance)

    def divided(owner: NDArray[np.int64]) -> list[OwnerTable]:
        parts = [rows.filter(arrow.array(owner == place)) for place in range(OWNERS)]
        return [OwnerTable(tables[0].declaration, part) for part in parts]

    return {"by chance": divided(by_chance), "by outcome": divided(by_outcome)}
