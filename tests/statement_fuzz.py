"""Statements that nobody would write, and whether each is answered or refused in one line.

`python tests/statement_fuzz.py 0 5000` tries a range of them, and ends with how many were answered and how many failed.
"""

import json
import re

import numpy as np

from fuzz_command import fuzz_command
from join_tables import divided_tables, join_terms, pooled_tables, random_join
from matched_tables import owners_of, random_matched_join
from matched_tables import pooled_rows as joined_rows
from near_tables import near_owners, near_rows, random_near_statement
from place_tables import owners_of_places, place_rows, random_place_statement
from query_tables import (
    AGGREGATES,
    CONDITIONS,
    KEYS,
    NUMBERS,
    divided,
    pooled_rows,
    random_statement,
    spatial,
    terms_of,
)
from winnow.analytics.program import run_plain
from winnow.analytics.question import QueryTerms, Question, merge_terms, read_question
from winnow.analytics.sealed_answer import opened_answer, with_reader
from winnow.analytics.sql.query_answer import QueryAnswer
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.core import WinnowError

JOINED, PLACES, NEAR = joined_rows(40, seed=1), place_rows(60, 3, seed=1), near_rows(30, seed=1)
WITHIN = pooled_tables(40, seed=1)
NAMES = ({"patients", "claims"}, {"stations", "people"}, {"crimes", "lamps"}, {*WITHIN})
TABLES = divided(pooled_rows(80, seed=1), 2, seed=1)
TERMS = terms_of(2, minimum=3, rows=5)
COLUMNS = ("ward", "age", "cost", "outcome", "patient", "day", "well", "x", "y", "note", "nothing", '"age"', "s.age")
LITERALS = (
    *(
        "0",
        "1",
        "-1",
        "7.5",
        "1e308",
        "1e999",
        "'home'",
        "''",
        "'%'",
        "NULL",
        "TRUE",
        "DATE '2020-02-30'",
        "'2020-01-01'",
    ),
    *("DATE '2020-01-01'", "INTERVAL 3 MONTH", "INTERVAL '1' DAY", "9" * 40, "'é\\n'", "0x10", "[1, 2]", "{'a': 1}"),
)
FUNCTIONS = (
    *(
        "ABS",
        "FLOOR",
        "SQRT",
        "LN",
        "EXP",
        "ROUND",
        "LOWER",
        "LENGTH",
        "YEAR",
        "COALESCE",
        "NULLIF",
        "GREATEST",
        "SIGN",
    ),
    *("SUM", "AVG", "COUNT", "MIN", "MAX", "MEDIAN", "STDDEV", "VAR_POP", "CORR", "QUANTILE_CONT", "HISTOGRAM", "KM"),
    *("DISTANCE", "DWITHIN", "POW", "SUBSTRING", "CONCAT", "RANDOM", "READ_CSV", "ROW_NUMBER", "LIST", "DATE_TRUNC"),
)
OPERATORS = (
    "+",
    "-",
    "*",
    "/",
    "//",
    "%",
    "=",
    "<>",
    "<",
    ">=",
    "AND",
    "OR",
    "LIKE",
    "||",
    "IS NOT DISTINCT FROM",
    "**",
)
TYPES = ("INTEGER", "DOUBLE", "TEXT", "DATE", "BOOLEAN", "DECIMAL(4, 2)", "BLOB", "INTEGER[]", "TIMESTAMP", "UUID")
WORDS = (
    *("OVER ()", "'", '"', "(", ")", "NULL", "stays", ";", "--", "/*", "*", "1e999", "DISTINCT", "JOIN", "[1]", "$1"),
    *("\0", "é", "GROUP BY ALL", "LIMIT 3", "WITH", "AS", "FROM", "SELECT", "CASE", "END", "UNION ALL", "EXISTS", ","),
)


def expression(rng: np.random.Generator, depth: int) -> str:
    """Of columns, literals and functions, whatever fits or not."""
    how = rng.integers(0, 9) if depth else rng.integers(0, 2)
    inner = [expression(rng, depth - 1) for _ in range(4)] if depth else []
    if how == 0:
        return str(rng.choice(COLUMNS))
    if how == 1:
        return str(rng.choice(LITERALS))
    if how == 2:
        return f"({inner[0]} {rng.choice(OPERATORS)} {inner[1]})"
    if how == 3:
        return f"{rng.choice(FUNCTIONS)}({', '.join(inner[: rng.integers(0, 4)])})"
    if how == 4:
        return f"CASE WHEN {inner[0]} THEN {inner[1]} ELSE {inner[2]} END"
    if how == 5:
        return f"CAST({inner[0]} AS {rng.choice(TYPES)})"
    if how == 6:
        return f"{inner[0]} {rng.choice(['NOT ', ''])}IN ({inner[1]}, {inner[2]})"
    if how == 7:
        return f"{inner[0]} {rng.choice(['IS NULL', 'BETWEEN 1 AND 2', 'IS NOT NULL', 'BETWEEN NULL AND age'])}"
    return str(rng.choice([*KEYS, *NUMBERS, *CONDITIONS, spatial(rng)]))


