"""The same rows from CSV, Parquet and DuckDB are the same table; what does not fit is refused in one line."""

import csv
import gzip
import io
import re
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import duckdb
import numpy as np
import pandas as pd
import pyarrow as arrow
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

from table_rows import COLUMNS, a_row, days, expected
from winnow.analytics.tables.owner_table import OwnerTable
from winnow.analytics.tables.parse_table_section import parse_table
from winnow.analytics.tables.read_rows import read_rows, read_site_table
from winnow.core import DataError

PUBLIC = {"level": "public"}


def table_of(folder: Path, columns: dict[str, Any], **keys: Any) -> OwnerTable:
    declaration, source = parse_table({**keys, "columns": columns}, "test:")
    return read_rows(source.absolute(folder), declaration)


def csv_text(cells: list[tuple[Any, ...]]) -> str:
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerow([*COLUMNS, "undeclared"])
    writer.writerows([*(None if each is None else each for each in row), "secret"] for row in cells)
    return text.getvalue()


def arrow_table(cells: list[tuple[Any, ...]]) -> arrow.Table:
    types = [arrow.float64(), arrow.int64(), arrow.string(), arrow.timestamp("us"), arrow.bool_()]
    columns = [arrow.array(list(each), kind) for each, kind in zip(zip(*cells, strict=True), types, strict=True)]
    return arrow.Table.from_arrays([*columns, arrow.array(["secret"] * len(cells))], names=[*COLUMNS, "undeclared"])


@settings(max_examples=30)
@given(st.lists(a_row, min_size=1, max_size=8))
def test_every_kind_of_file_gives_the_same_table(cells: list[tuple[Any, ...]]) -> None:
    with TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "a.csv").write_bytes(csv_text(cells).encode())
        (folder / "a.csv.gz").write_bytes(gzip.compress(csv_text(cells).encode()))
        parquet.write_table(arrow_table(cells), folder / "a.parquet")
        tables = [table_of(folder, COLUMNS, file=f"a.{kind}") for kind in ("csv", "csv.gz", "parquet")]
    for table in tables:
        assert table.rows.schema == tables[0].rows.schema
        assert table.rows.to_pylist() == expected(cells)
        day = [np.nan if row[3] is None else days(row[3]) for row in cells]
        np.testing.assert_allclose(table.numbers("day"), day, rtol=0, atol=1e-9)


@settings(max_examples=4)
@given(st.lists(a_row, min_size=20, max_size=40))
def test_a_duckdb_file_gives_the_same_table(cells: list[tuple[Any, ...]]) -> None:
    with TemporaryDirectory() as name:
        with duckdb.connect(f"{name}/a.duckdb") as database:
            database.register("given", arrow_table(cells))
            database.execute("CREATE TABLE stays AS SELECT * FROM given")
        table = table_of(Path(name), COLUMNS, url="duckdb:///a.duckdb", table="stays")
    assert table.rows.to_pylist() == expected(cells)


