"""The database: SQLite in a file, or a PostgreSQL that several servers share. Its clock is the only one that counts."""

import logging
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from uuid import uuid4

from alembic import command
from alembic.config import Config
from alembic.util import CommandError
from sqlalchemy import Connection, create_engine, event, make_url, text
from sqlalchemy.exc import ArgumentError, DBAPIError, OperationalError, SQLAlchemyError
from sqlalchemy.orm import Session
from sqlalchemy.pool import ConnectionPoolEntry

from winnow.core import WinnowError

MIGRATIONS = Path(__file__).with_name("migrations")
MIGRATION_LOCK = 0x77696E6E
"""Key of the advisory lock under which a PostgreSQL is migrated: two servers may start at once."""
MIGRATION_IDLE = "1min"
"""Between statements Alembic imports the next step, which takes a while on a busy machine."""
WRITE_OPTIONS = {"writes": True}
SQLITE_TIMEOUT = 30.0
"""Seconds to wait for other writers."""
log = logging.getLogger(__name__)
logging.getLogger("alembic").setLevel(logging.WARNING)
SQLITE_NOW = "SELECT (julianday('now') - 2440587.5) * 86400.0"
POSTGRES_NOW = "SELECT extract(epoch FROM clock_timestamp())::double precision"


class DatabaseError(WinnowError):
    """The database cannot be reached, or is not one that this Winnow can use."""


class Database:
    """Transactions for reading and for writing, each short; blocking, for threads.

    `idle_timeout` is how long a transaction may be idle before the database ends it: a server that was stopped in
    the middle of one must not keep the lease's row locked.
    """

    def __init__(self, url: str, *, idle_timeout: float = 2.0) -> None:
        self.application = f"winnow-{uuid4().hex}"
        """Under this name a PostgreSQL knows the connections of this process."""
        try:
            self.url = make_url(url)
            self.shared = self.url.get_backend_name() == "postgresql"
            if self.shared:
                self.url = self.url.set(drivername="postgresql+psycopg")
            self._engine = create_engine(self.url, **self._arguments(idle_timeout))
        except (ArgumentError, ModuleNotFoundError) as error:
            raise DatabaseError(
                f"database = {url!r} is not a database URL; use sqlite:///FILE or postgresql://USER@HOST/NAME"
            ) from error
        self._writing = self._engine.execution_options(**WRITE_OPTIONS)
        self._closed = False
        event.listen(self._engine, "checkin", self._close_late)
        if not self.shared:
            event.listen(self._engine, "connect", _prepare_sqlite)
            event.listen(self._engine, "begin", _begin_sqlite)

    def _arguments(self, idle_timeout: float) -> dict[str, Any]:
        if not self.shared:
            return {"connect_args": {"timeout": SQLITE_TIMEOUT}}
        milliseconds = int(idle_timeout * 1000)
        options = f"-c idle_in_transaction_session_timeout={milliseconds} -c lock_timeout=10000"
        connecting = {
            "application_name": self.application,
            "options": options,
            "connect_timeout": 5,
            "tcp_user_timeout": 5000,
            "keepalives_idle": 2,
        }
        return {"connect_args": connecting, "pool_pre_ping": True, "pool_size": 10, "max_overflow": 20}

    @contextmanager
    def read_session(self) -> Iterator[Session]:
        with Session(self._engine) as session:
            yield session

    @contextmanager
    def write_session(self) -> Iterator[Session]:
        """A transaction that is kept if nothing is raised. On SQLite it waits here for the writer before it."""
        with Session(self._writing, expire_on_commit=False) as session, session.begin():
            yield session

    def now(self, session: Session) -> float:
        """Seconds since 1970 by the database's clock, not by the transaction's beginning."""
        return float(session.scalar(text(POSTGRES_NOW if self.shared else SQLITE_NOW)) or 0.0)

    def limit_lock_wait(self, session: Session, seconds: float) -> None:
        """Give up on a row that others have locked for so long; SQLite has no such rows."""
        if self.shared:
            session.execute(text(f"SET LOCAL lock_timeout = {int(seconds * 1000)}"))

    def disconnect(self, application: str) -> None:
        """End all connections of another process, and with them its transactions and locks.

        `idle_in_transaction_session_timeout` does not do it: a process that was stopped between two messages of one
        statement is not idle to PostgreSQL, and keeps its locks for as long as it is stopped.
        """
        if not self.shared or application == self.application:
            return
        named = text("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = :name")
        try:
            with self.write_session() as session:
                session.execute(named, {"name": application})
        except DBAPIError as error:  # servers with roles of their own need pg_signal_backend
            log.warning(
                "cannot end the former leader's connections to the database, which stay open (grant this server's role "
                "pg_signal_backend): %s",
                _first_line(error),
            )

    def migrate(self) -> None:
        """Bring the tables to what this Winnow needs."""
        try:
            with self._writing.begin() as connection:
                if self.shared:
                    connection.execute(text("SET LOCAL lock_timeout = 0"))
                    connection.execute(text(f"SET LOCAL idle_in_transaction_session_timeout = '{MIGRATION_IDLE}'"))
                    connection.execute(text("SELECT pg_advisory_xact_lock(:key)"), {"key": MIGRATION_LOCK})
                command.upgrade(_alembic(connection), "head")
        except OperationalError as error:
            raise DatabaseError(f"cannot reach the database {self}: {_first_line(error)}") from error
        except CommandError as error:
            raise DatabaseError(
                f"{self} was created by a newer version of Winnow ({error}); update this server"
            ) from error

    def close(self) -> None:
        self._closed = True
        self._engine.dispose()

    def _close_late(self, connection: Any, record: ConnectionPoolEntry) -> None:
        """Close what a thread still used when all others were closed: its pool is gone, and nobody else would."""
        if self._closed and connection is not None:
            record.invalidate()

    def __str__(self) -> str:
        return self.url.render_as_string(hide_password=True)


def _alembic(connection: Connection) -> Config:
    config = Config()
    config.set_main_option("script_location", str(MIGRATIONS).replace("%", "%%"))
    config.attributes["connection"] = connection
    return config


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    """Transactions begin when we say so; a commit is on the disk when it returns. Each of many connections keeps half
    a megabyte of the database in memory, not the usual two.
    """
    connection.isolation_level = None
    _write_ahead(connection)
    for pragma in ("synchronous=FULL", "foreign_keys=ON", "cache_size=-512"):
        connection.execute(f"PRAGMA {pragma}")


def _write_ahead(connection: Any) -> None:
    """SQLite itself does not wait for others who are about to do the same with a new database."""
    until = time.monotonic() + SQLITE_TIMEOUT
    while True:
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > until:
                raise
        time.sleep(0.02)


def _begin_sqlite(connection: Connection) -> None:
    writes = connection.get_execution_options().get("writes", False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _first_line(error: SQLAlchemyError) -> str:
    return str(getattr(error, "orig", error)).strip().split("\n", maxsplit=1)[0]
