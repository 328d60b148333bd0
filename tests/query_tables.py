"""A table for tests of SQL, pooled and divided among owners, and random statements about it."""

from typing import Any

import duckdb
import numpy as np
import pyarrow as arrow
import sqlglot

from winnow.analytics.permissions import PERMISSIONS
from winnow.analytics.program import run_plain
from winnow.analytics.question import Answer, QueryTerms, merge_terms, read_question
from winnow.analytics.sql.spatial_functions import expand_spatial
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.analytics.tables.owner_table import OwnerTable

DECLARATION = TableDeclaration.model_validate(
    {
        "columns": {
            "ward": {"level": "public", "type": "text"},
            "age": {"level": "protected", "type": "integer", "bounds": [0, 110]},
            "cost": {"level": "protected", "type": "number", "bounds": [0, 50000]},
            "outcome": {"level": "protected", "values": ["home", "moved", "died"]},
            "patient": {"level": "private", "key": True, "type": "text"},
            "day": {"level": "protected", "type": "date", "bounds": [18000, 19000]},
            "well": {"level": "protected", "type": "boolean"},
            "x": {"level": "protected", "type": "number", "bounds": [-10, 10]},
            "y": {"level": "protected", "type": "number", "bounds": [-10, 10]},
            "note": {"level": "protected", "type": "text"},
        }
    }
)
DAY = 86_400_000_000


def pooled_rows(count: int, seed: int, missing: float = 0.03) -> arrow.Table:
    rng = np.random.default_rng(seed)

    def column(values: Any) -> arrow.Array:
        return arrow.array(values, mask=rng.random(count) < missing)

    moments = rng.integers(18000, 19000, count) * DAY + rng.integers(0, DAY, count)
    return arrow.table(
        {
            "ward": column(
                rng.choice(["cardiac", "surgery", "Kinder – größer", "it's"], count, p=[0.5, 0.3, 0.19, 0.01])
            ),
            "age": column(rng.integers(0, 111, count)),
            "cost": column(rng.gamma(2, 3000, count).clip(0, 50000)),
            "outcome": column(rng.choice(["home", "moved", "died"], count, p=[0.8, 0.18, 0.02])),
            "patient": column([f"p{place % 900}" for place in range(count)]),
            "day": column(moments.astype("datetime64[us]")),
            "well": column(rng.random(count) < 0.4),
            "x": column(rng.uniform(-10, 10, count)),
            "y": column(rng.uniform(-10, 10, count)),
            "note": column(rng.choice(["", "17", "ill", "%"], count)),
        }
    )


def divided(rows: arrow.Table, owners: int, seed: int) -> list[OwnerTable]:
    rng = np.random.default_rng(seed)
    owner = rng.choice(owners, len(rows), p=rng.dirichlet(np.full(owners, 0.6)))
    return [OwnerTable(DECLARATION, rows.filter(arrow.array(owner == place))) for place in range(owners)]


def terms_of(owners: int, minimum: int = 10, **other: Any) -> dict[str, QueryTerms]:
    own = QueryTerms(**{"declaration": DECLARATION, "allow": PERMISSIONS, "minimum": minimum} | other)
    return {f"owner {place}": own for place in range(owners)}


def answer_of(sql: str, tables: list[OwnerTable], minimum: int = 10, seed: int = 0, **settings: Any) -> Answer:
    question = read_question({"kind": "query", "sql": sql, **settings})
    declared = tables[0].declaration
    terms = merge_terms(question, terms_of(len(tables), minimum, declaration=declared))
    return run_plain(lambda: question.program(terms), tables, seed)


def pooled_answer(sql: str, rows: arrow.Table) -> list[tuple[Any, ...]]:
    """DuckDB's own answer over the rows of all owners."""
    with duckdb.connect() as opened:
        opened.register("stays", rows)
        return opened.execute(sql).fetchall()


def nearest_statement(sql: str) -> str:
    """With distances written out, which DuckDB does not know."""
    return expand_spatial(sqlglot.parse_one(sql, read="duckdb")).sql("duckdb")


def spatial(rng: np.random.Generator) -> str:
    return f"{rng.choice(['DISTANCE', 'KM'])}(x, y, {rng.integers(-9, 10)}, {rng.integers(-9, 10)})"


