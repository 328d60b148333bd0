"""Random statements over real tables (Adult, MovieLens, taxi trips in New York) and TPC-H, pooled and divided.

Every number of a statement comes with how far it may be from DuckDB's: counts, sums, minima and maxima of whole numbers
not at all; means, deviations and correlations 10⁻⁶ of the range; what is searched for a step of the search.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as arrow

from tpch_tables import DECLARED, declaration, tpch_tables
from winnow.analytics.permissions import PERMISSIONS
from winnow.analytics.question import MergedTerms, QueryTerms, Question, merge_terms
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.analytics.tables.owner_table import OwnerTable

SEARCH_STEPS = 1 << 17


@dataclass(frozen=True, kw_only=True)
class Number:
    sql: str
    range: float
    whole: bool = True


@dataclass(frozen=True, kw_only=True)
class Subject:
    """Tables, and what statements about them are made of."""

    pooled: Mapping[str, arrow.Table]
    declared: Mapping[str, TableDeclaration]
    froms: tuple[str, ...]
    """With {0} where a condition may stand."""
    keys: tuple[str, ...]
    numbers: tuple[Number, ...]
    conditions: tuple[str, ...]
    joined: bool = False

    def divided(self, owners: int, seed: int) -> list[dict[str, OwnerTable]]:
        """By chance and unevenly; rows that lie together go to one owner, replicated ones to all."""
        rng = np.random.default_rng(seed)
        chance = rng.dirichlet(np.full(owners, 0.8))
        owner_of_key = rng.choice(owners, 1 << 17, p=chance)
        found = [dict[str, OwnerTable]() for _ in range(owners)]
        for name, table in self.pooled.items():
            own = self.declared[name]
            together = next((column for column, each in own.columns.items() if each.together), None)
            if together is not None:
                places = owner_of_key[table.column(together).to_numpy() % (1 << 17)]
            else:
                places = rng.choice(owners, len(table), p=chance)
            for place in range(owners):
                rows = table if own.replicated else table.filter(arrow.array(places == place))
                found[place][name] = OwnerTable(own, rows)
        return found

    def statement(self, rng: np.random.Generator) -> "RandomStatement":
        keys = [str(key) for key in rng.choice(self.keys, rng.integers(0, 3), replace=False)]
        aggregates = [self._aggregate(rng) for _ in range(rng.integers(1, 5))]
        condition = str(rng.choice(self.conditions))
        from_ = str(rng.choice(self.froms)).format(condition)
        outputs = [f"{key} AS key{place}" for place, key in enumerate(keys)]
        outputs += [f"{sql} AS n{place}" for place, (sql, _) in enumerate(aggregates)]
        chosen = [str(each) for each in rng.choice(self.conditions, rng.integers(0, 4), replace=False)]
        body = str(rng.choice([" AND ", " OR "])).join(chosen)
        sql = f"SELECT {', '.join(outputs)} FROM {from_}"
        if body:
            sql += f" AND ({body})" if " WHERE " in from_.rpartition(")")[2] else f" WHERE {body}"
        if keys:
            sql += f" GROUP BY {', '.join(str(place + 1) for place in range(len(keys)))}"
            if rng.random() < 0.3:
                sql += f" HAVING COUNT(*) > {rng.integers(1, 60)}"
            if rng.random() < 0.4:
                order = ", ".join(f"{place + 1} NULLS LAST" for place in range(len(keys)))
                sql += f" ORDER BY {order} LIMIT {rng.integers(1, 9)}"
        return RandomStatement(sql=sql, keys=len(keys), tolerances=tuple(each for _, each in aggregates))

    def _aggregate(self, rng: np.random.Generator) -> tuple[str, float]:
        number = self.numbers[rng.integers(len(self.numbers))]
        other = self.numbers[rng.integers(len(self.numbers))]
        step = number.range / SEARCH_STEPS
        exact = 0.0 if number.whole else 1e-6 * number.range
        choices = [
            ("COUNT(*)", 0.0),
            (f"COUNT({number.sql})", 0.0),
            (f"COUNT(*) FILTER (WHERE {rng.choice(self.conditions)})", 0.0),
            (f"SUM({number.sql})", exact),
            (f"SUM({number.sql}) FILTER (WHERE {rng.choice(self.conditions)})", exact),
            (f"AVG({number.sql})", 1e-6 * number.range),
            (f"SUM({number.sql}) / COUNT(*)", 1e-6 * number.range),
            (f"VAR_SAMP({number.sql})", 1e-6 * number.range**2),
            (f"STDDEV_POP({number.sql})", 1e-6 * number.range),
            (f"CORR({number.sql}, {other.sql})", 2e-6),
            (f"MIN({number.sql})", 0.0 if number.whole else step),
            (f"MAX({number.sql})", 0.0 if number.whole else step),
        ]
        if not self.joined:
            choices += [(f"MEDIAN({number.sql})", step), (f"QUANTILE_DISC({number.sql}, 0.8)", step)]
        return choices[rng.integers(len(choices))]


@dataclass(frozen=True, kw_only=True)
class RandomStatement:
    sql: str
    keys: int
    tolerances: tuple[float, ...]

    def differences(self, told: Sequence[Sequence[Any]], expected: Sequence[Sequence[Any]]) -> list[Any]:
        """What is not as it should be."""
        if len(told) != len(expected):
            return [(len(told), len(expected))]
        found = []
        for own, row in zip(_sorted(told, self.keys), _sorted(expected, self.keys), strict=True):
            allowed = (*[0.0] * self.keys, *self.tolerances)
            found += [(own, row) for one, two, most in zip(own, row, allowed, strict=True) if not _near(one, two, most)]
        return found


def _sorted(rows: Sequence[Sequence[Any]], keys: int) -> list[Sequence[Any]]:
    return sorted(rows, key=lambda row: [(each is None, str(each)) for each in row[:keys]])


def _near(one: Any, other: Any, most: float) -> bool:
    if one is None or other is None or isinstance(other, str | bool):
        return bool(one == other)
    return bool(abs(one - other) <= most + 1e-9 * abs(other) * (most > 0))


def asked_terms(question: Question, tables: Sequence[Mapping[str, OwnerTable]], minimum: int = 1) -> MergedTerms:
    first, *others = question.tables
    own = QueryTerms(
        declaration=tables[0][first].declaration,
        beside={name: tables[0][name].declaration for name in others},
        allow=PERMISSIONS,
        minimum=minimum,
    )
    return merge_terms(question, {f"owner {place}": own for place in range(len(tables))})


def asked_tables(question: Question, tables: Sequence[Mapping[str, OwnerTable]]) -> list[OwnerTable]:
    first, *others = question.tables
    return [
        OwnerTable(each[first].declaration, each[first].rows, {name: each[name] for name in others}) for each in tables
    ]


def _table(columns: Mapping[str, Any], **other: Any) -> TableDeclaration:
    return TableDeclaration.model_validate({"columns": dict(columns), **other})


def _integer(low: float, high: float) -> dict[str, Any]:
    return {"level": "protected", "type": "integer", "bounds": [low, high]}


PUBLIC_TEXT = {"level": "public", "type": "text"}


def adult(folder: Path, rows: int) -> Subject:
    names = {0: "age", 1: "work", 4: "years", 9: "sex", 10: "gain", 12: "hours", 13: "country", 14: "income"}
    read = pd.read_csv(folder / "tabular" / "adult.data.gz", header=None, skipinitialspace=True, na_values="?")
    people = read[list(names)].rename(columns=names).sample(rows, random_state=0)
    return Subject(
        pooled={"people": arrow.Table.from_pandas(people, preserve_index=False)},
        declared={
            "people": _table(
                {
                    "age": _integer(17, 90),
                    "work": PUBLIC_TEXT,
                    "years": _integer(1, 16),
                    "sex": {"level": "protected", "values": ["Female", "Male"]},
                    "gain": _integer(0, 99_999),
                    "hours": _integer(1, 99),
                    "country": PUBLIC_TEXT,
                    "income": {"level": "protected", "values": ["<=50K", ">50K"]},
                }
            )
        },
        froms=(
            "people",
            "people",
            "(SELECT * FROM people WHERE {0}) AS p",
            "(SELECT * FROM (SELECT * FROM people WHERE age < 40 OR {0}) AS q) AS p",
        ),
        keys=("work", "sex", "income", "age >= 40", "country", "CASE WHEN hours > 40 THEN 'long' ELSE 'short' END"),
        numbers=(
            Number(sql="age", range=73),
            Number(sql="gain", range=99_999),
            Number(sql="hours * years", range=1583),
            Number(sql="gain / years", range=99_999, whole=False),
            Number(sql="CASE WHEN sex = 'Male' THEN hours END", range=98),
        ),
        conditions=(
            *("age BETWEEN 25 AND 50", "income = '>50K'", "work LIKE '%gov%'", "gain > 0", "hours <> 40"),
            *("country = 'Mexico' OR age > 60", "sex IS NOT NULL", "years IN (9, 10, 13)", "work IS NULL"),
        ),
    )


def taxi(folder: Path, rows: int) -> Subject:
    trips = pd.read_csv(folder / "spatial" / "nyc_taxi_10k.csv").sample(rows, random_state=0)
    names = {"pickup_longitude": "lon", "pickup_latitude": "lat", "trip_distance": "distance", "pickup_NTACode": "area"}
    trips = trips.rename(columns=names)[["duration", "hour", "weekday", "lon", "lat", "distance", "area"]]
    for column in ("duration", "hour", "weekday"):
        trips[column] = trips[column].round().astype("Int64")
    near = "KM(lon, lat, -73.98, 40.75)"
    return Subject(
        pooled={"trips": arrow.Table.from_pandas(trips, preserve_index=False)},
        declared={
            "trips": _table(
                {
                    "duration": _integer(0, 90_000),
                    "hour": _integer(0, 23),
                    "weekday": _integer(0, 7),
                    "lon": {"level": "protected", "type": "number", "bounds": [-75, -73]},
                    "lat": {"level": "protected", "type": "number", "bounds": [40, 42]},
                    "distance": {"level": "protected", "type": "number", "bounds": [0, 100]},
                    "area": PUBLIC_TEXT,
                }
            )
        },
        froms=("trips", "trips", "(SELECT * FROM trips WHERE {0}) t"),
        keys=("area", "hour < 12", "weekday >= 6", f"{near} < 5"),
        numbers=(
            Number(sql="duration", range=90_000),
            Number(sql="distance", range=100, whole=False),
            Number(sql="distance * distance", range=10_000, whole=False),
            Number(sql="hour + weekday", range=30),
        ),
        conditions=(
            *("DWITHIN(lon, lat, -73.98, 40.75, 0.03)", f"{near} < 3", "hour BETWEEN 7 AND 9", "distance > 2.5"),
            *("duration % 60 = 0", "weekday IN (1, 5)", "area LIKE 'MN%'", "lon + lat > -33.2"),
        ),
    )


def movielens(folder: Path, rows: int) -> Subject:
    """Who rates, and what; a person's ratings lie with the person."""

    def read(name: str) -> pd.DataFrame:
        table = pd.read_csv(folder / "movielens" / f"ml-100k.{name}.gz", sep="\t")
        return table.rename(columns=lambda column: str(column).split(":")[0])

    ratings, people, films = read("inter").sample(rows, random_state=0), read("user"), read("item")
    ratings["rated"] = pd.to_datetime(ratings["timestamp"], unit="s").astype("datetime64[us]")
    films["year"] = pd.to_numeric(films["release_year"], errors="coerce").astype("Int64")
    person = {"level": "private", "type": "integer", "together": "person"}
    return Subject(
        pooled={
            "ratings": arrow.Table.from_pandas(
                ratings[["user_id", "item_id", "rating", "rated"]], preserve_index=False
            ),
            "people": arrow.Table.from_pandas(people[["user_id", "age", "gender", "occupation"]], preserve_index=False),
            "films": arrow.Table.from_pandas(films[["item_id", "year"]], preserve_index=False),
        },
        declared={
            "ratings": _table(
                {
                    "user_id": person,
                    "item_id": _integer(1, 2000),
                    "rating": _integer(1, 5),
                    "rated": {"level": "protected", "type": "date", "bounds": [10_000, 10_500]},
                }
            ),
            "people": _table(
                {
                    "user_id": person,
                    "age": _integer(7, 73),
                    "gender": {"level": "protected", "values": ["F", "M"]},
                    "occupation": PUBLIC_TEXT,
                }
            ),
            "films": _table(
                {"item_id": {"level": "public", "type": "integer"}, "year": {"level": "public", "type": "integer"}},
                replicated=True,
            ),
        },
        froms=(
            "ratings r JOIN people p ON r.user_id = p.user_id",
            "people p JOIN ratings r USING (user_id)",
            "ratings r, people p, films f WHERE r.user_id = p.user_id AND r.item_id = f.item_id AND f.year > 1990",
            "(SELECT * FROM ratings WHERE rating > 1) r JOIN people p ON p.user_id = r.user_id",
            "ratings r JOIN people p ON r.user_id = p.user_id AND p.age > 20",
        ),
        keys=("gender", "occupation", "rating >= 4", "age > 30", "MONTH(rated)"),
        numbers=(
            Number(sql="rating", range=4),
            Number(sql="age", range=66),
            Number(sql="age * rating", range=365),
            Number(sql="age / 7 + rating", range=15, whole=False),
        ),
        conditions=(
            *("age BETWEEN 20 AND 40", "gender = 'F'", "rating IN (1, 5)", "occupation LIKE '%er'"),
            *("rated >= DATE '1998-01-01'", "rated < DATE '1997-12-01' + INTERVAL 2 MONTH", "age % 2 = 1"),
        ),
        joined=True,
    )


