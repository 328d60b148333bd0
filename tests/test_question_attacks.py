"""Analysts, owners and servers that want a row, a small count or free budget out of a question."""

import copy
import csv
import json
import math
import random
import tomllib
from base64 import b64encode
from collections.abc import Iterator
from contextlib import contextmanager
from io import StringIO
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as arrow
import pytest
from msgspec.structs import replace
from pyarrow import parquet
from rich.console import Console

import query_tables
from statistics_tables import DECLARATION, answer_of, divided, merged, pooled_rows, recorded
from winnow.analytics.agreement import Agreement, Statement, decode_statements, encode_statements
from winnow.analytics.answers import render_answer, write_answer_page
from winnow.analytics.fit.fit_question import FitQuestion
from winnow.analytics.fit.formula import parse_formula
from winnow.analytics.intersect.intersect_question import IntersectQuestion
from winnow.analytics.permissions import PERMISSIONS
from winnow.analytics.program import run_plain
from winnow.analytics.question import QueryTerms, Question, merge_terms, read_question
from winnow.analytics.sealed_answer import opened_answer
from winnow.analytics.simulate import SimulatedOwners, ask_owners
from winnow.analytics.sql.answer_table import answer_table
from winnow.analytics.sql.query_answer import QueryAnswer
from winnow.analytics.stats.counted_cells import cell_tables
from winnow.analytics.stats.plan import make_plan
from winnow.analytics.stats.significance_tests import read_tests
from winnow.analytics.stats.size_up import size_up
from winnow.analytics.stats.statistics_question import StatisticsQuestion
from winnow.analytics.stats.suppression import EMPTY, SHOWN, CellIndex, decide_cells
from winnow.analytics.tables.declaration import TableDeclaration
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.analytics.workflow import AnalysisWorkflow
from winnow.core import ConfigError, DataError, Task, WinnowError
from winnow.deploy.client.submit_question import question_config
from winnow.privacy.concentrated_privacy import discrete_gaussian, epsilon_of, rho_of
from winnow.privacy.mixing.sealed_boxes import seal_box
from winnow.privacy.secagg.key_agreement import KeyPair

MINIMUM = 10


def steps_of(question: Question, tables: list[OwnerTable]) -> tuple[Any, list[tuple[str, Any]]]:
    """The answer, and what every step opened."""
    terms = QueryTerms(declaration=tables[0].declaration, allow=PERMISSIONS)
    agreed = merge_terms(question, {f"owner {place}": terms for place in range(len(tables))})
    opened = list[tuple[str, Any]]()
    return run_plain(lambda: recorded(question.program(agreed), opened), tables), opened


# Noise and budgets ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "noise", [{"epsilon": 1e-14}, {"epsilon": 1e300}, {"epsilon": float("inf")}, {"epsilon": 1.0, "delta": 5e-324}]
)
def test_noise_that_cannot_be_drawn_is_refused(noise: dict[str, float]) -> None:
    """At ε = 1e-14 draws were cut off at 64 bits and cancelled out: exact sums, for next to no budget."""
    with pytest.raises(ConfigError, match=r"^\[question\]: (epsilon|delta)"):
        read_question({"kind": "statistics", "table": "people", **noise})
    with pytest.raises(ValueError, match="cannot be drawn"):
        discrete_gaussian(2.0**60, 4, np.random.default_rng(0))
    with pytest.raises(ValueError, match="cannot be drawn"):
        discrete_gaussian(0.0, 4, np.random.default_rng(0))


@pytest.mark.parametrize(
    "asked", [{"kind": "statistics", "table": "t"}, {"kind": "query", "sql": "SELECT COUNT(*) FROM t"}]
)
def test_delta_is_given_with_epsilon_alone(asked: dict[str, str]) -> None:
    """A job file with delta alone was accepted, and whoever wrote it took the exact answer for one with noise."""
    for delta in (1e-8, 1e-6):
        with pytest.raises(ConfigError, match=r"^\[question\]: delta belongs to noise; add epsilon, or leave it out$"):
            read_question({**asked, "delta": delta})
        assert read_question({**asked, "delta": delta, "epsilon": 1.0}).delta == delta
    for noise in ({}, {"epsilon": None, "delta": None}, {"epsilon": 1.0}):
        question = read_question({**asked, **noise})
        sent = tomllib.loads(question_config(question, {}))["question"]
        assert read_question({**sent, "kind": question.kind}) == question
        assert ("delta" in sent) == (question.epsilon is not None)


