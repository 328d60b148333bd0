"""TPC-H over several owners: orders with their items at one owner, the other tables at all.

Rows are drawn here by the benchmark's rules for values and keys (TPC-H 3.0.1, section 4.2.3): the columns that the
statements read, without comments and addresses. The statements are those of section 2.4 with its validation values.
"""

from typing import Any

import duckdb
import numpy as np
import pyarrow as arrow

from winnow.analytics.permissions import PERMISSIONS
from winnow.analytics.program import run_plain
from winnow.analytics.question import Answer, QueryTerms, merge_terms, read_question
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.analytics.tables.owner_table import OwnerTable

NATIONS = (
    *("ALGERIA 0", "ARGENTINA 1", "BRAZIL 1", "CANADA 1", "EGYPT 4", "ETHIOPIA 0", "FRANCE 3", "GERMANY 3", "INDIA 2"),
    *("INDONESIA 2", "IRAN 4", "IRAQ 4", "JAPAN 2", "JORDAN 4", "KENYA 0", "MOROCCO 0", "MOZAMBIQUE 0", "PERU 1"),
    *("CHINA 2", "ROMANIA 3", "SAUDI_ARABIA 4", "VIETNAM 2", "RUSSIA 3", "UNITED_KINGDOM 3", "UNITED_STATES 1"),
)
REGIONS = ("AFRICA", "AMERICA", "ASIA", "EUROPE", "MIDDLE EAST")
PRIORITIES = ("1-URGENT", "2-HIGH", "3-MEDIUM", "4-NOT SPECIFIED", "5-LOW")
MODES = ("REG AIR", "AIR", "RAIL", "SHIP", "TRUCK", "MAIL", "FOB")
INSTRUCTIONS = ("DELIVER IN PERSON", "COLLECT COD", "NONE", "TAKE BACK RETURN")
SIZES, FINISHES = (
    ("STANDARD", "SMALL", "MEDIUM", "LARGE", "ECONOMY", "PROMO"),
    ("ANODIZED", "BURNISHED", "PLATED", "POLISHED", "BRUSHED"),
)
METALS = ("TIN", "NICKEL", "BRASS", "STEEL", "COPPER")
BOXES, WRAPS = ("SM", "LG", "MED", "JUMBO", "WRAP"), ("CASE", "BOX", "BAG", "JAR", "PKG", "PACK", "CAN", "DRUM")
COLOURS = ("almond", "azure", "blue", "forest", "green", "ivory", "lemon", "olive", "red", "snow")
FIRST_DAY, LAST_DAY, TODAY = (np.datetime64(day, "D") for day in ("1992-01-01", "1998-08-02", "1995-06-17"))
DATE = {"level": "protected", "bounds": [8035.0, 10600.0], "type": "date"}

DECLARED = {
    "orders": {
        "o_orderkey": {"level": "private", "type": "integer", "together": "order"},
        "o_custkey": {"level": "protected", "type": "integer", "bounds": [1, 150_000]},
        "o_orderstatus": {"level": "protected", "values": ["F", "O", "P"]},
        "o_totalprice": {"level": "protected", "type": "number", "bounds": [800, 600_000]},
        "o_orderdate": DATE,
        "o_orderpriority": {"level": "protected", "values": list(PRIORITIES)},
        "o_shippriority": {"level": "protected", "type": "integer", "bounds": [0, 1]},
    },
    "lineitem": {
        "l_orderkey": {"level": "private", "type": "integer", "together": "order"},
        "l_partkey": {"level": "protected", "type": "integer", "bounds": [1, 200_000]},
        "l_suppkey": {"level": "protected", "type": "integer", "bounds": [1, 10_000]},
        "l_quantity": {"level": "protected", "type": "integer", "bounds": [1, 50]},
        "l_extendedprice": {"level": "protected", "type": "number", "bounds": [900, 105_000]},
        "l_discount": {"level": "protected", "type": "number", "bounds": [0, 0.1]},
        "l_tax": {"level": "protected", "type": "number", "bounds": [0, 0.08]},
        "l_returnflag": {"level": "protected", "values": ["A", "N", "R"]},
        "l_linestatus": {"level": "protected", "values": ["F", "O"]},
        "l_shipdate": DATE,
        "l_commitdate": DATE,
        "l_receiptdate": DATE,
        "l_shipinstruct": {"level": "protected", "values": list(INSTRUCTIONS)},
        "l_shipmode": {"level": "protected", "values": list(MODES)},
    },
    "customer": {"c_custkey": "public", "c_nationkey": "public", "c_mktsegment": "public"},
    "supplier": dict.fromkeys(("s_suppkey", "s_name", "s_nationkey", "s_comment"), "public"),
    "part": dict.fromkeys(("p_partkey", "p_name", "p_mfgr", "p_brand", "p_type", "p_size", "p_container"), "public"),
    "partsupp": {
        "ps_partkey": "public",
        "ps_suppkey": "public",
        "ps_supplycost": {"level": "public", "type": "number", "bounds": [1, 1000]},
    },
    "nation": {"n_nationkey": "public", "n_name": "public", "n_regionkey": "public"},
    "region": {"r_regionkey": "public", "r_name": "public"},
}
DIVIDED = ("orders", "lineitem")
NUMBERS = ("key", "size")