def tpch(folder: Path, rows: int) -> Subject:
    """Drawn, not read."""
    return Subject(
        pooled=tpch_tables(rows / 6_000_000),
        declared={name: declaration(name) for name in DECLARED},
        froms=(
            "lineitem JOIN orders ON l_orderkey = o_orderkey",
            "orders, lineitem, part WHERE o_orderkey = l_orderkey AND l_partkey = p_partkey AND p_size < 30",
            "orders JOIN lineitem ON o_orderkey = l_orderkey JOIN customer ON c_custkey = o_custkey",
            "(SELECT * FROM lineitem WHERE l_quantity > 5) AS lineitem JOIN orders ON o_orderkey = l_orderkey",
        ),
        keys=("l_returnflag", "l_shipmode", "o_orderpriority", "YEAR(o_orderdate)", "l_quantity > 25"),
        numbers=(
            Number(sql="l_quantity", range=49),
            Number(sql="l_extendedprice", range=104_100, whole=False),
            Number(sql="l_extendedprice * (1 - l_discount)", range=105_000, whole=False),
            Number(sql="l_quantity - o_shippriority", range=50),
        ),
        conditions=(
            *("l_discount BETWEEN 0.03 AND 0.07", "l_shipdate < l_commitdate", "o_orderpriority LIKE '1%'"),
            *("l_receiptdate >= DATE '1995-01-01'", "l_shipmode IN ('AIR', 'RAIL')", "l_tax > 0.02"),
        ),
        joined=True,
    )


SUBJECTS = {"adult": adult, "taxi": taxi, "movielens": movielens, "tpch": tpch}
