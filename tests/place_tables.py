"""Places that one owner tells, people that others keep, and statements about who is near what."""

from typing import Any

import duckdb
import numpy as np
import pyarrow as arrow
import sqlglot

from winnow.analytics.permissions import PERMISSIONS
from winnow.analytics.program import run_plain
from winnow.analytics.question import Answer, QueryTerms, Question, merge_terms, read_question
from winnow.analytics.sql.spatial_functions import expand_spatial
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.analytics.tables.owner_table import OwnerTable

STATIONS = TableDeclaration.model_validate(
    {
        "columns": {
            "name": {"level": "public", "type": "text"},
            "x": {"level": "public", "type": "number", "bounds": [-10, 10]},
            "y": {"level": "public", "type": "number", "bounds": [-10, 10]},
            "reach": {"level": "public", "type": "number", "bounds": [0, 9]},
            "kind": {"level": "public", "values": ["bus", "rail"]},
            "beds": {"level": "protected", "type": "integer", "bounds": [0, 100]},
        }
    }
)
PEOPLE = TableDeclaration.model_validate(
    {
        "columns": {
            "x": {"level": "protected", "type": "number", "bounds": [-10, 10]},
            "y": {"level": "protected", "type": "number", "bounds": [-10, 10]},
            "age": {"level": "protected", "type": "integer", "bounds": [0, 110]},
            "cost": {"level": "protected", "type": "number", "bounds": [0, 5000]},
            "ill": {"level": "protected", "type": "boolean"},
            "secret": {"level": "private", "type": "text"},
        }
    }
)
DECLARED = {"stations": STATIONS, "people": PEOPLE}


def place_rows(people: int, stations: int, seed: int) -> dict[str, arrow.Table]:
    rng = np.random.default_rng(seed)

    def column(values: Any) -> arrow.Array:
        return arrow.array(values, mask=rng.random(len(values)) < 0.02)

    return {
        "stations": arrow.table(
            {
                "name": [f"station {place % (stations - 1)}" for place in range(stations)],
                "x": rng.uniform(-9, 9, stations),
                "y": rng.uniform(-9, 9, stations),
                "reach": rng.uniform(1, 5, stations),
                "kind": rng.choice(["bus", "rail"], stations),
                "beds": rng.integers(0, 100, stations),
            }
        ),
        "people": arrow.table(
            {
                "x": column(rng.uniform(-10, 10, people)),
                "y": column(rng.uniform(-10, 10, people)),
                "age": column(rng.integers(0, 111, people)),
                "cost": column(rng.uniform(0, 5000, people)),
                "ill": column(rng.random(people) < 0.3),
                "secret": [f"s{place}" for place in range(people)],
            }
        ),
    }


def owners_of_places(
    question: Question, pooled: dict[str, arrow.Table], owners: int, minimum: int, seed: int = 0, **other: Any
) -> tuple[dict[str, OwnerTable], dict[str, QueryTerms]]:
    """The stations are the agency's, the people are divided among so many hospitals."""
    codes = np.random.default_rng(seed).integers(0, owners, pooled["people"].num_rows)
    rows = {"agency": ("stations", pooled["stations"])}
    rows |= {f"hospital {place}": ("people", pooled["people"].filter(codes == place)) for place in range(owners)}
    tables = {owner: OwnerTable(DECLARED[name], own) for owner, (name, own) in rows.items()}
    terms = {
        owner: QueryTerms(
            declaration=DECLARED[name],
            table="" if name == question.table else name,
            minimum=minimum,
            **{"allow": PERMISSIONS, **other},
        )
        for owner, (name, _) in rows.items()
    }
    return tables, terms


def answer_about_places(
    sql: str, pooled: dict[str, arrow.Table], owners: int = 3, minimum: int = 1, **other: Any
) -> Answer:
    question = read_question({"kind": "query", "sql": sql})
    tables, terms = owners_of_places(question, pooled, owners, minimum, **other)
    merged = merge_terms(question, terms)
    return run_plain(lambda: question.program(merged), list(tables.values()))


def pooled_places(sql: str, pooled: dict[str, arrow.Table]) -> list[tuple[Any, ...]]:
    """DuckDB's answer over all rows."""
    with duckdb.connect() as opened:
        for name, table in pooled.items():
            opened.register(name, table)
        return opened.execute(expand_spatial(sqlglot.parse_one(sql, read="duckdb")).sql("duckdb")).fetchall()


def random_place_statement(rng: np.random.Generator) -> str:
    keys = [str(each) for each in rng.choice(["s.name", "s.kind", "n.ill", "n.age > 50"], rng.integers(0, 3), False)]
    numbers = [str(each) for each in rng.choice(["COUNT(*)", "AVG(n.age)", "SUM(n.cost)", "VAR_POP(n.age)"], 2, False)]
    measure = str(rng.choice(["DISTANCE(s.x, s.y, {0}.x, {0}.y)", "KM({0}.x, {0}.y, s.x, s.y)"]))
    if rng.random() < 0.5:
        condition = str(rng.choice(["age > 20", "ill", "cost < 4000"]))
        nearest = f"ORDER BY {measure.format('p')} LIMIT {rng.integers(1, 60)}"
        from_ = f"stations s CROSS JOIN LATERAL (SELECT * FROM people p WHERE {condition} {nearest}) n"
    else:
        limit = round(float(rng.uniform(0.5, 4)) * (111 if "KM" in measure else 1), 2)
        from_ = f"stations s JOIN people n ON {measure.format('n')} <= {limit}"
    outputs = [f"{each} AS key{place}" for place, each in enumerate(keys)]
    outputs += [f"{each} AS n{place}" for place, each in enumerate(numbers)]
    group = f" GROUP BY {', '.join(str(place + 1) for place in range(len(keys)))}" if keys else ""
    return f"SELECT {', '.join(outputs)} FROM {from_}{' WHERE s.reach < 4' * int(rng.integers(0, 2))}{group}"
