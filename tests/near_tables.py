"""Points of two owners, whose places neither tells, and statements that join them by distance."""

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


def declared(side: str, kind: str) -> TableDeclaration:
    place = {"level": "protected", "type": kind, "bounds": [0, 99]}
    columns: dict[str, Any] = {f"{side}x": place, f"{side}y": place}
    columns |= {
        f"{side}v": {"level": "protected", "type": "integer", "bounds": [-50, 50]},
        f"{side}w": {"level": "protected", "type": "number", "bounds": [0, 1]},
        f"{side}k": {"level": "protected", "values": ["one", "two", "three"]},
    }
    return TableDeclaration.model_validate({"columns": columns})


def near_rows(count: int, seed: int, whole: bool = True) -> dict[str, arrow.Table]:
    rng = np.random.default_rng(seed)

    def column(values: Any) -> arrow.Array:
        return arrow.array(values, mask=rng.random(len(values)) < 0.03)

    def table(side: str, rows: int) -> arrow.Table:
        places = [rng.integers(0, 100, rows) if whole else rng.uniform(0, 99, rows) for _ in range(2)]
        return arrow.table(
            {
                f"{side}x": column(places[0]),
                f"{side}y": column(places[1]),
                f"{side}v": column(rng.integers(-50, 51, rows)),
                f"{side}w": column(rng.uniform(0, 1, rows)),
                f"{side}k": column(rng.choice(["one", "two", "three"], rows, p=[0.6, 0.37, 0.03])),
            }
        )

    return {"crimes": table("a", count), "lamps": table("b", 2 * count)}


def near_owners(pooled: dict[str, arrow.Table], first: str, minimum: int, **other: Any) -> tuple[Any, Any]:
    """`first` is the table that the statement reads first."""
    kind = "integer" if arrow.types.is_integer(pooled["crimes"].schema.field("ax").type) else "number"
    tables, terms = {}, {}
    for owner, name, side in (("police", "crimes", "a"), ("city", "lamps", "b")):
        tables[owner] = OwnerTable(declared(side, kind), pooled[name])
        terms[owner] = QueryTerms(
            declaration=declared(side, kind),
            table="" if name == first else name,
            minimum=minimum,
            **{"allow": PERMISSIONS, **other},
        )
    return tables, terms


def near_answer(sql: str, pooled: dict[str, arrow.Table], minimum: int = 1, **other: Any) -> Answer:
    question = read_question({"kind": "query", "sql": sql})
    tables, terms = near_owners(pooled, question.table, minimum, **other)
    merged = merge_terms(question, terms)
    return run_plain(lambda: question.program(merged), list(tables.values()))


def pooled_near(sql: str, pooled: dict[str, arrow.Table]) -> list[tuple[Any, ...]]:
    with duckdb.connect() as opened:
        for name, table in pooled.items():
            opened.register(name, table)
        return opened.execute(expand_spatial(sqlglot.parse_one(sql, read="duckdb")).sql("duckdb")).fetchall()


def random_near_statement(rng: np.random.Generator) -> str:
    keys = [str(each) for each in rng.choice(["ak", "bk", "av > 0", "bw > 0.5"], rng.integers(0, 3), False)]
    numbers = ("SUM(av)", "AVG(bw)", "COUNT(bv)", "VAR_POP(aw)", "SUM(bv) FILTER (WHERE av > 0)", "AVG(av + 1)")
    aggregates = ["COUNT(*)", *(str(each) for each in rng.choice(numbers, 2, False))]
    limit = round(float(rng.uniform(0, 30)), 1)
    condition = str(
        rng.choice(
            [f"DWITHIN(ax, ay, bx, by, {limit})", f"DISTANCE(bx, by, ax, ay) < {limit}", "DWITHIN(ax, ay, bx, by, 5)"]
        )
    )
    from_ = str(
        rng.choice(["crimes JOIN lamps ON {}", "lamps JOIN crimes ON {} AND bw < 0.9", "crimes, lamps WHERE {}"])
    )
    outputs = [f"{each} AS key{place}" for place, each in enumerate(keys)]
    outputs += [f"{each} AS n{place}" for place, each in enumerate(aggregates)]
    group = f" GROUP BY {', '.join(str(place + 1) for place in range(len(keys)))}" if keys else ""
    return f"SELECT {', '.join(outputs)} FROM {from_.format(condition)}{group}"
