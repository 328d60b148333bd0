"""Tables, lease, blobs and the audit's chain, on a real SQLite and a real PostgreSQL."""

import os
import threading
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg
import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from papers import audit_problems, kit_of, provision
from postgres import fresh_database
from sqlalchemy import create_engine, event, text
from sqlalchemy.exc import DBAPIError

from waiting import eventually
from winnow.deploy.jobs.ipc_messages import JobSite
from winnow.deploy.server.audit_store import DatabaseAuditStore
from winnow.deploy.server.blob_store import BlobMissingError, DatabaseBlobStore, open_blob_store
from winnow.deploy.server.database import Database, DatabaseError
from winnow.deploy.server.database_reads import Queries
from winnow.deploy.server.database_writes import LeaderWrites, NewLogLine, RoundOrderError
from winnow.deploy.server.lease import FencedDatabase, Lease, LeaseLostError, lock_lease
from winnow.deploy.server.tables import JobRow, MemberRow, TableBase
from winnow.deploy.trust.audit_log import AuditLog
from winnow.deploy.wire.messages import Blob, DataDescription

PIECE = 1 << 20


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'server.db'}"
    return fresh_database(request.getfixturevalue("postgres"))


@pytest.fixture
def database(url: str) -> Iterator[Database]:
    database = Database(url, idle_timeout=60)
    database.migrate()
    yield database
    database.close()


def a_job(name: str = "job") -> JobRow:
    return JobRow(
        job=name,
        title="trial",
        status="queued",
        reason="",
        submitter="ana",
        organisation="Institute",
        role="lead",
        priority=0,
        round=0,
        rounds=3,
        config="",
        bundle="0" * 64,
        bundle_size=1,
        metrics=b"\x80",
    )


def lead(database: Database, server: str = "a", seconds: float = 5.0) -> tuple[Lease, LeaderWrites]:
    lease = Lease(database, server=server, address=f"grpc://{server}", seconds=seconds)
    assert lease.acquire_or_renew()
    assert lease.token is not None
    return lease, LeaderWrites(fenced=FencedDatabase(database=database, token=lease.token))


def commit(writes: LeaderWrites, number: int, job: str = "job") -> None:
    digest = f"{number:064x}"
    writes.commit_round(
        job,
        number=number,
        rounds=3,
        checkpoint=Blob(digest=digest, size=1),
        settled={"plant-a": {digest: [0]}},
        ended_tasks={"plant-a": [digest]},
        acknowledged={},
        metrics={},
        lines=[NewLogLine(source="server", kind="event", text=str(number))],
    )


# Tables ---------------------------------------------------------------------------------------------------------------


def test_the_migrations_make_the_tables_that_the_code_uses(database: Database) -> None:
    engine = create_engine(database.url)
    with engine.connect() as connection:
        assert compare_metadata(MigrationContext.configure(connection), TableBase.metadata) == []
    engine.dispose()


