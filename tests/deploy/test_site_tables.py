"""Tables at a site: declared in site.toml, exported from PostgreSQL once a job, and never told of to others."""

import re
import sys
from pathlib import Path
from typing import Any

import msgspec
import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from postgres import fresh_database
from test_site_check import PROJECT

from command_line import call
from table_rows import COLUMNS, a_row, expected
from winnow.analytics.tables.compare_declarations import declaration_digest
from winnow.analytics.tables.parse_table_section import parse_table
from winnow.analytics.tables.read_rows import read_rows, read_site_table
from winnow.core import ConfigError, DataError
from winnow.deploy.site import self_check
from winnow.deploy.site.config import SiteConfig, load_config, redactor_for
from winnow.deploy.site.data_fingerprint import data_digest

TABLE = """
[tables.stays]
{source}
unit = "patient"
rows = 2
[tables.stays.columns]
age = {{ level = "protected", bounds = [0, 110] }}
day = {{ level = "protected", bounds = [2020-01-01, 2020-12-31] }}
patient = {{ level = "private", key = true }}
"""


def configured(folder: Path, source: str) -> SiteConfig:
    (folder / "stays.csv").write_text("age,day,patient,secret\n41,2020-01-02,p1,x\n,2019-01-01,p2,x\n200,,p1,x\n")
    (folder / "site.toml").write_text(TABLE.format(source=source))
    return load_config(folder)


@pytest.fixture(scope="module")
def database(postgres: str) -> str:
    return fresh_database(postgres).replace("postgresql://", "postgresql+psycopg://")


def run_sql(url: str, *statements: str) -> None:
    with psycopg.connect(url.replace("+psycopg", ""), autocommit=True) as connection:
        for each in statements:
            connection.execute(each)


@settings(max_examples=5, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(a_row, min_size=5, max_size=20))
def test_postgresql_gives_the_same_table_as_any_file(database: str, cells: list[tuple[Any, ...]]) -> None:
    with (
        psycopg.connect(database.replace("+psycopg", ""), autocommit=True) as connection,
        connection.cursor() as cursor,
    ):
        cursor.execute("DROP TABLE IF EXISTS every")
        cursor.execute(
            "CREATE TABLE every (amount double precision, visits bigint, ward text, day timestamp, well boolean,"
            " undeclared text)"
        )
        cursor.executemany("INSERT INTO every VALUES (%s, %s, %s, %s, %s, 'secret')", cells)
    declaration, source = parse_table({"url": database, "table": "every", "columns": COLUMNS}, "test:")
    assert read_rows(source, declaration).rows.to_pylist() == expected(cells)


def test_other_types_of_postgresql_and_a_schema(database: str) -> None:
    run_sql(
        database,
        "CREATE SCHEMA ward",
        "CREATE TYPE mood AS ENUM ('good', 'bad')",
        "CREATE TABLE ward.odd (n numeric(10, 2), d date, z timestamptz, c char(5), m mood, u uuid, j json)",
        "INSERT INTO ward.odd VALUES (1.25, '2020-01-02', '2020-01-02 02:00+02', 'ab', 'bad',"
        " '6b29fc40-ca47-1067-b31d-00dd010662da', '{}'), (NULL, NULL, NULL, NULL, NULL, NULL, NULL)",
    )
    section: dict[str, Any] = {"url": database, "table": "ward.odd"}
    declaration, source = parse_table({**section, "columns": dict.fromkeys("ndzcmu", "public")}, "test:")
    table = read_rows(source, declaration)
    first, second = table.rows.to_pylist()
    assert (first["n"], first["c"], first["m"]) == (1.25, "ab", "bad")
    assert first["u"] == "6b29fc40-ca47-1067-b31d-00dd010662da"
    assert table.numbers("d")[0] == table.numbers("z")[0] == 18263.0
    assert set(second.values()) == {None}
    for change, line in (
        ({"columns": {"j": "public"}}, "only numbers, text, dates and booleans"),
        ({"columns": {"k": "public"}}, "has no column 'k'"),
        ({"table": "ward.od", "columns": {"n": "public"}}, "has no table 'ward.od'; did you mean 'ward.odd'"),
        (
            {"url": "postgresql+psycopg://nobody:pw@127.0.0.1:1/x", "columns": {"n": "public"}},
            "database cannot be read",
        ),
    ):
        declaration, source = parse_table({**section, **change}, "test:")
        with pytest.raises(DataError, match=re.escape(line)) as caught:
            read_rows(source, declaration)
        assert "pw" not in str(caught.value)


