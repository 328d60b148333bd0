"""Declarations of tables, in federation files and compared between owners."""

import json
import re
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from winnow.analytics.permissions import PERMISSIONS
from winnow.analytics.query_rules import SIMULATION_RULE, QueryRule
from winnow.analytics.tables.compare_declarations import declaration_digest, merge_declarations
from winnow.analytics.tables.declaration import LEVELS, ColumnDeclaration, ColumnType, Level, TableDeclaration
from winnow.analytics.tables.federation_file import load_federation
from winnow.analytics.tables.source import TableSource
from winnow.core import ConfigError, WinnowError

STAYS = """hospital,ward,age,patient,secret
north,a,41,p1,x
east,b,200,p2,x
north,,12,p1,x
"""
SECTION = """
[tables.stays]
file = "stays.csv"
owner = "hospital"
unit = "patient"
rows = 1
[tables.stays.columns]
ward = "public"
age = { level = "protected", bounds = [0, 110] }
patient = { level = "private", key = true }
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "stays.csv").write_text(STAYS)
    return tmp_path


def written(folder: Path, text: str) -> Path:
    path = folder / "federation.toml"
    path.write_text(text)
    return path


def test_a_column_divides_rows_among_owners_and_undeclared_columns_do_not_exist(folder: Path) -> None:
    stays = load_federation(written(folder, SECTION)).table("stays")
    assert list(stays.owners) == ["east", "north"]
    north = stays.owners["north"]()
    assert north.rows.column_names == ["ward", "age", "patient"]
    assert north.numbers("age").tolist() == [41, 12]
    assert len(north.limited()) == 1
    assert stays.owners["east"]().numbers("age").tolist() == [110]
    assert stays.queries == (SIMULATION_RULE,)
    assert SIMULATION_RULE.minimum == 10
    assert not {"per-owner", "extremes"} & {*SIMULATION_RULE.allow, *QueryRule().allow}


def test_files_are_owners_by_their_names_and_rules_belong_to_tables(folder: Path) -> None:
    (folder / "south.csv").write_text("x\n1\n2\n")
    (folder / "west.csv").write_text("x\n3\n")
    text = """
    [tables.a]
    files = ["south.csv", "west.csv"]
    columns = { x = "public" }
    [tables.b]
    files = ["south.csv", "west.csv"]
    columns = { x = { level = "protected", type = "integer" } }
    [[queries]]
    tables = ["a", "c"]
    allow = ["statistics", "per-owner"]
    minimum = 3
    noise = { epsilon = 2.0 }
    """
    file = load_federation(written(folder, text))
    assert {name: len(rows()) for name, rows in file.table("a").owners.items()} == {"south": 2, "west": 1}
    (rule,) = file.table("a").queries
    assert (rule.minimum, rule.allow, rule.noise and rule.noise.epsilon) == (3, ("statistics", "per-owner"), 2.0)
    assert file.table("b").queries == (), "with rules in the file, a table that none of them names answers nothing"


def test_dates_bound_a_column_as_days(folder: Path) -> None:
    (folder / "a.csv").write_text("day\n2019-06-01\n2020-02-03 12:00:00\n\n2030-01-01\n")
    text = '[tables.a]\nfiles = ["a.csv"]\ncolumns = { day = { level = "public", bounds = [2020-01-01, 2020-12-31] } }'
    table = load_federation(written(folder, text)).table("a").owners["a"]()
    day = np.array(["2020-01-01", "2020-02-03T12", "2020-12-31"], "datetime64[s]").astype(float) / 86_400
    np.testing.assert_allclose(table.numbers("day"), day)


COLUMN = 'file = "stays.csv"\nowner = "hospital"\ncolumns.age = '


@pytest.mark.parametrize(
    ("section", "line"),
    [
        ('owner = "hospital"\ncolumns.age = "public"', "[tables.stays]: needs one of file, files, sets, or url"),
        ('file = "stays.csv"\ncolumns.age = "public"', '[tables.stays] needs owner = "…", the column that says whose'),
        ('file = "stay.csv"\nowner = "x"\ncolumns.age = "public"', "file not found:"),
        ('file = "stays.txt"\nowner = "x"\ncolumns.age = "public"', "has an unsupported type; use one of .csv"),
        (
            'file = "stays.csv"\nowner = "hospitl"\ncolumns.age = "public"',
            "no column 'hospitl'; did you mean 'hospital'",
        ),
        ('file = "stays.csv"\nowner = "ward"\ncolumns.age = "public"', "column 'ward', data row 3 names no owner"),
        (
            'url = "mysql://x"\ntable = "t"\ncolumns.age = "public"',
            "url must begin with duckdb:/// or postgresql+psycopg://",
        ),
        ('url = "duckdb:///x"\ncolumns.age = "public"', "needs url and table together"),
        ('file = "stays.csv"', "[tables.stays] declares no columns"),
        ('fil = "stays.csv"\ncolumns.age = "public"', "unknown key fil; did you mean 'file'?"),
        (COLUMN + '"publik"', "column 'age': level = 'publik' is unknown; did you mean 'public'?"),
        (COLUMN + "3", "column 'age' needs a level"),
        (COLUMN + '{ level = "public", bound = [0, 1] }', "column 'age': unknown key bound; did you mean 'bounds'?"),
        (COLUMN + '{ level = "public", bounds = [110, 0] }', "bounds = [110, 0] must name the smaller number first"),
        (COLUMN + '{ level = "public", bounds = [0, inf] }', "must be a finite number"),
        (COLUMN + '{ level = "public", type = "text", bounds = [0, 1] }', "is text, which has no bounds"),
        (COLUMN + '{ level = "public", values = ["a", "b", "a"] }', "values lists 'a' twice"),
        (COLUMN + '{ level = "public", values = ["a", 1] }', "values mixes text and numbers"),
        (COLUMN + '{ level = "public", values = [] }', "values = [] is empty"),
        (COLUMN + '{ level = "public", values = ["a", ""] }', 'values lists ""; an empty cell is missing'),
        (COLUMN + '{ level = "public", values = ["a\\u001b[2J"] }', "or that is not printable"),
        (COLUMN + '{ level = "public", type = "number", values = ["a"] }', "is number, and its values are text"),
        (COLUMN + '{ level = "public", values = [1], bounds = [0, 1] }', "has bounds and values"),
        ('unit = "aeg"\n' + COLUMN + '"public"', "unit = 'aeg' is not a declared column; did you mean 'age'?"),
        ("rows = 3\n" + COLUMN + '"public"', "rows needs unit"),
        ('unit = "age"\nrows = 0\n' + COLUMN + '"public"', "rows = 0: must be at least 1"),
        ('sets = { train = "stays.csv" }\nowner = "hospital"\ncolumns.set = "public"', "a column 'set' is declared"),
        ('files = ["stays.csv"]\nowner = "x"\ncolumns.age = "public"', "with files every file is an owner"),
    ],
)
def test_a_wrong_section_is_refused_in_one_line_that_says_what_to_do(folder: Path, section: str, line: str) -> None:
    with pytest.raises(WinnowError, match=re.escape(line)) as caught:
        load_federation(written(folder, f"[tables.stays]\n{section}\n"))
    assert "\n" not in str(caught.value)


def test_unknown_tables_and_keys_and_files_get_a_suggestion(folder: Path) -> None:
    with pytest.raises(ConfigError, match="has no table 'stay'; did you mean 'stays'"):
        load_federation(written(folder, SECTION)).table("stay")
    for text, line in {
        "[table.stays]\n": "unknown key table; did you mean 'tables'",
        "tables = 3": "has no tables",
        "": "has no tables",
        "[tables.x": "is not valid TOML",
        '[[queries]]\nallow = ["statistic"]\n'
        + SECTION: "[[queries]] 1: allow[0] = 'statistic' is unknown; did you mean",
    }.items():
        with pytest.raises(ConfigError, match=re.escape(line)):
            load_federation(written(folder, text))
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        load_federation(folder / "nowhere.toml")


def test_owners_may_be_hostile_names(folder: Path) -> None:
    (folder / "stays.csv").write_text("hospital,age\n\x1b[2Jnorth,3\n")
    with pytest.raises(WinnowError, match="an owner's name must be at most 100 printable letters") as caught:
        load_federation(written(folder, f'[tables.stays]\n{COLUMN}"public"'))
    assert str(caught.value).isprintable()


def declared(unit: str | None = None, rows: int | None = None, **columns: Any) -> TableDeclaration:
    return TableDeclaration(columns=columns, unit=unit, rows=rows)


AGE = {"level": "protected", "type": "number", "bounds": (0, 110)}


@pytest.mark.parametrize(
    ("east", "line"),
    [
        (declared(age={**AGE, "bounds": (0, 120)}), "column 'age': bounds [0, 110] and [0, 120]"),
        (declared(age={"level": "protected", "type": "text"}), "column 'age': type number and text"),
        (declared(age={**AGE, "bounds": None}), "column 'age': bounds [0, 110] and none"),
        (declared(unit="age", age=AGE), "unit: none and 'age'"),
    ],
)
def test_what_differs_is_said_by_name(east: TableDeclaration, line: str) -> None:
    north = declared(age=AGE)
    with pytest.raises(ConfigError, match=re.escape(f"north and east disagree on {line}")):
        merge_declarations({"north": north, "south": north, "east": east})
    assert declaration_digest(north) != declaration_digest(east)


def test_columns_that_an_owner_lacks_are_missed_only_where_they_are_asked_for() -> None:
    owners = {
        "north": declared(age=AGE, ward="public"),
        "east": declared(age=AGE),
        "west": declared(age=AGE, x="public"),
    }
    assert list(merge_declarations(owners).columns) == ["age"]
    with pytest.raises(ConfigError, match="east, west have no column 'ward'"):
        merge_declarations(owners, ["ward"])
    with pytest.raises(ConfigError, match="no owner has a column 'aeg'; did you mean 'age'"):
        merge_declarations(owners, ["aeg"])


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.sampled_from(LEVELS), st.booleans(), st.none() | st.integers(1, 9)), min_size=1, max_size=4)
)
def test_the_strictest_owner_decides(terms: list[tuple[Any, bool, int | None]]) -> None:
    owners = {
        f"owner-{number}": declared(unit="p", rows=rows, p={"level": level, "type": "text", "key": key})
        for number, (level, key, rows) in enumerate(terms)
    }
    merged = merge_declarations(owners)
    assert merged.columns["p"].level == max(
        (level for level, _, _ in terms), key=["public", "protected", "private"].index
    )
    assert merged.columns["p"].key == all(key for _, key, _ in terms)
    assert merged.rows == min((rows for _, _, rows in terms if rows), default=None)


def test_a_column_without_cells_takes_the_type_of_the_others() -> None:
    merged = merge_declarations({"a": declared(x="public"), "b": declared(x={"level": "public", "type": "date"})})
    assert merged.columns["x"].type == "date"


def test_digests_do_not_depend_on_order() -> None:
    assert declaration_digest(declared(a="public", b=AGE)) == declaration_digest(declared(b=AGE, a="public"))
    again = TableDeclaration.model_validate_json(declared(a="public", b=AGE).model_dump_json())
    assert declaration_digest(again) == declaration_digest(declared(a="public", b=AGE))


def test_the_page_names_every_key_and_its_default() -> None:
    page = (Path(__file__).parents[1] / "docs" / "tables.md").read_text("utf-8")
    for group in (ColumnDeclaration, TableDeclaration, TableSource, QueryRule):
        for key, field in group.model_fields.items():
            if key == "columns":
                continue
            assert re.search(rf"^\| [^|]*`{key}`", page, flags=re.MULTILINE), key
            if isinstance(field.default, bool | int):
                assert re.search(rf"^\| `{key}` \| `{json.dumps(field.default)}` \|", page, flags=re.MULTILINE), key
    words = {*get_args(Level), *get_args(ColumnType), *PERMISSIONS}
    assert all(f'`"{word}"`' in page for word in words)