def test_small_epsilons_cost_what_they_should() -> None:
    for epsilon in (1e-3, 1e-2, 1.0, 1e3):
        assert epsilon_of(rho_of(epsilon, 1e-6), 1e-6) == pytest.approx(epsilon, rel=1e-12)
    noise = discrete_gaussian(2.0**50, 4000, np.random.default_rng(0))
    assert np.std(noise / 2.0**50) == pytest.approx(1.0, rel=0.05)


# Subtraction within one question --------------------------------------------------------------------------------------


def known_cells(rows: pd.DataFrame, **settings: Any) -> dict[Any, int]:
    """Every count that the tables of a question tell, by what its rows have in common."""
    question = StatisticsQuestion(table="people", **settings)
    table = divided(rows, 1, 0)[0]
    terms = merged(question, 1)

    def program() -> Any:
        size = yield from size_up(make_plan(question, terms), read_tests(question.tests, terms.declaration))
        cells = CellIndex(cell_tables(size.plan, {}, size.tests, correlation=False))
        states = yield from decide_cells(cells, MINIMUM, size.bits)
        known = {}
        for (kind, column, *by), each in cells.tables.items():
            if kind != "n":
                continue
            told = cells.places[kind, column, *by].reshape(each.full_shape)
            for (row, group), place in np.ndenumerate(told):
                values = {column: row} if row < each.shape[0] > 1 else {}
                values |= {by[0]: group} if by and group < each.shape[1] else {}
                if states[place] in (SHOWN, EMPTY):
                    known[frozenset(values.items())] = int(cells.counts(table)[place])
        return known

    found: dict[Any, int] = run_plain(program, [table])
    return found


@pytest.mark.parametrize("seed", range(12))
@pytest.mark.parametrize(
    "settings", [{"tests": ("chi2:sex,ward", "chi2:ward,sex")}, {"by": ("sex",), "tests": ("chi2:sex,ward",)}]
)
def test_no_small_cell_follows_from_two_tables_of_the_same_columns(seed: int, settings: dict[str, Any]) -> None:
    """A table and its transpose hid other partners of a small cell, so that together they told it."""
    rng = np.random.default_rng(seed)
    rows = pooled_rows(400, seed, missing=0.0)
    rows["ward"] = rng.choice(["north", "east", "south", "west"], len(rows))
    few = rows.index[(rows["sex"] == "f") & (rows["ward"] == "east")][int(rng.integers(1, 9)) :]
    rows = rows.drop(few).reset_index(drop=True)
    known = known_cells(rows, columns=("sex", "ward") if "by" not in settings else ("ward",), **settings)
    listed = {"sex": 2, "ward": 4}
    for fixed, other in (("sex", "ward"), ("ward", "sex")):
        for value in range(listed[fixed]):
            total = known.get(frozenset({(fixed, value)}))
            parts = [known.get(frozenset({(fixed, value), (other, place)})) for place in range(listed[other])]
            if total is not None and None in parts:
                assert total - sum(part or 0 for part in parts) >= MINIMUM
    assert known.get(frozenset({("sex", 0), ("ward", 1)}), 0) == 0


def test_rows_that_lack_one_column_do_not_follow_from_a_correlation() -> None:
    """Σx over all rows less Σx over those that have y was the x of the one row without y."""
    rows = pooled_rows(300, 3, missing=0.0)
    rows.loc[7, "weight"] = np.nan
    question = StatisticsQuestion(table="people", columns=("age", "weight", "income"), correlation=True)
    answer, opened = steps_of(question, divided(rows, 3, 3))
    assert [each is None for each in answer["correlation"]["matrix"][0]] == [False, True, False]
    (sums,) = [values for label, values in opened if label == "moments"]
    one_row = (rows.loc[7, "age"] - 55) / 110
    differences = np.abs(np.subtract.outer(sums, sums).astype(float)) / 2.0**44 - abs(one_row)
    assert np.abs(differences).min() > 1e-9
    rows.loc[:11, "weight"] = np.nan
    answer, _ = steps_of(question, divided(rows, 3, 3))
    assert answer["correlation"]["matrix"][0][1] == pytest.approx(rows["age"].corr(rows["weight"]), abs=1e-6)


