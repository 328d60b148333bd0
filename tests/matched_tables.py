"""Two tables that two owners have, pooled and apart, and random statements that join them on a key."""

from typing import Any

import duckdb
import numpy as np
import pyarrow as arrow

from winnow.analytics.permissions import PERMISSIONS
from winnow.analytics.program import run_plain
from winnow.analytics.question import Answer, QueryTerms, Question, merge_terms, read_question
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.analytics.tables.owner_table import OwnerTable

PATIENTS = TableDeclaration.model_validate(
    {
        "columns": {
            "pid": {"level": "private", "type": "integer", "key": True},
            "age": {"level": "protected", "type": "integer", "bounds": [0, 110]},
            "dose": {"level": "protected", "type": "number", "bounds": [-5, 20]},
            "ward": {"level": "public", "type": "text"},
            "outcome": {"level": "protected", "values": ["home", "moved", "died"]},
            "secret": {"level": "private", "type": "text"},
        }
    }
)
CLAIMS = TableDeclaration.model_validate(
    {
        "columns": {
            "person": {"level": "private", "type": "integer", "key": True},
            "cost": {"level": "protected", "type": "integer", "bounds": [0, 5000]},
            "rate": {"level": "protected", "type": "number", "bounds": [0, 1]},
            "kind": {"level": "protected", "values": ["drug", "stay"]},
            "region": {"level": "public", "type": "text"},
            "paid": {"level": "protected", "type": "boolean"},
        }
    }
)
REGIONS = TableDeclaration.model_validate(
    {"replicated": True, "columns": {"region": {"level": "public", "type": "text"}, "coast": "public"}}
)
DECLARED = {"patients": PATIENTS, "claims": CLAIMS, "regions": REGIONS}
HOLDERS = {"patients": "hospital", "claims": "insurer"}


def pooled_rows(people: int, seed: int, missing: float = 0.03) -> dict[str, arrow.Table]:
    """Most patients have 0 to 5 claims; some rows have no key, and some patients two rows."""
    rng = np.random.default_rng(seed)

    def column(values: Any) -> arrow.Array:
        return arrow.array(values, mask=rng.random(len(values)) < missing)

    count, claims = people + people // 10, 2 * people
    return {
        "patients": arrow.table(
            {
                "pid": column(np.concatenate([np.arange(people), rng.integers(0, people, people // 10)]) * 3),
                "age": column(rng.integers(0, 111, count)),
                "dose": column(rng.uniform(-5, 20, count)),
                "ward": column(rng.choice(["north", "south", "üst"], count)),
                "outcome": column(rng.choice(["home", "moved", "died"], count, p=[0.7, 0.25, 0.05])),
                "secret": column(rng.choice(["x", "y"], count)),
            }
        ),
        "claims": arrow.table(
            {
                "person": column(rng.integers(0, people * 5, claims) // 2 * 2),
                "cost": column(rng.integers(0, 5001, claims)),
                "rate": column(rng.uniform(0, 1, claims)),
                "kind": column(rng.choice(["drug", "stay"], claims)),
                "region": column(rng.choice(["east", "west"], claims)),
                "paid": column(rng.random(claims) < 0.6),
            }
        ),
        "regions": arrow.table({"region": ["east", "west"], "coast": ["yes", "no"]}),
    }


def owners_of(question: Question, pooled: dict[str, arrow.Table], minimum: int, **other: Any) -> Any:
    """What the two owners have, and their terms."""
    tables, terms = {}, {}
    names = list(dict.fromkeys(HOLDERS[name] for name in question.tables if name in HOLDERS))
    for owner in names:
        held = [name for name in question.tables if HOLDERS.get(name, owner) == owner]
        first, *others = held
        beside = {name: OwnerTable(DECLARED[name], pooled[name]) for name in others}
        tables[owner] = OwnerTable(DECLARED[first], pooled[first], beside)
        terms[owner] = QueryTerms(
            declaration=DECLARED[first],
            table="" if first == question.table else first,
            beside={name: DECLARED[name] for name in others},
            replicated=dict.fromkeys((name for name in held if name not in HOLDERS), "same"),
            minimum=minimum,
            **{"allow": PERMISSIONS, **other},
        )
    return tables, terms


def matched_answer(sql: str, pooled: dict[str, arrow.Table], minimum: int = 10, **other: Any) -> Answer:
    question = read_question({"kind": "query", "sql": sql})
    tables, terms = owners_of(question, pooled, minimum, **other)
    merged = merge_terms(question, terms)
    return run_plain(lambda: question.program(merged), list(tables.values()))


def pooled_join(sql: str, pooled: dict[str, arrow.Table]) -> list[tuple[Any, ...]]:
    with duckdb.connect() as opened:
        for name, table in pooled.items():
            opened.register(name, table)
        return opened.execute(sql).fetchall()


FROMS = (
    "patients p JOIN claims c ON p.pid = c.person",
    "claims c JOIN patients p ON c.person = p.pid AND c.cost > 300",
    "patients p, claims c WHERE p.pid = c.person AND p.age > 20",
    "(SELECT * FROM patients WHERE age < 90) p JOIN claims c ON p.pid = c.person",
    "patients p JOIN (SELECT person, cost, rate, kind, paid FROM claims z JOIN regions r ON z.region = r.region "
    "WHERE coast = 'yes') c ON c.person = p.pid",
)
CONDITIONS = ("age >= 40", "dose * 2 < 15", "cost BETWEEN 100 AND 4000", "paid", "kind = 'drug'", "outcome <> 'died'")
KEYS = (
    "ward",
    "outcome",
    "kind",
    "c.region",
    "paid",
    "age >= 65",
    "CASE WHEN cost > 2500 THEN 'dear' ELSE 'cheap' END",
)
LEFT, RIGHT = ("age", "dose", "age + dose", "CASE WHEN outcome = 'home' THEN age END"), ("cost", "rate", "cost * rate")
AGGREGATES = ("SUM({0})", "AVG({0})", "COUNT({0})", "VAR_SAMP({0})", "STDDEV_POP({0})", "MIN({0})", "MAX({0})")


def random_matched_join(rng: np.random.Generator) -> str:
    from_ = str(rng.choice(FROMS))
    keys = [str(each) for each in rng.choice(KEYS, rng.integers(0, 3), replace=False)]
    keys = [key for key in keys if key != "c.region" or "regions" not in from_]
    conditions = [str(each) for each in rng.choice(CONDITIONS, rng.integers(0, 3), replace=False)]
    numbers = (*LEFT, *RIGHT)
    aggregates = ["COUNT(*)"]
    for _ in range(rng.integers(1, 4)):
        aggregates.append(str(rng.choice(AGGREGATES)).format(rng.choice(numbers)))
    if rng.random() < 0.4:
        aggregates.append(f"CORR({rng.choice(LEFT)}, {rng.choice(RIGHT)})")
    if rng.random() < 0.4:
        one, other = rng.choice(CONDITIONS, 2, replace=False)
        aggregates.append(f"SUM({rng.choice(numbers)}) FILTER (WHERE {one} AND {other})")
    outputs = [f"{key} AS key{place}" for place, key in enumerate(keys)]
    outputs += [f"{each} AS n{place}" for place, each in enumerate(aggregates)]
    body = " AND ".join(conditions)
    where = "" if not body else f" AND {body}" if " WHERE p.pid" in from_ else f" WHERE {body}"
    group = f" GROUP BY {', '.join(str(place + 1) for place in range(len(keys)))}" if keys else ""
    return f"SELECT {', '.join(outputs)} FROM {from_}{where}{group}"