def test_rows_of_a_database_are_exported_once_and_the_worker_gets_no_address(database: str, tmp_path: Path) -> None:
    run_sql(
        database,
        "CREATE TABLE stays (age int, day date, patient text, secret text)",
        "INSERT INTO stays VALUES (41, '2020-01-02', 'p1', 'x'), (NULL, '2019-01-01', 'p2', 'x'),"
        " (200, NULL, 'p1', 'x')",
    )
    config = configured(tmp_path, f'url = "{database}"\ntable = "stays"')
    section = config.tables["stays"].worker_table("stays", tmp_path, {})
    assert "url" not in section
    assert "table" not in section
    exported = read_site_table("stays", msgspec.json.decode(msgspec.json.encode(section)))
    of_file = read_site_table("stays", configured(tmp_path, 'file = "stays.csv"').tables["stays"].section)
    assert exported.rows.equals(of_file.rows)
    assert (
        exported.declaration
        == of_file.declaration
        == config.tables["stays"].declaration.model_copy(update={"columns": exported.declaration.columns})
    )
    run_sql(database, "DELETE FROM stays")
    assert config.tables["stays"].worker_table("stays", tmp_path, {}) == section
    assert len(read_site_table("stays", section)) == 3, "all of a job sees the same rows"


def test_what_a_database_complains_of_stays_at_the_site(
    database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = configured(tmp_path, f'url = "{database}"\ntable = "nowhere"')
    with pytest.raises(DataError) as caught:
        config.tables["stays"].worker_table("stays", tmp_path, {})
    assert str(caught.value) == "table stays: the query failed; see the site's log"
    assert "no table 'nowhere'" in caplog.text
    assert not list(tmp_path.glob("*.parquet*"))


def test_paths_and_addresses_are_redacted_and_the_tables_name_is_not(tmp_path: Path) -> None:
    config = configured(tmp_path, 'url = "postgresql+psycopg://me:pw@host/x"\ntable = "stays"')
    redact = redactor_for(config, tmp_path / "kit")
    assert redact("table stays at postgresql+psycopg://me:pw@host/x") == "table stays at …"
    config = configured(tmp_path, 'sets = { train = "stays.csv" }')
    assert redactor_for(config, tmp_path / "kit")(f"{tmp_path}/stays.csv") == "…"


def test_a_changed_file_or_declaration_changes_the_fingerprint(tmp_path: Path) -> None:
    section = configured(tmp_path, 'sets = { train = "stays.csv" }').tables["stays"].section
    before = data_digest(section)
    assert data_digest({**section, "rows": 3}) != before
    with (tmp_path / "stays.csv").open("a") as file:
        file.write("1,,p9,x\n")
    assert data_digest(section) != before


@pytest.mark.parametrize(
    ("source", "line"),
    [
        ('file = "none.csv"', "[tables.stays] file not found:"),
        ('file = "stays.csv"\nowner = "age"', "owner divides rows among simulated owners; a site is one owner"),
        ('files = ["stays.csv"]', "files divides rows among simulated owners"),
        ('fil = "stays.csv"', "unknown key fil"),
    ],
)
def test_a_wrong_section_is_refused_in_one_line(tmp_path: Path, source: str, line: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(line)):
        configured(tmp_path, source)


def test_data_and_tables_have_names_of_their_own(tmp_path: Path) -> None:
    (tmp_path / "stays.csv").write_text("a,y\n1,2\n")
    text = TABLE.format(source='file = "stays.csv"') + '[data.stays]\nfile = "stays.csv"\ntargets = "y"\n'
    (tmp_path / "site.toml").write_text(text)
    with pytest.raises(ConfigError, match=re.escape("[tables.stays] and [data.stays] have the same name")):
        load_config(tmp_path)


def test_the_check_describes_tables_and_their_rules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(self_check, "CONNECT_SECONDS", 0.0)
    Path("study.toml").write_text(PROJECT)
    assert call(capsys, "provision", "study.toml").code == 0
    kit = tmp_path / "study" / "kits" / "clinic"
    configured(kit, 'file = "stays.csv"')
    (kit / "policy.toml").write_text('[[queries]]\npeople = ["ana"]\ntables = ["stay"]\nallow = ["statistics"]\n')
    out = call(capsys, "site", str(kit), "--check").out
    assert (
        "ok    table stays: 3 rows; age (protected, number, 1 missing, 1 outside of its bounds); "
        "day (protected, date, 1 missing, 1 outside of its bounds); patient (private, text)"
    ) in out
    own = load_config(kit).tables["stays"]
    same = read_rows(*reversed(parse_table(own.section, "test:"))).declaration
    assert f"; declaration {declaration_digest(same)[:12]}\n" in out
    assert "FAILS policy: a [[queries]] rule names table 'stay', which site.toml does not have" in out
    assert "FAILS policy: no [[queries]] rule allows anybody to ask about table 'stays'" in out
    (kit / "stays.csv").write_text("Age,day,patient\n1,,a\n")
    (kit / "policy.toml").write_text(
        '[[queries]]\npeople = ["ana"]\ntables = ["stays"]\nallow = ["statistics"]\nnoise = { epsilon = 2.0 }\n'
    )
    out = call(capsys, "site", str(kit), "--check").out
    assert "stays.csv has no column 'age'; did you mean 'Age'?" in out
    assert "ok    policy: ana may ask stays for statistics: at least 10 rows a number, with noise up to ε = 2" in out


def test_a_site_without_the_extra_is_told_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(ConfigError, match=r"tables need duckdb: pip install .*query"):
        configured(tmp_path, 'file = "stays.csv"')
