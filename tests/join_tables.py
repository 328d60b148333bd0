"""Tables that can be joined within an owner, pooled and divided, and random statements that join them."""

from typing import Any

import duckdb
import numpy as np
import pyarrow as arrow

from winnow.analytics.permissions import PERMISSIONS
from winnow.analytics.program import run_plain
from winnow.analytics.question import Answer, MergedTerms, QueryTerms, merge_terms, read_question
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.analytics.tables.owner_table import OwnerTable

ORDERS = TableDeclaration.model_validate(
    {
        "columns": {
            "okey": {"level": "private", "type": "integer", "together": "order"},
            "buyer": {"level": "protected", "type": "integer", "bounds": [0, 39]},
            "priority": {"level": "public", "type": "text"},
            "total": {"level": "protected", "type": "integer", "bounds": [0, 1000]},
            "note": {"level": "protected", "type": "text"},
        }
    }
)
ITEMS = TableDeclaration.model_validate(
    {
        "columns": {
            "okey": {"level": "private", "type": "integer", "together": "order"},
            "part": {"level": "protected", "type": "integer", "bounds": [0, 19]},
            "quantity": {"level": "protected", "type": "integer", "bounds": [0, 50]},
            "price": {"level": "protected", "type": "number", "bounds": [0, 100]},
            "mode": {"level": "protected", "values": ["air", "rail", "ship"]},
            "late": {"level": "protected", "type": "boolean"},
        }
    }
)
BUYERS = TableDeclaration.model_validate(
    {
        "replicated": True,
        "columns": {
            "buyer": {"level": "public", "type": "integer"},
            "nation": {"level": "public", "type": "text"},
            "credit": {"level": "public", "type": "number", "bounds": [0, 10]},
        },
    }
)
NATIONS = TableDeclaration.model_validate(
    {
        "replicated": True,
        "columns": {"nation": {"level": "public", "type": "text"}, "region": {"level": "public", "type": "text"}},
    }
)
DECLARATIONS = {"orders": ORDERS, "items": ITEMS, "buyers": BUYERS, "nations": NATIONS}