def test_quantiles_at_many_levels_are_not_the_rows() -> None:
    rows = pooled_rows(200, 4, missing=0.0)
    levels = tuple(place / 200 for place in range(60, 140))
    answer = answer_of(divided(rows, 3, 4), columns=("income",), quantiles=levels)
    told = [float(level) for level, value in answer["columns"]["income"]["all"]["quantiles"].items() if value]
    assert len(told) == 8
    assert min(np.diff(told)) * 200 >= MINIMUM - 1e-9
    with pytest.raises(ConfigError, match="quantiles"):
        read_question({"kind": "statistics", "table": "people", "quantiles": list(np.linspace(0.1, 0.9, 101))})


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"by": ("sex", "ward"), "tests": ("anova:age,sex",)}, "tests cannot be shown together with groups by several"),
        (
            {"histograms": 16, "tests": ("survival:age,died",)},
            "survival by 'age' cannot be shown together with its histogram",
        ),
        ({"tests": ("survival:age,died", "survival:age,died,sex")}, "survival by 'age' can be told in one way only"),
    ],
)
def test_two_divisions_of_the_same_rows_are_not_told_together(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=line):
        answer_of(divided(pooled_rows(300, 1), 2, 1), **settings)


def test_the_few_outside_of_all_groups_do_not_follow_from_survival() -> None:
    rows = pooled_rows(600, 1, missing=0.0)
    rows.loc[:2, "sex"] = None
    answer, opened = steps_of(
        StatisticsQuestion(table="people", columns=("weight",), by=("sex",), tests=("survival:age,died,sex",)),
        divided(rows, 3, 1),
    )
    assert answer["tests"][0]["reason"] == "fewer than 10 rows belong to none of the groups"
    assert "survival" not in [label for label, _ in opened]


# Fits -----------------------------------------------------------------------------------------------------------------

POINTS = TableDeclaration.model_validate(
    {
        "columns": {
            **{name: {"level": "protected", "bounds": [-100.0, 100.0]} for name in "xyz"},
            "dose": {"level": "protected", "bounds": [1.0, 9.0]},
            "kind": {"level": "protected", "values": ["a", "b", "c", "d"]},
            "sick": {"level": "protected", "values": ["no", "yes"]},
        }
    }
)


def points(rows: dict[str, Any], owners: int = 2) -> list[OwnerTable]:
    frame = pd.DataFrame(rows)
    return [
        OwnerTable(POINTS, arrow.Table.from_pandas(frame[place::owners], preserve_index=False))
        for place in range(owners)
    ]


def test_a_row_far_from_all_others_is_no_remainder_of_k_means() -> None:
    """All rows less those of every cell with enough of them was the one row of the cell that had not."""
    rng = np.random.default_rng(0)
    corners = {"x": [-90, -90, 90, 90], "y": [-90, 90, -90, 90], "z": [0, 0, 0, 0]}
    data = {name: np.repeat(each, 50) + rng.normal(0, 0.01, 200) for name, each in corners.items()}
    data |= {"kind": ["a"] * 200, "sick": ["no"] * 200, "dose": np.ones(200)}
    data["x"][17], data["y"][17] = 0.0, 1.0
    question = FitQuestion(table="points", model="kmeans", columns=("x", "y"), clusters=2)
    tables = points(data)
    opened = list[tuple[str, Any]]()
    terms = merge_terms(question, dict.fromkeys(("a", "b"), QueryTerms(declaration=POINTS, allow=PERMISSIONS)))
    run_plain(lambda: recorded(question.program(terms), opened), tables)
    searches = 0
    for label, values in opened:
        if label.startswith("sums, cells"):
            searches += 1
            left = 200 - sum(values.reshape(-1, 4)[:, 0])
            assert left == 0 or left >= MINIMUM
    assert searches == 3


def test_formulas_that_grow_without_end_or_beyond_the_rows_are_refused() -> None:
    with pytest.raises(ConfigError, match="has more than 500 terms"):
        parse_formula("y ~ " + "*".join(f"x{place}" for place in range(400)))
    rng = np.random.default_rng(0)
    data = {name: rng.normal(0, 9, 14) for name in "xyz"} | {
        "kind": ["a"] * 14,
        "sick": ["no"] * 14,
        "dose": rng.uniform(1, 9, 14),
    }
    with pytest.raises(ConfigError, match="14 complete rows are too few for 5 terms; 3 each are needed"):
        steps_of(FitQuestion(table="points", model="linear", formula="z ~ x*y + log(dose) + x:log(dose)"), points(data))


