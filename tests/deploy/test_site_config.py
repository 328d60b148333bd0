"""A site's own file: what it offers, and where its data are."""

import os
import sqlite3
import threading
import time
from pathlib import Path

import pytest
from postgres import fresh_database

from winnow.core import ConfigError, DataError
from winnow.deploy.site.config import Redactor, SiteConfig, load_config, redactor_for
from winnow.deploy.site.database_query_export import fetch_rows
from winnow.deploy.site.resource_pool import InsufficientResourcesError, ResourcePool, machine_resources
from winnow.deploy.wire.messages import Resources


def written(folder: Path, text: str) -> SiteConfig:
    (folder / "rows.csv").write_text("a,y\n1,2\n")
    (folder / "clients").mkdir(exist_ok=True)
    (folder / "site.toml").write_text(text)
    return load_config(folder)


def test_without_a_file_the_machine_is_offered_and_no_data(tmp_path: Path) -> None:
    config = load_config(tmp_path)
    assert config.resources == machine_resources()
    assert config.data == {}
    assert config.state == str(tmp_path / "state")


def test_a_worker_is_told_how_to_read_and_no_more(tmp_path: Path) -> None:
    config = written(
        tmp_path,
        '[data.rows]\nfile = "rows.csv"\ntargets = ["y"]\nlocal_test = 0.2\n'
        '[data.many]\nfolder = "clients"\nclasses = ["no", "yes"]\n'
        '[data.base]\nurl = "sqlite:///x"\nquery = "SELECT 1"\ntargets = "y"\nowner = "ward"\n',
    )
    assert config.data["rows"].worker_table() == {
        "file": str(tmp_path / "rows.csv"),
        "targets": ["y"],
        "local_test": 0.2,
    }
    assert config.data["many"].worker_table() == {"folder": str(tmp_path / "clients"), "classes": ["no", "yes"]}
    assert config.data["base"].worker_table(tmp_path / "x.csv") == {
        "file": str(tmp_path / "x.csv"),
        "targets": "y",
        "owner": "ward",
    }


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[data.x]\n", r"\[data.x\] needs one of file, folder or query"),
        ('[data.x]\nfile = "rows.csv"\nfolder = "clients"\n', "needs one of"),
        ('[data.x]\nfile = "none.csv"\n', "file not found: .*none.csv"),
        ('[data.x]\nfile = "rows.xlsx"\n', "has an unsupported type; use one of .csv"),
        ('[data.x]\nfolder = "nowhere"\n', "folder not found"),
        ('[data.x]\nquery = "SELECT 1"\n', "needs url and query together"),
        ('[data.x]\nurl = "sqlite://"\nquery = "SELECT 1"\n', r"needs targets"),
        ('[data.x]\nfile = "rows.csv"\nlocal_test = 1.5\n', "local_test"),
        ('[data.x]\nfile = "rows.csv"\nown_test = 0.2\n', "data.x.own_test is now data.x.local_test"),
        ('[data."../x"]\nfile = "rows.csv"\n', "site.toml"),
        ("[resources]\ncpus = -1\n", "cpus"),
        ("colour = 1\n", "colour"),
        ("[data", "not valid TOML"),
    ],
)
def test_a_mistake_is_one_line(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(ConfigError, match=problem) as caught:
        written(tmp_path, text)
    assert "\n" not in str(caught.value)


def test_what_is_secret_is_taken_out_of_what_is_said(tmp_path: Path) -> None:
    url = "postgresql://reader:pass@db.clinic.example/stays"
    config = written(tmp_path, f'[data.base]\nurl = "{url}"\nquery = "SELECT a FROM t"\ntargets = "a"\n')
    discreet = redactor_for(config, tmp_path)
    said = discreet(f"cannot open {url} nor {tmp_path}/state/x for SELECT a FROM t")
    assert said == "cannot open … nor …/x for …"
    assert "pass" not in repr(discreet)
    assert Redactor.of(["", "/"])("a / b") == "a / b"


@pytest.fixture(params=["sqlite", "postgresql"])
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        with sqlite3.connect(tmp_path / "base.db") as base:
            base.execute("CREATE TABLE IF NOT EXISTS stays (age REAL, ward TEXT)")
            base.executemany("INSERT INTO stays VALUES (?, ?)", [(0.1, "a"), (2.0, "b, c")])
        base.close()
        return f"sqlite:///{tmp_path / 'base.db'}"
    url = fresh_database(request.getfixturevalue("postgres"))
    from sqlalchemy import create_engine, text

    engine = create_engine(url)
    with engine.begin() as connection:
        connection.execute(text("DROP TABLE IF EXISTS stays"))
        connection.execute(text("CREATE TABLE stays (age DOUBLE PRECISION, ward TEXT)"))
        connection.execute(text("INSERT INTO stays VALUES (0.1, 'a'), (2.0, 'b, c')"))
    engine.dispose()
    return url


def test_the_rows_of_a_query_are_a_file_and_stay_as_they_were(database: str, tmp_path: Path) -> None:
    rows = tmp_path / "rows.csv"
    fetch_rows("stays", database, "SELECT age, ward FROM stays ORDER BY age", rows)
    assert rows.read_text().splitlines() == ["age,ward", "0.1,a", '2.0,"b, c"']
    fetch_rows("stays", database, "SELECT nonsense", rows)
    assert rows.read_text().splitlines()[0] == "age,ward"


def test_a_query_only_reads(database: str, tmp_path: Path) -> None:
    for number, statement in enumerate(("INSERT INTO stays VALUES (1, 'x') RETURNING age", "DROP TABLE stays")):
        with pytest.raises(DataError, match="data stays: the query failed") as caught:
            fetch_rows("stays", database, statement, tmp_path / f"{number}.csv")
        assert str(caught.value) == "data stays: the query failed; see the site's log"
        assert list(tmp_path.glob(f"{number}.csv")) == []
    fetch_rows("stays", database, "SELECT count(*) AS n FROM stays", tmp_path / "count.csv")
    assert (tmp_path / "count.csv").read_text().split() == ["n", "2"]


def test_what_a_database_complains_of_stays_at_the_site(
    database: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with pytest.raises(DataError) as caught:
        fetch_rows("stays", database, "SELECT age FROM stays WHERE ward = patient_x", tmp_path / "rows.csv")
    assert "patient_x" not in str(caught.value)
    assert "patient_x" in caplog.text


def test_a_query_ends_with_its_job(tmp_path: Path) -> None:
    endless = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n"
    begun = time.monotonic()
    with pytest.raises(DataError, match="the query was cancelled"):
        fetch_rows("stays", "sqlite://", endless, tmp_path / "rows.csv", lambda: time.monotonic() > begun + 1.0)
    assert time.monotonic() < begun + 60.0
    children = Path(f"/proc/{os.getpid()}/task/{threading.get_native_id()}/children").read_text().split()
    assert not any(
        b"winnow.deploy.site.database_query_export" in Path(f"/proc/{each}/cmdline").read_bytes() for each in children
    )


def test_the_room_is_given_out_and_taken_back() -> None:
    room = ResourcePool(Resources(cpus=2, memory_mb=1000, gpus=2))
    first = room.allocate("a", Resources(cpus=1, memory_mb=600, gpus=1))
    assert room.allocate("a", Resources(cpus=9)) is first
    with pytest.raises(InsufficientResourcesError, match="asks for 600 MB of memory; this site has 400 free now"):
        room.allocate("b", Resources(cpus=1, memory_mb=600))
    second = room.allocate("b", Resources(cpus=1, memory_mb=400, gpus=1))
    assert (first.gpus, second.gpus) == ([0], [1])
    assert room.free() == Resources(cpus=0, memory_mb=0, gpus=0)
    room.release("a")
    assert room.free() == Resources(cpus=1, memory_mb=600, gpus=1)