def test_types_come_from_values_bounds_and_the_first_rows(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a,b,c,d,e,f,g\n1,x,2020-01-01,true,7,NA,2\n2.5,y,2020-01-02,False,8,,3\n")
    parquet.write_table(arrow.table({"a": [1, 2], "f": arrow.nulls(2)}), tmp_path / "b.parquet")
    columns = {**dict.fromkeys("abcdf", "public"), "e": {**PUBLIC, "values": [7]}, "g": {**PUBLIC, "bounds": [0, 9]}}
    found = table_of(tmp_path, columns, file="a.csv").declaration.columns
    kinds = {"a": "number", "b": "text", "c": "date", "d": "boolean", "e": "integer", "f": None, "g": "number"}
    assert {name: column.type for name, column in found.items()} == kinds
    of_parquet = table_of(tmp_path, {"a": "public", "f": "public"}, file="b.parquet")
    assert [column.type for column in of_parquet.declaration.columns.values()] == ["number", None]
    assert np.isnan(of_parquet.numbers("f")).all()


def test_numbers_are_clipped_and_unlisted_values_are_others(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age,end,level\n-3,home,1\n200,moved,2.0\n,lost,3\n41,,\n")
    columns = {
        "age": {"level": "protected", "bounds": [0, 110]},
        "end": {"level": "protected", "values": ["moved", "home"]},
        "level": {"level": "protected", "values": [2, 1]},
    }
    table = table_of(tmp_path, columns, file="a.csv")
    np.testing.assert_array_equal(table.numbers("age"), [0, 110, np.nan, 41])
    assert table.codes("end").tolist() == [1, 0, -2, -1]
    assert table.codes("level").tolist() == [1, 0, -2, -1]


def test_at_most_so_many_rows_of_a_unit_count(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    frame = pd.DataFrame({"patient": rng.choice(["a", "b", "c", None], 200), "x": np.arange(200.0)})
    frame.to_csv(tmp_path / "a.csv", index=False)
    table = table_of(tmp_path, {"patient": "private", "x": "public"}, file="a.csv", unit="patient", rows=3)
    kept = frame.groupby("patient", dropna=False, sort=False).head(3)
    assert table.limited().numbers("x").tolist() == kept.x.tolist()
    assert len(table) == 200


def test_sets_are_told_apart_by_a_column(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("x\n1\n2\n")
    (tmp_path / "b.csv").write_text("x\n3\n")
    table = table_of(tmp_path, {"x": "public"}, sets={"train": "a.csv", "test": "b.csv"})
    assert table.rows.to_pydict() == {"x": [1.0, 2.0, 3.0], "set": ["train", "train", "test"]}
    assert table.codes("set").tolist() == [0, 0, 1]


def test_a_type_that_changes_in_row_90_000_is_named_and_not_quoted(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("age\n" + "41\n" * 89_999 + "ann-smith\n" + "41\n" * 10)
    for column, line in {
        "protected": "data row 90,000 holds text, and rows before it hold numbers; correct the row, or declare",
        '{"type": "integer"}': "data row 90,000 holds text, not a whole number; correct the row, or declare",
    }.items():
        declared = column if column == "protected" else {"level": "protected", "type": "integer"}
        with pytest.raises(DataError, match=re.escape(f"a.csv: column 'age', {line}")) as caught:
            table_of(tmp_path, {"age": declared}, file="a.csv")
        assert "smith" not in str(caught.value)
    assert len(table_of(tmp_path, {"age": {"level": "protected", "type": "text"}}, file="a.csv")) == 90_010


@pytest.mark.parametrize(
    ("content", "line"),
    [
        (b"", "is empty; it must have a header line and rows"),
        (b"\n\n", "is empty"),
        (b"age,x\n", "has no rows"),
        (b"age,x\n1,2\n3\n", "data row 2 has 1 cell but the header has 2"),
        (b"age,x\n1,2\n\n3,4,5\n", "data row 2 has 3 cells but the header has 2"),
        (b'age,x\n"1,2\n', "1 cell"),
        (b"age,age\n1,2\n", "has more than one column 'age'"),
        (b"age,x\n\xff1,2\n", "is not UTF-8 text"),
        (b"\xffage,x\n1,2\n", "is not UTF-8 text"),
        (b"Age,x\n1,2\n", "has no column 'age'; did you mean 'Age'?"),
        (b"age,x\ninf,2\n", "data row 1 holds text, not a number"),
        (b"age,x\n\x1b[31m1,2\n", "data row 1 holds text, not a number"),
        (b"a\x1b[2Jge,x\n1,2\n", "has no column 'age'; did you mean 'a?[2Jge'?"),
        (b"a" * 5000 + b",x\n1,2\n", "has no column 'age'"),
    ],
)
def test_files_that_cannot_be_read_are_refused_in_one_short_line(tmp_path: Path, content: bytes, line: str) -> None:
    (tmp_path / "a.csv").write_bytes(content)
    with pytest.raises(DataError) as caught:
        table_of(tmp_path, {"age": {**PUBLIC, "type": "number"}}, file="a.csv")
    assert line in str(caught.value)
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1200


def test_damaged_files_and_odd_types_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a.csv.gz").write_bytes(gzip.compress(b"age\n" + b"1\n" * 1000)[:30])
    (tmp_path / "a.parquet").write_bytes(b"PAR1 and no more")
    (tmp_path / "a.duckdb").write_text("age\n1\n")
    parquet.write_table(arrow.table({"age": [[1], [2]], "when": [1, 2], "half": [0.5, 1.0]}), tmp_path / "b.parquet")
    for keys, columns, line in (
        ({"file": "a.csv.gz"}, {"age": PUBLIC}, "a.csv.gz"),
        ({"file": "a.parquet"}, {"age": PUBLIC}, "is not a readable Parquet file"),
        ({"url": "duckdb:///a.duckdb", "table": "t"}, {"age": PUBLIC}, "is not a readable DuckDB file"),
        ({"file": "b.parquet"}, {"age": PUBLIC}, "only numbers, text, dates and booleans"),
        ({"file": "b.parquet"}, {"when": {**PUBLIC, "type": "date"}}, "data row 1 holds a number, not a date"),
        (
            {"file": "b.parquet"},
            {"half": {**PUBLIC, "type": "integer"}},
            'a number that is not whole, or too large; correct the row, or declare the column with type = "number"',
        ),
    ):
        with pytest.raises(DataError, match=re.escape(line)):
            table_of(tmp_path, columns, **keys)


def test_a_view_in_a_duckdb_file_reaches_no_other_file(tmp_path: Path) -> None:
    (tmp_path / "other.csv").write_text("age\n1\n")
    with duckdb.connect(str(tmp_path / "a.duckdb")) as database:
        database.execute(f"CREATE VIEW stays AS SELECT * FROM read_csv('{tmp_path}/other.csv')")
        database.execute("CREATE SCHEMA ward; CREATE TABLE ward.stays AS SELECT 3 AS age")
    with pytest.raises(DataError, match="table stays cannot be read"):
        table_of(tmp_path, {"age": "public"}, url="duckdb:///a.duckdb", table="stays")
    qualified = table_of(tmp_path, {"age": "public"}, url="duckdb:///a.duckdb", table="ward.stays")
    assert qualified.numbers("age").tolist() == [3.0]
    with pytest.raises(DataError, match="has no table 'stay'; did you mean 'stays'"):
        table_of(tmp_path, {"age": "public"}, url="duckdb:///a.duckdb", table="stay")


def test_a_site_tells_nobody_of_columns_that_it_does_not_declare(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("ages,x\n1,2\n")
    with pytest.raises(DataError) as caught:
        read_site_table("stays", {"file": str(tmp_path / "a.csv"), "columns": {"age": "public"}})
    assert str(caught.value) == "table stays lacks column 'age', which its site declares; run its check"
