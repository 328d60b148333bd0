"""Boosted trees over columns of two simulated owners and a third party: Adult and the credit table, columns divided.

The label owner has Adult's first seven columns, or the credit table's first five. Areas under the curve are of test
rows, beside those of the label owner alone; the baseline is the pooled table, whose trees these are byte for byte.
Rows are read from $WINNOW_DATA.
"""

import os
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as arrow
from sklearn.metrics import roc_auc_score

from bench.table import Row
from winnow.analytics.permissions import PERMISSIONS
from winnow.analytics.program import run_plain
from winnow.analytics.question import QueryTerms, merge_terms, read_question
from winnow.analytics.simulate import ask_owners
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.analytics.trees.boosted_trees import BoostedTrees
from winnow.analytics.trees.vertical_parts import with_parts
from winnow.core import RoundFinished

MINIMUM, ROUNDS = 10, 100
TABLES = {"adult": (7, 6, "at least 0.9258"), "credit": (5, 4, "at least 0.7780")}
"""Columns of the label owner, depth of trees, and the goal."""
KEY = {"level": "private", "key": True, "type": "text"}


def measure() -> list[Row]:
    folder = Path(os.environ.get("WINNOW_DATA", "")) / "tabular"
    if not folder.is_dir():
        print("  the tables are missing: set WINNOW_DATA to a folder with tabular/adult.data.gz and the like")
        return []
    found, credit = [], DividedTable(*_credit(folder), 5)
    print(f"  load {os.getloadavg()[0]:.1f} on {os.cpu_count()} cores")
    seconds, cpu, _ = credit.timed(rounds=20, depth=3)
    found.append(
        Row(name="20 trees of depth 3, 24,000 rows", value=seconds, unit="s", baseline=60, goal="at most 60 s")
    )
    found.append(Row(name="the same, CPU time of all parties", value=cpu, unit="s", baseline=60))
    for name, (own, depth, goal) in TABLES.items():
        table = credit if name == "credit" else DividedTable(*_adult(folder), own)
        _, _, answer = table.timed(rounds=ROUNDS, depth=depth)
        pooled = table.pooled(table.names, rounds=ROUNDS, depth=depth)
        alone = table.pooled(table.names[:own], rounds=ROUNDS, depth=depth)
        same = "the same trees as" if answer["trees"] == pooled["trees"] else "OTHER TREES than"
        areas = [table.area(each) for each in (pooled, answer, alone)]
        print(f"  {name}: {same} of the pooled table; areas {areas[1]:.4f}, label owner alone {areas[2]:.4f}")
        found.append(Row(name=f"{name}, area", value=areas[1], unit="", baseline=areas[0], goal=goal))
        found.append(Row(name=f"{name}, label owner alone", value=areas[2], unit="", baseline=areas[0]))
    return found


class DividedTable:
    """Training and test rows, whose last column is the outcome; the first `own` columns are with it."""

    def __init__(self, train: pd.DataFrame, test: pd.DataFrame, own: int) -> None:
        self.names = [f"c{place}" for place in range(train.shape[1] - 1)]
        self._train, self._test = (part.set_axis([*self.names, "y"], axis=1).astype(float) for part in (train, test))
        self._columns = {
            name: {"level": "protected", "type": "integer", "bounds": [column.min(), column.max()]}
            for name, column in self._train.items()
        }
        self._train["id"] = [f"p{place:06d}" for place in range(len(train))]
        self._labels, self._features = self._table([*self.names[:own], "y"]), self._table(self.names[own:])

    def _table(self, names: list[str]) -> OwnerTable:
        columns = {"id": KEY, **{name: self._columns[name] for name in names}}
        rows = arrow.Table.from_pandas(self._train[list(columns)], preserve_index=False)
        return OwnerTable(TableDeclaration.model_validate({"columns": columns}), rows)

    def timed(self, **settings: Any) -> tuple[float, float, dict[str, Any]]:
        """Seconds after the rows are matched, of the clock and of CPU time, and the answer with the model."""
        given = {"kind": "trees", "table": "a", "vertical": "b", "key": "id", "target": "y"}
        tables = {"bank": self._labels, "shop": self._features}
        terms = {"bank": _terms(self._labels), "shop": _terms(self._features, "b")}
        files: dict[str, Mapping[str, str]] = {}
        begun = (0.0, 0.0)

        def note(event: object) -> None:
            nonlocal begun
            if isinstance(event, RoundFinished) and event.round == 1:
                begun = (time.perf_counter(), time.process_time())

        started = time.perf_counter()
        question = read_question({**given, **settings})
        answer = ask_owners(question, tables, terms, on_event=note, on_files=files.__setitem__)
        seconds, cpu = time.perf_counter() - begun[0], time.process_time() - begun[1]
        print(f"  {settings}: rows matched in {begun[0] - started:.1f} s, trees in {seconds:.1f} s")
        return seconds, cpu, with_parts(answer, files)

    def pooled(self, names: list[str], **settings: Any) -> dict[str, Any]:
        """Trees of one owner that has these columns."""
        question = read_question({"kind": "trees", "table": "t", "target": "y", "columns": names, **settings})
        whole = self._table([*names, "y"])
        return run_plain(lambda: question.program(merge_terms(question, {"all": _terms(whole)})), [whole])

    def area(self, answer: Mapping[str, Any]) -> float:
        return float(roc_auc_score(self._test["y"], BoostedTrees(answer).predict(self._test)))


def _terms(table: OwnerTable, name: str = "") -> QueryTerms:
    return QueryTerms(declaration=table.declaration, table=name, allow=PERMISSIONS, minimum=MINIMUM, owners=1)


def _credit(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    rows = pd.read_csv(folder / "UCI_Credit_Card.csv.gz").drop(columns="ID")
    order = np.random.default_rng(0).permutation(len(rows))
    return rows.iloc[order[:24_000]], rows.iloc[order[24_000:]]


def _adult(folder: Path) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Texts by their place in the alphabet, "?" as missing."""
    parts = [
        pd.read_csv(folder / f"adult.{part}.gz", header=None, comment="|", skipinitialspace=True, na_values="?")
        for part in ("data", "test")
    ]
    rows = pd.concat(parts, ignore_index=True).dropna(subset=[14])
    rows[14] = rows[14].str.contains(">50K").astype(int)
    for column in rows.select_dtypes(exclude="number").columns:
        codes = pd.Categorical(rows[column]).codes
        rows[column] = np.where(codes < 0, np.nan, codes)
    return rows.iloc[: len(parts[0])], rows.iloc[len(parts[0]) :]