KEYS = (
    *("ward", "outcome", "well", "ward || '!'", "UPPER(ward)", "age >= 50", "LENGTH(ward)"),
    *("CASE WHEN age < 18 THEN 'child' WHEN age < 65 THEN 'adult' ELSE 'old' END", "COALESCE(outcome, 'home')"),
    *("CASE outcome WHEN 'home' THEN 1 WHEN 'died' THEN 0 END", "x > y", "note LIKE '1%'"),
)
NUMBERS = (
    *("age", "cost", "x", "y", "age + 1", "cost / 1000", "x * y - 1", "ABS(x)", "FLOOR(cost)", "age * age"),
    *(
        "CASE WHEN well THEN cost ELSE 0 END",
        "COALESCE(age, 40)",
        "-x",
        "ROUND(y)",
        "CAST(age AS DOUBLE) / 7",
        "age // 10",
    ),
    *(
        "CASE WHEN outcome = 'died' THEN 1 ELSE 0 END",
        "GREATEST(x, y)",
        "SQRT(age)",
        "age % 10",
        "MONTH(day)",
        "YEAR(day)",
    ),
    *("NULLIF(age, 0)", "LN(cost + 1)", "POW(x, 2)", "DISTANCE(x, y, 1, 2)"),
)
CONDITIONS = (
    *("age >= 65", "cost BETWEEN 1000 AND 9000", "outcome IN ('home', 'died')", "ward LIKE 'c%'", "well", "NOT well"),
    *("patient <> 'p7'", "day >= DATE '2020-01-01'", "day < DATE '2021-01-01' + INTERVAL 3 MONTH", "age IS NOT NULL"),
    *(
        "x + y > 0",
        "YEAR(day) = 2020",
        "DWITHIN(x, y, 0, 0, 6)",
        "KM(x, y, 3, 4) < 700",
        "note IS NULL OR note = 'ill'",
    ),
    *(
        "age NOT IN (1, 2, 3)",
        "ward IS DISTINCT FROM 'surgery'",
        "EXTRACT(MONTH FROM day) <= 6",
        "STARTS_WITH(ward, 's')",
    ),
    *("ward NOT LIKE '%r%'", "age % 2 = 0", "LOWER(outcome) = 'home'", "DATE_TRUNC('month', day) > DATE '2019-06-01'"),
)
AGGREGATES = (
    "SUM({0})",
    "AVG({0})",
    "MIN({0})",
    "MAX({0})",
    "VAR_POP({0})",
    "VAR_SAMP({0})",
    "STDDEV({0})",
    "COUNT({0})",
)
QUANTILES = ("MEDIAN({0})", "QUANTILE_CONT({0}, 0.3)", "QUANTILE_DISC({0}, 0.8)")
SOURCES = (
    "stays",
    "(SELECT * FROM stays WHERE {0}) AS s",
    "(SELECT ward, age, cost, outcome, well, x, y, day, note, patient FROM stays WHERE {0}) s",
    "(SELECT * FROM (SELECT * FROM stays WHERE age < 40 OR {0}) AS t) AS u",
)


def random_statement(rng: np.random.Generator) -> str:
    """A statement of the grammar."""
    keys = list(rng.choice(KEYS, rng.integers(0, 3), replace=False))
    source = str(rng.choice(SOURCES, p=[0.7, 0.1, 0.1, 0.1])).format(rng.choice(CONDITIONS))
    aggregates = [_aggregate(rng) for _ in range(rng.integers(1, 5))]
    outputs = [f"{key} AS key{place}" for place, key in enumerate(keys)]
    outputs += [f"{each} AS n{place}" for place, each in enumerate(aggregates)]
    sql = f"SELECT {', '.join(outputs)} FROM {source}"
    if rng.random() < 0.2:
        sql = f"WITH rows AS (SELECT * FROM {source}) SELECT {', '.join(outputs)} FROM rows"
    if rng.random() < 0.6:
        sql += " WHERE " + rng.choice([" AND ", " OR "]).join(rng.choice(CONDITIONS, rng.integers(1, 4)))
    if keys:
        written = [f"key{place}" if rng.random() < 0.5 else str(place + 1) for place in range(len(keys))]
        sql += f" GROUP BY {', '.join(written)}"
        if rng.random() < 0.3:
            sql += f" HAVING COUNT(*) > {rng.integers(1, 200)}"
        if rng.random() < 0.4:
            order = ", ".join(f"{place + 1} {rng.choice(['ASC', 'DESC'])} NULLS LAST" for place in range(len(keys)))
            sql += f" ORDER BY {order} LIMIT {rng.integers(1, 6)}"
    return sql


def _aggregate(rng: np.random.Generator) -> str:
    chosen = rng.random()
    if chosen < 0.25:
        told = [each for each in CONDITIONS if "patient" not in each]
        filtered = f" FILTER (WHERE {rng.choice(told)})" if rng.random() < 0.4 else ""
        return f"COUNT(*){filtered}"
    if chosen < 0.3:
        return f"CORR({rng.choice(NUMBERS[:4])}, {rng.choice(NUMBERS[:8])})"
    if chosen < 0.4:
        return str(rng.choice(QUANTILES)).format(rng.choice(NUMBERS[:6]))
    if chosen < 0.45:
        return str(rng.choice(["MIN(day)", "MAX(day)"]))
    if chosen < 0.55:
        return f"SUM({rng.choice(NUMBERS)}) / COUNT(*)"
    return str(rng.choice(AGGREGATES)).format(rng.choice(NUMBERS))