def aggregate(rng: np.random.Generator) -> str:
    how = rng.integers(0, 6)
    inner = expression(rng, int(rng.integers(0, 3)))
    if how == 0:
        return expression(rng, 2)
    if how == 1:
        return f"COUNT(DISTINCT {rng.choice(['patient', inner])})"
    if how == 2:
        return f"HISTOGRAM({rng.choice(['age', 'cost', inner])}, [10, {rng.choice(['20', '5', 'x', '20.5, 40'])}])"
    if how == 3:
        return f"COUNT(*) FILTER (WHERE {inner})"
    return str(rng.choice(AGGREGATES)).format(inner)


def source(rng: np.random.Generator, depth: int) -> str:
    how = rng.integers(0, 7) if depth else 0
    if how <= 2:
        return "stays"
    if how == 3:
        method = rng.choice(["BERNOULLI", "STRATIFIED", "SYSTEM", "X"])
        return f"stays TABLESAMPLE {method}({rng.integers(0, 120)} PERCENT)"
    inner = source(rng, depth - 1)
    where = f" WHERE {expression(rng, 1)}" if rng.random() < 0.5 else ""
    if how == 4:
        return f"(SELECT * FROM {inner}{where} ORDER BY {rng.choice(['age', 'cost', spatial(rng)])} LIMIT 20) AS s"
    if how == 5:
        return f"(SELECT age, {expression(rng, 1)} AS x, ward FROM {inner}{where}) AS s"
    return f"{inner} {rng.choice(['JOIN', 'LEFT JOIN', 'CROSS JOIN', ','])} stays AS t"


def generated(rng: np.random.Generator) -> str:
    """By a grammar that is wider than the one that is answered."""
    keys = [str(rng.choice(KEYS)) if rng.random() < 0.7 else expression(rng, 1) for _ in range(rng.integers(0, 3))]
    outputs = [*keys, *(aggregate(rng) for _ in range(rng.integers(0 if keys else 1, 3)))]
    if rng.random() < 0.15:
        keys, outputs = [], [str(rng.choice(["age", "ward, cost", "*", "patient", "x + 1 AS z"]))]
    sql = f"SELECT {', '.join(outputs)} FROM {source(rng, 2)}"
    if rng.random() < 0.5:
        sql += f" WHERE {expression(rng, 2)}"
    if keys:
        sql += f" GROUP BY {', '.join(keys)}"
    if rng.random() < 0.2:
        sql += f" HAVING {expression(rng, 1)}"
    if rng.random() < 0.2:
        sql += f" ORDER BY {expression(rng, 1)}"
    return sql + (f" LIMIT {rng.integers(0, 9)}" if rng.random() < 0.3 else "")


def mutated(sql: str, rng: np.random.Generator) -> str:
    """With words left out, doubled, swapped or replaced by others."""
    words = re.findall(r"\w+|\s+|[^\w\s]", sql)
    for _ in range(rng.integers(1, 5)):
        place = int(rng.integers(0, len(words)))
        other = str(rng.choice(WORDS)) if rng.random() < 0.7 else words[-place - 1]
        words[place : place + int(rng.integers(0, 3))] = [other]
    return "".join(words)


def statement(seed: int) -> str:
    rng = np.random.default_rng([7, seed])
    if seed % 5 == 4:
        sql = (random_matched_join, random_place_statement, random_near_statement, random_join)[seed // 5 % 4](rng)
    else:
        sql = random_statement(rng) if seed % 2 else generated(rng)
    return sql if seed % 4 == 0 else mutated(sql, rng)


def asked_of(question: Question, seed: int) -> tuple[list[OwnerTable], dict[str, QueryTerms]] | None:
    """The owners of the tables that a statement names; None if nobody has one of them."""
    if question.tables == ("stays",) or seed % 5 != 4:
        return TABLES, TERMS
    kind = seed // 5 % 4
    if not question.tables or not {*question.tables} <= NAMES[kind]:
        return None
    if kind == 0:
        tables, terms = owners_of(question, JOINED, 3)
    elif kind == 1:
        tables, terms = owners_of_places(question, PLACES, 2, 3)
    elif kind == 2:
        tables, terms = near_owners(NEAR, question.table, 3)
    else:
        return divided_tables(WITHIN, question.tables, 2, seed=1), join_terms(question.tables, 2, minimum=3)
    return list(tables.values()), terms


def answered(seed: int) -> bool:
    """Whether there is an answer; anything but that or one line fails."""
    sql = statement(seed)
    try:
        named = {} if seed % 5 == 4 else {"table": "stays"}
        asked = {"kind": "query", "sql": sql, **named, **({"epsilon": 1.0} if seed % 10 == 9 else {})}
        question, reader = with_reader(read_question(asked))
        owners = asked_of(question, seed)
        if owners is None:
            return False
        terms = merge_terms(question, owners[1])
        told = opened_answer(run_plain(lambda: question.program(terms), owners[0]), reader)
        json.dumps(told, allow_nan=False)
        assert QueryAnswer(told).table.num_rows == len(told["rows"])
    except WinnowError as error:
        if "\n" in str(error) or not str(error):
            raise
        return False
    except Exception as error:
        error.add_note(f"statement {seed}: {sql}")
        raise
    return True


if __name__ == "__main__":
    fuzz_command(answered, "statements", "answered")
