"""Secondary suppression in SQL: where a cell of a told total is hidden, so is another, and nothing small follows."""

from itertools import combinations, product

import numpy as np
import pyarrow as arrow
import pytest

from winnow.analytics.permissions import PERMISSIONS
from winnow.analytics.program import run_plain
from winnow.analytics.question import Answer, QueryTerms, merge_terms, read_question
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.analytics.tables.owner_table import OwnerTable

MINIMUM = 10
WARDS = "abcde"
DECLARATION = TableDeclaration.model_validate(
    {"columns": {"ward": {"level": "protected", "values": list(WARDS)}, "sex": {"level": "protected", "values": ["f"]}}}
)


def answer_of(sql: str, counts: list[int], owners: int = 3) -> Answer:
    wards = np.repeat(list(WARDS), counts)
    owner = np.random.default_rng(0).integers(0, owners, len(wards))
    tables = [
        OwnerTable(
            DECLARATION, arrow.table({"ward": wards[owner == place], "sex": ["f"] * int((owner == place).sum())})
        )
        for place in range(owners)
    ]
    question = read_question({"kind": "query", "sql": sql})
    terms = QueryTerms(declaration=DECLARATION, allow=PERMISSIONS, minimum=MINIMUM)
    merged = merge_terms(question, {f"owner {place}": terms for place in range(owners)})
    return run_plain(lambda: question.program(merged), tables)


def counted(wards: str) -> str:
    return f"COUNT(*) FILTER (WHERE ward IN ({', '.join(map(repr, wards))}))"


def smallest_part(told: list[str], counts: list[int]) -> int:
    """Of the parts into which the told sets divide all rows: whatever follows by subtraction is a union of them."""
    sizes = dict(zip(WARDS, counts, strict=True))
    parts = []
    for holds in product((True, False), repeat=len(told)):
        inside = [ward for ward in WARDS if all((ward in each) == held for each, held in zip(told, holds, strict=True))]
        parts.append(sum(sizes[ward] for ward in inside))
    return min(part for part in parts if part)


@pytest.mark.parametrize("order", ["abcde", "edcba", "cabde", "becad"])
@pytest.mark.parametrize("counts", [[40, 30, 3, 20, 50], [40, 4, 3, 20, 50], [9, 12, 60, 11, 10], [40, 30, 20, 20, 7]])
def test_a_small_cell_of_a_told_total_hides_another(order: str, counts: list[int]) -> None:
    sql = f"SELECT COUNT(*) AS total, {', '.join(f'{counted(ward)} AS {ward}' for ward in order)} FROM stays"
    (row,) = answer_of(sql, counts)["rows"]
    sizes = dict(zip(WARDS, counts, strict=True))
    assert row["total"] == sum(counts)
    hidden = [ward for ward in WARDS if row[ward] is None]
    assert {ward for ward in WARDS if sizes[ward] < MINIMUM} < {*hidden}  # and at least one that is large enough
    assert sum(sizes[ward] for ward in hidden) >= MINIMUM
    assert all(row[ward] == sizes[ward] for ward in WARDS if ward not in hidden)
    assert smallest_part([ward for ward in WARDS if ward not in hidden], counts) >= MINIMUM


@pytest.mark.parametrize("seed", range(6))
def test_nothing_small_follows_from_overlapping_conditions(seed: int) -> None:
    rng = np.random.default_rng(seed)
    counts = [int(each) for each in rng.choice([0, 3, 9, 10, 14, 40], 5)]
    counts[int(rng.integers(5))] = 100
    sets = ["".join(each) for size in (1, 2, 3) for each in combinations(WARDS, size)]
    asked = [str(each) for each in rng.choice(sets, 5, replace=False)]
    sql = f"SELECT COUNT(*) AS total, {', '.join(f'{counted(each)} AS {each}' for each in asked)} FROM stays"
    (row,) = answer_of(sql, counts)["rows"]
    assert smallest_part([each for each in asked if row[each] is not None], counts) >= MINIMUM


def test_groups_that_are_left_out_do_not_follow_from_a_total_beside_them() -> None:
    """A total over groups takes another statement; within one, groups are all that is told."""
    answer = answer_of("SELECT ward, COUNT(*) AS n FROM stays GROUP BY ward", [40, 30, 3, 20, 50])
    assert {row["ward"]: row["n"] for row in answer["rows"]} == {"a": 40, "b": 30, "d": 20, "e": 50}
    assert answer["left_out"] == 1
