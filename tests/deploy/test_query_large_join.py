"""A join between two organisations whose lists and products are larger than a message: they go in blobs or in parts."""

import duckdb
import numpy as np
import pyarrow as arrow
import pytest
from pyarrow import csv
from table_world import TableWorld, running

KEYS = 150_000
"""Of each owner: a list of encrypted keys has 4.8 MB."""
TABLES = {
    "hospital": """
[tables.patients]
file = "patients.csv"
[tables.patients.columns]
pid = { level = "private", type = "integer", key = true }
age = { level = "protected", type = "integer", bounds = [0, 110] }
outcome = { level = "protected", values = ["home", "moved", "died"] }
""",
    "insurer": """
[tables.claims]
file = "claims.csv"
[tables.claims.columns]
person = { level = "private", type = "integer", key = true }
cost = { level = "protected", type = "integer", bounds = [0, 5000] }
kind = { level = "protected", values = ["drug", "stay"] }
""",
}
RULE = """
[[queries]]
people = ["ana"]
tables = ["patients", "claims"]
allow = ["aggregate", "match"]
"""
SQL = (
    "SELECT outcome, kind, COUNT(*) AS n, SUM(cost) AS cost, SUM(age) AS age FROM patients JOIN claims ON pid = person "
    "WHERE age >= 30 GROUP BY 1, 2 ORDER BY 1, 2"
)


@pytest.mark.slow(part="deploy")
def test_a_join_of_150000_keys_is_answered_as_by_duckdb(tmp_path_factory: pytest.TempPathFactory) -> None:
    rng = np.random.default_rng(1)
    pooled = {
        "patients": arrow.table(
            {
                "pid": np.arange(KEYS),
                "age": rng.integers(0, 111, KEYS),
                "outcome": rng.choice(["home", "moved", "died"], KEYS),
            }
        ),
        "claims": arrow.table(
            {
                "person": rng.permutation(np.arange(KEYS // 3, KEYS // 3 + KEYS)),
                "cost": rng.integers(0, 5001, KEYS),
                "kind": rng.choice(["drug", "stay"], KEYS),
            }
        ),
    }
    world = TableWorld(tmp_path_factory.mktemp("large"), tuple(TABLES))
    for (site, declared), (name, rows) in zip(TABLES.items(), pooled.items(), strict=True):
        csv.write_csv(rows, world.kit(site) / f"{name}.csv")
        (world.kit(site) / "site.toml").write_text(declared)
    world.allow(RULE)
    with duckdb.connect() as opened:
        for name, rows in pooled.items():
            opened.register(name, rows)
        expected = opened.execute(SQL).fetchall()
    with running(world) as connection:
        answer = connection.query(SQL)
    assert [tuple(row.values()) for row in answer.rows] == expected