# Parties --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("minimum", [10**5, 10**9])
def test_an_absurd_minimum_hides_all(minimum: int) -> None:
    tables = dict(zip("abc", divided(pooled_rows(60, 1), 3, 1), strict=True))
    terms = {
        name: QueryTerms(declaration=DECLARATION, allow=PERMISSIONS, minimum=minimum if name == "c" else 10)
        for name in tables
    }
    with pytest.raises(DataError, match=f"fewer than {minimum} rows"):
        ask_owners(StatisticsQuestion(table="people", columns=("ward",)), tables, terms)


def test_a_minimum_that_no_comparison_holds_cannot_be_stated() -> None:
    with pytest.raises(ValueError, match="less than or equal to 1000000000"):
        QueryTerms(declaration=DECLARATION, allow=PERMISSIONS, minimum=10**18)


@pytest.mark.parametrize("place", ["terms", "columns"])
def test_terms_of_a_lying_owner_move_no_terminal_and_are_one_line(place: str) -> None:
    """Everybody's log and the terminal of who asks show why they were refused."""
    declaration = TableDeclaration.model_validate({"columns": {"id": {"level": "public"}}})
    terms = QueryTerms(declaration=declaration, allow=PERMISSIONS).model_dump(mode="json")
    inside = terms if place == "terms" else terms["declaration"]["columns"]
    inside["\x1b[2J\nwinnow: error: made up"] = {"level": "none"}
    statement = Statement(client=0, owner="liar", terms=json.dumps(terms))
    question = IntersectQuestion(table="t", key="id", between=("liar", "south"))
    with pytest.raises(WinnowError, match=r"^the terms of liar cannot be read: ") as error:
        Agreement(question=question, submission="", statements=(statement,)).run()
    assert str(error.value).isprintable()


def test_a_server_cannot_give_an_owner_the_name_of_another() -> None:
    """By another name its accomplice would be the one that asks in a set intersection, and learn the keys."""
    declaration = TableDeclaration.model_validate(
        {"columns": {"id": {"level": "private", "type": "text", "key": True}}}
    )
    tables = {
        name: OwnerTable(declaration, arrow.table({"id": [f"p{i}" for i in range(30)]}))
        for name in ("north", "south", "spy")
    }
    question = IntersectQuestion(table="t", key="id", between=("north", "south"))
    terms = QueryTerms(declaration=declaration, allow=PERMISSIONS)
    learnt = dict[str, list[str]]()

    class Renamed(SimulatedOwners):
        def handle(self, tasks: Any, site: object) -> Any:
            return super().handle([self._renamed(task) for task in tasks], site)

        def _renamed(self, task: Task) -> Task:
            if not (task.settings or {}).get("statements"):
                return task
            listed = decode_statements(task.settings["statements"])
            names = {"north": "spy", "spy": "north", "south": "south"}
            swapped = encode_statements([replace(each, owner=names[each.owner]) for each in listed])
            return replace(task, settings={**task.settings, "statements": swapped})

    owners = Renamed(question, tables, dict.fromkeys(tables, terms), on_match=learnt.__setitem__)
    workflow = AnalysisWorkflow(question, owners.names)
    with pytest.raises(WinnowError, match="the server calls client 0 spy; it is another site"):
        list(workflow.run(owners.federation()))
    assert learnt == {}


# Answers of a lying server --------------------------------------------------------------------------------------------

ODD = (None, "\x1b[2J<script>alert(1)</script>", -1, 1e308, [], {}, True, 10**40, {"a": {}}, ["q"])


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(found for key, each in inside for found in places(each, (*path, key)))]


def show_odd_answers(count: int, seed: int, page: Path | None) -> None:
    rows, chance = pooled_rows(200, 11), random.Random(seed)
    answers = [
        answer_of(divided(rows, 2, 11), by=("sex",), correlation=True, quantiles=(0.5,), tests=("t:age,sex",)),
        answer_of(divided(rows, 2, 11), columns=("age", "ward"), histograms=5, epsilon=1.0),
        {"kind": "intersect", "table": "t", "key": "id", "owners": ["a", "b"], "minimum": 10, "size": 12},
    ]
    for _ in range(count):
        answer = copy.deepcopy(chance.choice(answers))
        *way, last = chance.choice([place for place in places(answer) if place])
        inside: Any = answer
        for key in way:
            inside = inside[key]
        inside[last] = chance.choice(ODD)
        with suppressed_line():
            text = StringIO()
            Console(file=text).print(render_answer(answer))
            assert "\x1b" not in text.getvalue()
            if page is not None:
                write_answer_page(answer, page)
                assert "<script>alert" not in page.read_text()


