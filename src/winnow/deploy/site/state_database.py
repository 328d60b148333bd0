"""The SQLite file of a site's state: its tables, its transactions, and its errors as one line each."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec

from winnow.core.errors import WinnowError
from winnow.deploy.trust.private_file_writing import make_private_folder

SCHEMA = """
CREATE TABLE IF NOT EXISTS jobs (job TEXT PRIMARY KEY, deploy BLOB NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS replies (
    job TEXT NOT NULL, task TEXT NOT NULL, client INTEGER NOT NULL, round INTEGER NOT NULL,
    answer BLOB NOT NULL, payload TEXT, keep TEXT, life TEXT NOT NULL,
    PRIMARY KEY (job, task, client)
) STRICT;
CREATE TABLE IF NOT EXISTS kept (
    job TEXT NOT NULL, client INTEGER NOT NULL, file TEXT NOT NULL, settled INTEGER NOT NULL,
    PRIMARY KEY (job, client)
) STRICT;
CREATE TABLE IF NOT EXISTS submissions (submission TEXT PRIMARY KEY, job TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS data (submission TEXT PRIMARY KEY, digest TEXT NOT NULL) STRICT;
CREATE TABLE IF NOT EXISTS departures (
    submission TEXT NOT NULL, client INTEGER NOT NULL, what TEXT NOT NULL,
    round INTEGER NOT NULL, times INTEGER NOT NULL,
    PRIMARY KEY (submission, client, what)
) STRICT;
CREATE TABLE IF NOT EXISTS numbering (
    submission TEXT NOT NULL, site TEXT NOT NULL, first INTEGER NOT NULL, clients INTEGER NOT NULL,
    PRIMARY KEY (submission, site)
) STRICT;
CREATE TABLE IF NOT EXISTS notes (
    submission TEXT NOT NULL, client INTEGER NOT NULL, what TEXT NOT NULL, round INTEGER NOT NULL, note BLOB NOT NULL,
    PRIMARY KEY (submission, client, what)
) STRICT;
CREATE TABLE IF NOT EXISTS ballots (
    submission TEXT NOT NULL, client INTEGER NOT NULL, ballot BLOB NOT NULL, content BLOB NOT NULL,
    PRIMARY KEY (submission, client, ballot)
) STRICT;
CREATE TABLE IF NOT EXISTS budgets (
    submission TEXT PRIMARY KEY, person TEXT NOT NULL, "table" TEXT NOT NULL, rho REAL NOT NULL,
    booked REAL NOT NULL, counts INTEGER NOT NULL
) STRICT;
"""
VERSION = 1
"""Of the messages that the tables hold, in the database's `user_version`. Winnow 0.1 wrote version 0."""
MESSAGES = (("jobs", "deploy", "DeployJob"), ("replies", "answer", "ClientResult"))
"""Tables and columns that hold messages, and the tags of these."""
RENAMED_FIELDS = {
    "letters": "peer_messages",
    "neighbours": "peer_sites",
    "clients_from": "first_client",
    "clients": "client_count",
}
"""Fields of messages in version 0, and their names today."""
REMOVED_FIELDS = {"organisation", "role"}


class StateStoreError(WinnowError):
    """The site's state cannot be read or written."""


class SiteDatabase:
    """Any thread may use it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()
        with self.wrapping_errors():
            make_private_folder(path.parent)
            self._connection = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
        try:
            self._prepare()
        except BaseException:
            self._connection.close()
            raise

    def rows(self, query: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock, self.wrapping_errors():
            return self._connection.execute(query, values).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self.wrapping_errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    @contextmanager
    def wrapping_errors(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError, msgspec.MsgspecError) as error:
            raise StateStoreError(f"cannot use the site's state in {self._path}: {error}") from error

    def close(self) -> None:
        with self._lock:
            self._connection.close()

    def _prepare(self) -> None:
        with self.wrapping_errors():
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            self._connection.execute("PRAGMA cache_size = -256")  # kilobytes: an idle site is a small process
            self._connection.executescript(SCHEMA)
            self._upgrade()

    def _upgrade(self) -> None:
        """Rewrite the messages of an older version: release records and client state stay, jobs can be stopped."""
        [(version,)] = self.rows("PRAGMA user_version")
        if version > VERSION:
            raise StateStoreError(f"a newer Winnow wrote the site's state in {self._path}; upgrade this site")
        if version == VERSION:
            return
        with self.transaction() as database:
            for table, column, tag in MESSAGES:
                for row, message in database.execute(f"SELECT rowid, {column} FROM {table}").fetchall():  # noqa: S608
                    upgraded = _upgraded(message, tag)
                    database.execute(f"UPDATE {table} SET {column} = ? WHERE rowid = ?", (upgraded, row))  # noqa: S608
            database.execute(f"PRAGMA user_version = {VERSION}")


def _upgraded(message: bytes, tag: str) -> bytes:
    fields = _renamed(msgspec.msgpack.decode(message, type=dict[str, Any]))
    return msgspec.msgpack.encode({**fields, "type": tag})


def _renamed(fields: dict[str, Any]) -> dict[str, Any]:
    renamed = {RENAMED_FIELDS.get(name, name): value for name, value in fields.items() if name not in REMOVED_FIELDS}
    if "peer_sites" in renamed:
        renamed["peer_sites"] = [_renamed(site) for site in renamed["peer_sites"]]
    return renamed