def declaration(name: str) -> TableDeclaration:
    columns: dict[str, Any] = {}
    for column, given in DECLARED[name].items():
        kind = "integer" if column.endswith(NUMBERS) else "text"
        columns[column] = {"level": given, "type": kind} if isinstance(given, str) else given
    return TableDeclaration.model_validate({"columns": columns, "replicated": name not in DIVIDED})


def tpch_tables(scale: float, seed: int = 0) -> dict[str, arrow.Table]:
    """Pooled. At scale 1 there would be 1,500,000 orders."""
    rng = np.random.default_rng(seed)
    orders, customers, parts, suppliers = (
        max(20, int(count * scale)) for count in (1_500_000, 150_000, 200_000, 10_000)
    )

    def text(*choices: tuple[str, ...], count: int) -> list[str]:
        drawn = [rng.choice(each, count) for each in choices]
        return [" ".join(words) for words in zip(*drawn, strict=True)]

    part = np.arange(1, parts + 1)
    retail = (90_000 + (part // 10) % 20_001 + 100 * (part % 1000)) / 100
    offers = [
        (number, (number + place * (suppliers // 4 + (number - 1) // suppliers)) % suppliers + 1)
        for number in part
        for place in range(4)
    ]
    ps_part, ps_supplier = np.array(offers).T
    buyers = rng.integers(1, customers + 1, orders)
    buyers = np.where(buyers % 3 == 0, np.maximum(1, buyers - 1), buyers)  # a third of the customers order nothing
    ordered = FIRST_DAY + rng.integers(0, (LAST_DAY - FIRST_DAY).astype(int) + 1, orders)
    keys = (np.arange(orders) // 8) * 32 + np.arange(orders) % 8 + 1
    items = np.repeat(np.arange(orders), rng.integers(1, 8, orders))
    count = len(items)
    l_part, quantity = rng.integers(1, parts + 1, count), rng.integers(1, 51, count)
    offer = 4 * (l_part - 1) + rng.integers(0, 4, count)
    shipped = ordered[items] + rng.integers(1, 122, count)
    received = shipped + rng.integers(1, 31, count)
    returned = np.where(received <= TODAY, rng.choice(["R", "A"], count), "N")
    discount, tax = rng.integers(0, 11, count) / 100, rng.integers(0, 9, count) / 100
    prices = np.round(quantity * retail[l_part - 1], 2)
    late, all_items = np.bincount(items, shipped > TODAY, orders), np.bincount(items, minlength=orders)
    status = np.where(late == 0, "F", np.where(late == all_items, "O", "P"))
    names, regions = zip(*(each.rsplit(" ", 1) for each in NATIONS), strict=True)
    return {
        "orders": arrow.table(
            {
                "o_orderkey": keys,
                "o_custkey": buyers,
                "o_orderstatus": status,
                "o_totalprice": np.bincount(items, prices * (1 - discount) * (1 + tax), orders),
                "o_orderdate": arrow.array(ordered.astype("datetime64[us]")),
                "o_orderpriority": rng.choice(PRIORITIES, orders),
                "o_shippriority": np.zeros(orders, np.int64),
            }
        ),
        "lineitem": arrow.table(
            {
                "l_orderkey": keys[items],
                "l_partkey": l_part,
                "l_suppkey": ps_supplier[offer],
                "l_quantity": quantity,
                "l_extendedprice": prices,
                "l_discount": discount,
                "l_tax": tax,
                "l_returnflag": returned,
                "l_linestatus": np.where(shipped > TODAY, "O", "F"),
                "l_shipdate": arrow.array(shipped.astype("datetime64[us]")),
                "l_commitdate": arrow.array((ordered[items] + rng.integers(30, 91, count)).astype("datetime64[us]")),
                "l_receiptdate": arrow.array(received.astype("datetime64[us]")),
                "l_shipinstruct": rng.choice(INSTRUCTIONS, count),
                "l_shipmode": rng.choice(MODES, count),
            }
        ),
        "customer": arrow.table(
            {
                "c_custkey": np.arange(1, customers + 1),
                "c_nationkey": rng.integers(0, 25, customers),
                "c_mktsegment": rng.choice(
                    ["AUTOMOBILE", "BUILDING", "FURNITURE", "MACHINERY", "HOUSEHOLD"], customers
                ),
            }
        ),
        "supplier": arrow.table(
            {
                "s_suppkey": np.arange(1, suppliers + 1),
                "s_name": [f"Supplier#{number:09}" for number in range(1, suppliers + 1)],
                "s_nationkey": rng.integers(0, 25, suppliers),
                "s_comment": text(COLOURS, ("Customer", "final"), ("Complaints", "deposits"), count=suppliers),
            }
        ),
        "part": arrow.table(
            {
                "p_partkey": part,
                "p_name": text(COLOURS, COLOURS, COLOURS, count=parts),
                "p_mfgr": [f"Manufacturer#{one}" for one in rng.integers(1, 6, parts)],
                "p_brand": [f"Brand#{one}{two}" for one, two in rng.integers(1, 6, (parts, 2))],
                "p_type": text(SIZES, FINISHES, METALS, count=parts),
                "p_size": rng.integers(1, 51, parts),
                "p_container": text(BOXES, WRAPS, count=parts),
            }
        ),
        "partsupp": arrow.table(
            {
                "ps_partkey": ps_part,
                "ps_suppkey": ps_supplier,
                "ps_supplycost": rng.integers(100, 100_001, len(ps_part)) / 100,
            }
        ),
        "nation": arrow.table(
            {
                "n_nationkey": np.arange(25),
                "n_name": [each.replace("_", " ") for each in names],
                "n_regionkey": [*map(int, regions)],
            }
        ),
        "region": arrow.table({"r_regionkey": np.arange(5), "r_name": REGIONS}),
    }


def tpch_owners(
    pooled: dict[str, arrow.Table], tables: tuple[str, ...], owners: int, seed: int = 0
) -> list[OwnerTable]:
    """An order with all its items is at one of them."""
    place_of = np.random.default_rng(seed).integers(0, owners, 1 << 23)

    def own(name: str, place: int) -> OwnerTable:
        rows = pooled[name]
        if name in DIVIDED:
            keys = rows.column("o_orderkey" if name == "orders" else "l_orderkey").to_numpy()
            rows = rows.filter(arrow.array(place_of[keys] == place))
        return OwnerTable(declaration(name), rows)

    found = []
    for place in range(owners):
        first, *others = ((name, own(name, place)) for name in tables)
        found.append(OwnerTable(first[1].declaration, first[1].rows, dict(others)))
    return found


def tpch_answer(sql: str, pooled: dict[str, arrow.Table], owners: int = 3, minimum: int = 1) -> Answer:
    question = read_question({"kind": "query", "sql": sql})
    first, *others = question.tables
    beside = {name: declaration(name) for name in others}
    terms = QueryTerms(declaration=declaration(first), beside=beside, allow=PERMISSIONS, minimum=minimum)
    merged = merge_terms(question, {f"owner {place}": terms for place in range(owners)})
    return run_plain(lambda: question.program(merged), tpch_owners(pooled, question.tables, owners))


def tpch_pooled(sql: str, pooled: dict[str, arrow.Table]) -> list[tuple[Any, ...]]:
    """DuckDB's own answer."""
    with duckdb.connect() as opened:
        for name, table in pooled.items():
            opened.register(name, table)
        return opened.execute(sql).fetchall()
