"""Random tables for tests of statistics, pooled and divided among owners."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as arrow

from winnow.analytics.permissions import PERMISSIONS
from winnow.analytics.program import Program, run_plain
from winnow.analytics.question import Answer, MergedTerms, QueryTerms, merge_terms
from winnow.analytics.stats.statistics_question import StatisticsQuestion
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.analytics.tables.owner_table import OwnerTable

WARDS = ("north", "east", "south", "west")
DECLARATION = TableDeclaration.model_validate(
    {
        "columns": {
            "age": {"level": "protected", "type": "integer", "bounds": [0, 110]},
            "weight": {"level": "protected", "type": "number", "bounds": [0.0, 200.0]},
            "income": {"level": "protected", "type": "number", "bounds": [0.0, 1e6]},
            "sex": {"level": "protected", "values": ["f", "m"]},
            "ward": {"level": "protected", "values": list(WARDS)},
            "died": {"level": "protected", "type": "boolean"},
            "name": {"level": "private", "type": "text"},
        }
    }
)


def pooled_rows(count: int, seed: int, missing: float = 0.02) -> pd.DataFrame:
    """Rows of three numbers that are related, two categories (one value of `ward` is not listed) and an event."""
    rng = np.random.default_rng(seed)
    age = rng.integers(0, 101, count).astype(float)
    weight = np.clip(60 + 0.2 * age + rng.normal(0, 12, count), 0, 200)
    income = np.minimum(np.exp(rng.normal(9, 1, count)), 1e6)
    rows = pd.DataFrame({"age": age, "weight": weight, "income": income})
    rows[rng.random(rows.shape) < missing] = np.nan
    rows["sex"] = rng.choice(["f", "m"], count, p=[0.3, 0.7])
    rows["ward"] = rng.choice([*WARDS, "attic"], count, p=[0.4, 0.3, 0.15, 0.1, 0.05])
    rows.loc[rng.random(count) < missing, "ward"] = None
    rows["died"] = rng.random(count) < 0.2 + 0.004 * age
    rows["name"] = "somebody"
    return rows


def divided(
    rows: pd.DataFrame, owners: int, seed: int, declaration: TableDeclaration = DECLARATION
) -> list[OwnerTable]:
    """The rows by owner: some have many, some few or none, and the old ones are with the first."""
    rng = np.random.default_rng(seed)
    share = rng.dirichlet(np.full(owners, 0.5))
    owner = rng.choice(owners, len(rows), p=share)
    if "age" in rows:
        owner = np.where(rows["age"].to_numpy() > 80, 0, owner)
    return [
        OwnerTable(declaration, arrow.Table.from_pandas(rows[owner == place], preserve_index=False))
        for place in range(owners)
    ]


def merged(question: StatisticsQuestion, owners: int, declaration: TableDeclaration = DECLARATION) -> MergedTerms:
    terms = QueryTerms(declaration=declaration, allow=PERMISSIONS)
    return merge_terms(question, {f"owner {place}": terms for place in range(owners)})


def answer_of(tables: list[OwnerTable], *, seed: int = 0, **settings: Any) -> Answer:
    """The plain answer to a question."""
    question = StatisticsQuestion(table="people", **settings)
    terms = merged(question, len(tables), tables[0].declaration)
    return run_plain(lambda: question.program(terms), tables, seed)


def recorded(program: Program[Answer], opened: list[tuple[str, Any]]) -> Program[Answer]:
    """The same program, which also notes whatever its sums open."""
    step = next(program)
    while True:
        values = yield step
        opened.append((step.label, values))
        try:
            step = program.send(values)
        except StopIteration as stop:
            return stop.value


def told_counts(answer: Mapping[str, Any]) -> list[int]:
    """All numbers of rows in an answer, and the differences of a column's parts from its totals."""
    found = list[int]()
    for column in answer["columns"].values():
        for cell in (column["all"], *column["groups"].values()):
            found += [
                cell["n"],
                cell["missing"],
                *cell.get("histogram", ()),
                *cell.get("counts", ()),
                cell.get("other"),
            ]
    for owner in (answer["per_owner"] or {}).values():
        found += [told["n"] for told in owner.values() if told]
    for test in answer["tests"]:
        for curve in test.get("curves", {}).values():
            found += [*curve["at_risk"], *curve["events"], *curve["censored"]]
    return [count for count in found if count is not None]