@contextmanager
def suppressed_line() -> Iterator[None]:
    """A result or one line: either is fine."""
    try:
        yield
    except WinnowError as error:
        assert "\n" not in str(error)  # noqa: PT017


def test_whatever_a_server_answers_is_shown_or_refused_in_one_line(tmp_path: Path) -> None:
    show_odd_answers(150, 1, None)
    show_odd_answers(6, 2, tmp_path / "page.html")


@pytest.mark.slow(part="attacks")
def test_whatever_a_server_answers_in_3000_forms(tmp_path: Path) -> None:
    show_odd_answers(3000, 3, tmp_path / "page.html")


def test_whatever_a_server_answers_to_a_statement_is_shown_and_written_or_refused_in_one_line(tmp_path: Path) -> None:
    tables, chance = query_tables.divided(query_tables.pooled_rows(300, 1), 3, 1), random.Random(5)
    groups = "SELECT outcome, COUNT(*) AS n, AVG(cost) AS cost FROM stays GROUP BY outcome"
    answers = [
        query_tables.answer_of(groups, tables),
        query_tables.answer_of(groups, tables, epsilon=1.0),
        query_tables.answer_of("SELECT HISTOGRAM(age, [10, 50]) AS h FROM stays", tables),
    ]
    for _ in range(400):
        answer = copy.deepcopy(chance.choice(answers))
        *way, last = chance.choice([place for place in places(answer) if place])
        inside: Any = answer
        for key in way:
            inside = inside[key]
        inside[last] = chance.choice((*ODD, 10**400, math.nan, "=1", {"a": 1}))
        with suppressed_line():
            text, told = StringIO(), QueryAnswer(answer)
            Console(file=text).print(answer_table(told))
            assert "\x1b" not in text.getvalue()
            assert told.notes() is not None
            assert "<script>alert" not in told._repr_html_()
            told.write(tmp_path / f"answer{chance.choice(('.csv', '.parquet'))}")


def test_rows_that_nobody_could_have_sealed_are_one_line() -> None:
    reader = KeyPair()
    for text in (
        b"[" * 100_000,
        b"{}",
        b"[[1]",
        b"[1, 2]",
        b'[["a", {}], [1]]',
        b"[[null, 1], [null]]",
        b"[" + b"9" * 9000,
        b'[["\\ud800", 1], [1]]',
        b"[[NaN, 1], [1]]",
        b"[[1, -Infinity], [1]]",
    ):
        sealed = b64encode(seal_box(reader.public, b"\1" + text, b"")).decode()
        with pytest.raises(WinnowError, match="not what owners sealed for you"):
            opened_answer({"columns": ["a", "b"], "sealed": [sealed]}, reader)


def test_a_file_of_rows_runs_no_formula_of_an_owner(tmp_path: Path) -> None:
    tables = query_tables.divided(query_tables.pooled_rows(300, 1), 3, 1)
    told = query_tables.answer_of("SELECT outcome, COUNT(*) AS n FROM stays GROUP BY outcome", tables)
    texts = ["=cmd|' /C calc'!A0", " \t@SUM(1)", "＝1+1", "-5", "+49 30 x", "well-known", None]
    rows = [{"outcome": text, "n": -3} for text in texts]
    answer = QueryAnswer({**told, "rows": rows, "errors": [{}] * len(rows)})
    with answer.write(tmp_path / "answer.csv").open(newline="") as file:
        cells = [row[0] for row in csv.reader(file)][1:]
    assert cells == ["'=cmd|' /C calc'!A0", "' \t@SUM(1)", "'＝1+1", "-5", "'+49 30 x", "well-known", ""]
    assert parquet.read_table(answer.write(tmp_path / "answer.parquet")).column("outcome").to_pylist() == texts


def test_a_statement_is_booked_under_the_table_that_it_reads() -> None:
    with pytest.raises(WinnowError, match="table = 'STAYS', and the statement reads 'stays' first"):
        read_question({"kind": "query", "table": "STAYS", "sql": "SELECT COUNT(*) AS n FROM stays", "epsilon": 1.0})