def pooled_tables(orders: int, seed: int, missing: float = 0.03) -> dict[str, arrow.Table]:
    """Orders with 0 to 7 items each, some items without an order, and the tables that every owner has."""
    rng = np.random.default_rng(seed)
    count = 3 * orders

    def column(values: Any, part: float = missing) -> arrow.Array:
        return arrow.array(values, mask=rng.random(len(values)) < part)

    nations = [f"nation {place}" for place in range(6)]
    return {
        "orders": arrow.table(
            {
                "okey": column(np.arange(orders), missing / 3),
                "buyer": column(rng.integers(0, 40, orders)),
                "priority": column(rng.choice(["high", "low", "née"], orders)),
                "total": column(rng.integers(0, 1001, orders)),
                "note": column(rng.choice(["", "17", "ill"], orders)),
            }
        ),
        "items": arrow.table(
            {
                "okey": column(rng.integers(0, orders + 10, count) // 2 * 2, missing / 3),
                "part": column(rng.integers(0, 20, count)),
                "quantity": column(rng.integers(0, 51, count)),
                "price": column(rng.uniform(0, 100, count)),
                "mode": column(rng.choice(["air", "rail", "ship"], count)),
                "late": column(rng.random(count) < 0.4),
            }
        ),
        "buyers": arrow.table(
            {
                "buyer": arrow.array([*range(38), 3, 5, None], arrow.int64()),
                "nation": [nations[place % 5] for place in range(38)] + [nations[0], None, nations[1]],
                "credit": rng.uniform(0, 10, 41),
            }
        ),
        "nations": arrow.table({"nation": nations, "region": ["east", "west", "east", "west", "north", "south"]}),
    }


def divided_tables(pooled: dict[str, arrow.Table], tables: tuple[str, ...], owners: int, seed: int) -> list[OwnerTable]:
    """What each owner has of these tables: an order with all its items."""
    rng = np.random.default_rng(seed)
    chance = rng.dirichlet(np.full(owners, 0.8))
    owner_of = rng.choice(owners, 100_000, p=chance)

    def rows(name: str, place: int) -> arrow.Table:
        table = pooled[name]
        if DECLARATIONS[name].replicated:
            return table.take(rng.permutation(len(table)))
        keys = table.column("okey").fill_null(99_999).to_numpy()
        return table.filter(arrow.array(owner_of[keys] == place))

    found = []
    for place in range(owners):
        first, *others = ((name, OwnerTable(DECLARATIONS[name], rows(name, place))) for name in tables)
        found.append(OwnerTable(first[1].declaration, first[1].rows, dict(others)))
    return found


def join_terms(tables: tuple[str, ...], owners: int, minimum: int = 10, **other: Any) -> dict[str, QueryTerms]:
    first, *others = tables
    own = QueryTerms(
        declaration=DECLARATIONS[first],
        beside={name: DECLARATIONS[name] for name in others},
        allow=PERMISSIONS,
        minimum=minimum,
        **other,
    )
    return {f"owner {place}": own for place in range(owners)}


def merged_terms(sql: str, owners: int, minimum: int = 10) -> MergedTerms:
    question = read_question({"kind": "query", "sql": sql})
    return merge_terms(question, join_terms(question.tables, owners, minimum))


def join_answer(sql: str, pooled: dict[str, arrow.Table], owners: int, minimum: int = 10, seed: int = 0) -> Answer:
    question = read_question({"kind": "query", "sql": sql})
    terms = merge_terms(question, join_terms(question.tables, owners, minimum))
    return run_plain(lambda: question.program(terms), divided_tables(pooled, question.tables, owners, seed))


def pooled_join(sql: str, pooled: dict[str, arrow.Table]) -> list[tuple[Any, ...]]:
    """DuckDB's own answer over the rows of all owners."""
    with duckdb.connect() as opened:
        for name, table in pooled.items():
            opened.register(name, table)
        return opened.execute(sql).fetchall()


FROMS = (
    "orders o JOIN items i ON o.okey = i.okey",
    "orders o JOIN items i USING (okey)",
    "items i, orders o WHERE i.okey = o.okey",
    "orders o JOIN items i ON i.okey = o.okey AND i.quantity > 10 JOIN buyers b ON o.buyer = b.buyer",
    "buyers b, nations n, orders o, items i WHERE b.nation = n.nation AND o.buyer = b.buyer AND i.okey = o.okey",
    "orders o LEFT JOIN items i ON i.okey = o.okey AND i.late",
    "orders o LEFT JOIN buyers b ON b.buyer = o.buyer JOIN items i ON i.okey = o.okey",
    "orders o JOIN items i ON i.okey = o.okey JOIN items j ON j.okey = o.okey AND j.part <> i.part",
    "(SELECT * FROM orders WHERE total > 100) AS o JOIN (SELECT okey, quantity, price, mode, late, part FROM items) i "
    "ON o.okey = i.okey",
    "orders o CROSS JOIN nations n JOIN items i ON i.okey = o.okey",
    "(SELECT o.okey, o.total, o.priority, o.buyer, i.quantity, i.price, i.mode, i.late, i.part FROM orders o, items i "
    "WHERE o.okey = i.okey AND i.price < 80) AS x",
)
"""Every one has columns of orders and items; a few those of buyers (b) and nations (n)."""
JOIN_CONDITIONS = (
    *("total > 300", "quantity BETWEEN 5 AND 40", "mode IN ('air', 'ship')", "late", "priority <> 'low'"),
    *("price * quantity > 500", "total % 3 = 1", "price IS NOT NULL OR total < 50", "CAST(total AS DOUBLE) / 7 > 20"),
)
SUBQUERIES = (
    "EXISTS (SELECT * FROM items z WHERE z.okey = o.okey AND z.quantity > 25 AND z.price < 60)",
    "NOT EXISTS (SELECT 1 FROM items z WHERE z.okey = o.okey AND z.late)",
    "o.okey IN (SELECT okey FROM items WHERE mode = 'rail')",
    "o.buyer IN (SELECT buyer FROM buyers WHERE credit > 4)",
    "EXISTS (SELECT * FROM buyers y, nations m WHERE y.buyer = o.buyer AND y.nation = m.nation AND m.region = 'east')",
    "(EXISTS (SELECT * FROM items z WHERE z.okey = o.okey AND z.part = 3) OR o.total > 800)",
)
JOIN_KEYS = ("priority", "mode", "late", "total >= 500", "CASE WHEN quantity > 25 THEN 'many' ELSE 'few' END")
JOIN_NUMBERS = ("total", "quantity", "price", "price * quantity", "total - quantity", "CASE WHEN late THEN price END")
JOIN_AGGREGATES = ("SUM({0})", "AVG({0})", "MIN({0})", "MAX({0})", "COUNT({0})", "VAR_SAMP({0})", "VAR_POP({0})")


def random_join(rng: np.random.Generator) -> str:
    """A statement with a join, or a subquery in its condition."""
    from_ = str(rng.choice(FROMS))
    keys = list(rng.choice(JOIN_KEYS, rng.integers(0, 3), replace=False))
    keys = [key for key in keys if "LEFT JOIN" not in from_ or key != "priority" or "o.buyer" not in from_]
    if "JOIN buyers" in from_ and "LEFT" not in from_ and rng.random() < 0.7:
        keys.append("b.nation")
    if "nations n" in from_ and rng.random() < 0.7:
        keys.append("n.region")
    if "items j" in from_:  # names that both have need one
        named = {"quantity": "i.quantity", "price": "j.price", "mode": "i.mode", "late": "j.late"}
    else:
        named = {}
    conditions = list(rng.choice(JOIN_CONDITIONS, rng.integers(0, 3), replace=False))
    if " AS x" not in from_ and rng.random() < 0.5:
        conditions.append(str(rng.choice(SUBQUERIES)))
    aggregates = ["COUNT(*)"] + [
        str(rng.choice(JOIN_AGGREGATES)).format(rng.choice(JOIN_NUMBERS)) for _ in range(rng.integers(1, 4))
    ]
    if rng.random() < 0.3:
        aggregates.append(f"COUNT(*) FILTER (WHERE {rng.choice(JOIN_CONDITIONS)})")
    outputs = [f"{key} AS key{place}" for place, key in enumerate(keys)]
    outputs += [f"{each} AS n{place}" for place, each in enumerate(aggregates)]
    body = " AND ".join(f"({each})" if " OR " in each else each for each in conditions)
    where = (
        ""
        if not body
        else f" AND {body}"
        if " WHERE i.okey" in from_ or " WHERE b.nation" in from_
        else f" WHERE {body}"
    )
    group = f" GROUP BY {', '.join(str(place + 1) for place in range(len(keys)))}" if keys else ""
    head, tail = ", ".join(outputs), where + group
    for plain, qualified in named.items():
        head, tail = head.replace(plain, qualified), tail.replace(plain, qualified)
    tail = tail.replace("z.i.", "z.").replace("z.j.", "z.").replace("WHERE i.mode = 'rail'", "WHERE mode = 'rail'")
    return f"SELECT {head} FROM {from_}{tail}"