def test_servers_may_migrate_at_the_same_time(url: str) -> None:
    errors: list[Exception] = []

    def migrate() -> None:
        database = Database(url)
        try:
            database.migrate()
        except Exception as error:
            errors.append(error)
        finally:
            database.close()

    threads = [threading.Thread(target=migrate) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_a_database_of_a_newer_winnow_is_refused_in_one_line(database: Database) -> None:
    with database.write_session() as session:
        session.execute(text("UPDATE alembic_version SET version_num = '9999'"))
    with pytest.raises(DatabaseError, match="newer version of Winnow") as refused:
        database.migrate()
    assert "\n" not in str(refused.value)


@pytest.mark.parametrize("url", ["nonsense", "oracle://x/y", "postgresql://nobody@127.0.0.1:1/none"])
def test_an_address_that_leads_nowhere_is_one_line(url: str) -> None:
    with pytest.raises(DatabaseError) as refused:
        Database(url).migrate()
    assert "\n" not in str(refused.value)


# Lease ----------------------------------------------------------------------------------------------------------------


def test_one_leads_at_a_time_and_tokens_grow(database: Database) -> None:
    first, _ = lead(database, "a", seconds=0.4)
    second = Lease(database, server="b", address="grpc://b", seconds=0.4)
    assert not second.acquire_or_renew()
    leader = second.current_holder()
    assert leader is not None
    assert (leader.server, leader.address, leader.token) == ("a", "grpc://a", 1)
    assert first.acquire_or_renew()
    assert first.token == 1
    time.sleep(0.5)
    assert first.token is None, "it steps down by its own clock"
    assert second.current_holder() is None
    assert second.acquire_or_renew()
    assert second.token == 2
    assert not first.acquire_or_renew()


def test_a_leader_in_doubt_takes_a_new_token(database: Database) -> None:
    lease, writes = lead(database)
    lease.discard()
    assert lease.token is None
    assert lease.acquire_or_renew()
    assert lease.token == 2
    assert lease.acquire_or_renew()
    assert lease.token == 2
    with pytest.raises(LeaseLostError):
        writes.add_job(a_job(), NewLogLine(source="server", kind="log", text="begun before"))


def test_the_clock_of_a_server_does_not_matter(database: Database, monkeypatch: pytest.MonkeyPatch) -> None:
    lead(database, "a")
    real = time.time()
    monkeypatch.setattr(time, "time", lambda: real + 3600)
    assert not Lease(database, server="b", address="", seconds=5.0).acquire_or_renew()


def test_a_standby_asks_again_when_the_lease_runs_out_and_not_later(database: Database) -> None:
    lead(database, "a", seconds=2.0)
    patient = Lease(database, server="b", address="", seconds=60.0)
    assert not patient.acquire_or_renew()
    assert patient.retry_after < 2.5
    time.sleep(patient.retry_after)
    assert patient.acquire_or_renew()
    assert patient.retry_after == 20.0


def test_who_gives_the_lease_back_is_followed_at_once(database: Database) -> None:
    first, _ = lead(database)
    first.release()
    assert first.token is None
    lead(database, "b")


def test_a_restarted_server_does_not_wait_for_its_former_self(database: Database) -> None:
    _, before = lead(database, "a")
    _, after = lead(database, "a")
    assert after.fenced.token == 2
    with pytest.raises(LeaseLostError):
        before.add_job(a_job(), NewLogLine(source="server", kind="log", text=""))


def test_who_lost_the_lease_writes_nothing(database: Database) -> None:
    lease, old = lead(database, "a", seconds=5.0)
    old.add_job(a_job(), NewLogLine(source="server", kind="log", text="x"))
    commit(old, 1)
    lease.release()
    _, new = lead(database, "b")
    for attempt in (
        lambda: commit(old, 2),
        lambda: old.set_status("job", "failed"),
        lambda: old.append("job", [NewLogLine(source="server", kind="log", text="y")]),
        lambda: old.finish("job", {}),
        lambda: old.retire_checkpoints("job", 1),
    ):
        with pytest.raises(LeaseLostError):
            attempt()
    commit(new, 2)
    state = Queries(database=database).job_states()[0]
    assert (state.round, state.status) == (2, "queued")


def test_a_leader_that_stops_within_a_transaction_does_not_keep_others_waiting(postgres: str) -> None:
    """It holds the lock of the lease's row; the database ends its transaction."""
    url = fresh_database(postgres)
    first, second = Database(url, idle_timeout=2), Database(url, idle_timeout=60)
    second.migrate()
    lead(second, "a", seconds=0.2)
    with first.read_session() as asleep:
        lock_lease(asleep)
        lease = Lease(second, server="b", address="", seconds=60.0)
        eventually(lambda: acquires(lease))
        with pytest.raises(DBAPIError, match="idle-in-transaction"):
            asleep.commit()
        asleep.invalidate()
    for database in (first, second):
        database.close()


def test_a_leader_that_stops_within_a_statement_does_not_keep_others_waiting(postgres: str) -> None:
    """Between two messages of a pipeline PostgreSQL takes it for busy, and lets it keep its locks."""
    url = fresh_database(postgres)
    first, second = Database(url, idle_timeout=60), Database(url, idle_timeout=60)
    first.migrate()
    lead(first, "a")[0].release()
    asleep = psycopg.connect(url, application_name=first.application)
    asleep.pgconn.enter_pipeline_mode()
    asleep.pgconn.send_query_params(b"BEGIN", None)
    asleep.pgconn.send_query_params(b"SELECT * FROM lease FOR UPDATE", None)
    asleep.pgconn.send_flush_request()
    asleep.pgconn.flush()
    eventually_locked(second)
    assert Lease(second, server="b", address="", seconds=5.0).acquire_or_renew()
    asleep.close()
    for database in (first, second):
        database.close()


def test_a_connection_in_use_is_closed_with_its_database(postgres: str) -> None:
    """A thread may be in the middle of a transaction while the server stops."""
    database = Database(fresh_database(postgres))
    with database.read_session() as session:
        held = session.connection().connection.dbapi_connection
        database.close()
        assert session.scalar(text("SELECT 1")) == 1
    assert isinstance(held, psycopg.Connection)
    assert held.closed


def acquires(lease: Lease) -> bool:
    with suppress(DBAPIError):  # the row is locked still
        return lease.acquire_or_renew()
    return False


def eventually_locked(database: Database) -> None:
    until = time.monotonic() + 30
    while time.monotonic() < until:
        with database.read_session() as session, suppress(DBAPIError):
            database.limit_lock_wait(session, 0.1)
            lock_lease(session)
            continue
        return
    raise AssertionError("nobody locks the lease")


def test_who_takes_the_lease_ends_the_former_holders_connections(postgres: str) -> None:
    """It may have locked other rows than the lease's."""
    url = fresh_database(postgres)
    first, second = Database(url, idle_timeout=60), Database(url, idle_timeout=60)
    first.migrate()
    lead(first, "a")[0].release()
    with first.read_session() as asleep:
        asleep.execute(text("SELECT * FROM audit_head FOR UPDATE"))
        assert Lease(second, server="b", address="", seconds=5.0).acquire_or_renew()
        with second.write_session() as session:
            second.limit_lock_wait(session, 5.0)
            session.execute(text("SELECT * FROM audit_head FOR UPDATE"))
        with pytest.raises(DBAPIError):
            asleep.execute(text("SELECT 1"))
        asleep.invalidate()
    for database in (first, second):
        database.close()


# Rounds ---------------------------------------------------------------------------------------------------------------


def test_rounds_come_one_by_one(database: Database) -> None:
    _, writes = lead(database)
    writes.add_job(a_job(), NewLogLine(source="server", kind="log", text="x"))
    commit(writes, 1)
    for wrong in (1, 3, 0):
        with pytest.raises(RoundOrderError):
            commit(writes, wrong)
    commit(writes, 2)
    queries = Queries(database=database)
    last = queries.last_round("job")
    assert last is not None
    assert (last.number, last.settled) == (2, {"plant-a": {f"{2:064x}": [0]}})
    assert [line.text for line in queries.lines("job", 0, kind="event")] == ["1", "2"]
    writes.set_status("job", "aborted")
    with pytest.raises(RoundOrderError):
        commit(writes, 3)


def test_what_a_site_has_not_heard_is_found_again(database: Database) -> None:
    _, writes = lead(database)
    writes.add_job(a_job(), NewLogLine(source="server", kind="log", text="x"))
    writes.offer_job("job", ["plant-a", "plant-b"])
    tasks = {number: f"{number:064x}" for number in (1, 2, 3)}
    for number, task in tasks.items():
        writes.commit_round(
            "job",
            number=number,
            rounds=3,
            checkpoint=Blob(digest=task, size=1),
            settled={"plant-a": {task: [0]}, **({"plant-b": {task: [5]}} if number == 1 else {})},
            ended_tasks={"plant-a": [task], **({"plant-b": [tasks[1]]} if number == 2 else {})},
            acknowledged={"plant-a": number - 1, "plant-b": 0},
            metrics={},
            lines=[],
        )
    queries = Queries(database=database)
    heard = {member.site: member.acknowledged_round for member in queries.members("job")}
    assert heard == {"plant-a": 2, "plant-b": 0}
    found = [
        (site, order.round, order.tasks, order.ended_tasks) for site, order in queries.pending_settles("job", heard)
    ]
    assert found == [
        ("plant-b", 1, {tasks[1]: [5]}, []),
        ("plant-b", 2, {}, [tasks[1]]),
        ("plant-a", 3, {tasks[3]: [0]}, [tasks[3]]),
    ]


def test_a_site_is_known_as_it_described_itself_last_until_the_job_begins(database: Database) -> None:
    _, writes = lead(database)
    writes.add_job(a_job(), NewLogLine(source="server", kind="log", text="x"))
    writes.offer_job("job", ["plant-a"])
    first, second, third = (DataDescription(sizes=[size]) for size in (1, 2, 3))

    def described() -> tuple[str, DataDescription | None]:
        [member] = Queries(database=database).members("job")
        with database.read_session() as session:
            return session.get_one(MemberRow, ("job", "plant-a")).state, member.data

    for data in (first, second):
        writes.record_join("job", "plant-a", accepted=True, reason="", data=data)
        assert described() == ("accepted", data)
    assert writes.start_job("job", [JobSite(site="plant-a", first_client=0, data=second)])
    writes.record_join("job", "plant-a", accepted=False, reason="too late", data=third)
    assert described() == ("accepted", second)


def test_an_end_is_final(database: Database) -> None:
    _, writes = lead(database)
    writes.add_job(a_job(), NewLogLine(source="server", kind="log", text="x"))
    assert writes.set_status("job", "aborted", "why")
    assert not writes.set_status("job", "running")
    assert not writes.finish("job", {})
    assert not writes.start_job("job", [])
    assert Queries(database=database).job_states()[0].status == "aborted"


def test_checkpoints_are_retired_but_what_is_named_elsewhere_stays(database: Database) -> None:
    _, writes = lead(database)
    writes.add_job(a_job(), NewLogLine(source="server", kind="log", text="x"))
    for number in (1, 2, 3, 4):
        commit(writes, number)
    assert writes.retire_checkpoints("job", 2) == [f"{number:064x}" for number in (1, 2)]
    writes.finish("job", {"model": Blob(digest=f"{3:064x}", size=1)})
    assert writes.retire_checkpoints("job", 1) == []
    last = Queries(database=database).last_round("job")
    assert last is not None
    assert last.checkpoint == Blob(digest=f"{4:064x}", size=1)


# Blobs ----------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [0, 1, PIECE, 2 * PIECE + 5])
def test_a_blob_comes_back_from_any_byte_on(database: Database, tmp_path: Path, size: int) -> None:
    blobs = open_blob_store(lead(database)[1].fenced, tmp_path / "blobs")
    content = os.urandom(size)
    (tmp_path / "file").write_bytes(content)
    blob = blobs.put("job", tmp_path / "file")
    assert blobs.put("job", tmp_path / "file") == blob == blobs.find("job", blob.digest)
    for offset in {0, 1, size // 2, PIECE - 1, PIECE, PIECE + 1, size}:
        if offset <= size:
            assert b"".join(blobs.read("job", blob, offset)) == content[offset:]
    assert blobs.find("other", blob.digest) is None
    blobs.remove("job", [blob.digest])
    assert blobs.find("job", blob.digest) is None
    with pytest.raises(BlobMissingError):
        b"".join(blobs.read("job", blob))


def test_a_large_blob_is_removed_in_pieces_between_which_the_lease_is_renewed(
    postgres: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Deleting a gigabyte takes longer than a lease: under one lock the leader would lose its own."""
    database = Database(fresh_database(postgres))
    database.migrate()
    blobs = open_blob_store(lead(database)[1].fenced, tmp_path)
    (tmp_path / "large").write_bytes(os.urandom(5 * PIECE))
    blob = blobs.put("job", tmp_path / "large")
    monkeypatch.setattr("winnow.deploy.server.blob_store.CHUNKS_PER_DELETE", 2)
    deleted: list[int] = []

    def count(connection: Any, cursor: Any, statement: str, *_: object) -> None:
        if statement.startswith("DELETE FROM chunks"):
            deleted.append(cursor.rowcount)

    event.listen(database._engine, "after_cursor_execute", count)
    blobs.remove("job", [blob.digest])
    assert deleted == [2, 2, 1, 0]
    assert blobs.digests("job") == set()
    assert blobs.find("job", blob.digest) is None
    database.close()


def test_a_put_that_broke_off_is_finished_by_the_next_leader(postgres: str, tmp_path: Path) -> None:
    database = Database(fresh_database(postgres))
    database.migrate()
    content = os.urandom(3 * PIECE)
    (tmp_path / "file").write_bytes(content)
    fence = lead(database)[1].fenced
    blobs, broken = DatabaseBlobStore(fence), DatabaseBlobStore(fence)
    calls = []

    def break_off(job: str, blob: Blob, number: int, piece: bytes) -> None:
        calls.append(number)
        if number == 2:
            raise ConnectionError
        DatabaseBlobStore._put_chunk(broken, job, blob, number, piece)

    broken._put_chunk = break_off  # type: ignore[method-assign]
    with pytest.raises(ConnectionError):
        broken.put("job", tmp_path / "file")
    blob = blobs.put("job", tmp_path / "file")
    assert b"".join(blobs.read("job", blob)) == content
    database.close()


# Audit ----------------------------------------------------------------------------------------------------------------


def test_servers_extend_one_chain_and_any_edit_is_found(database: Database, tmp_path: Path) -> None:
    provision(tmp_path)
    kit = kit_of(tmp_path, "server-1")
    logs = [AuditLog(DatabaseAuditStore(database), kit) for _ in range(3)]

    def write(log: AuditLog) -> None:
        for number in range(5):
            log.note("test", str(number), "done")

    threads = [threading.Thread(target=write, args=(log,)) for log in logs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    store = DatabaseAuditStore(database)
    assert len(list(store.lines())) == 15
    assert audit_problems(store, kit.authority) == []
    with database.write_session() as session:
        session.execute(text("DELETE FROM audit WHERE seq = 15"))
    assert audit_problems(store, kit.authority)
