"""What a site must not forget when it is killed: its jobs, replies that were made, and what its clients keep.

SQLite knows which files count; files are written before they are mentioned there and deleted after, so a site that is
killed in between has at most a file too many, which `Job` sweeps up.
"""

import sqlite3
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from threading import Lock
from typing import Any

import msgspec

from winnow.core.errors import WinnowError
from winnow.deploy.trust.private_files import make_private_folder
from winnow.deploy.wire.messages import ClientResult, DeployJob, Settle
from winnow.learn.party_identities import UPDATE

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
"""


class StateStoreError(WinnowError):
    """The site's own records cannot be read or written."""


class StoredResult(msgspec.Struct, frozen=True, kw_only=True):
    """A reply: the answer as it is sent, and the names of its files."""

    answer: ClientResult
    round: int
    payload: str | None = None
    keep: str | None = None
    life: str = ""
    """The process whose secrets the reply depends on; empty where it may be given whenever it is asked for."""


class SiteStateStore:
    """One file; any thread may use it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._lock = Lock()
        with self._told():
            make_private_folder(path.parent)
            self._base = sqlite3.connect(path, check_same_thread=False, isolation_level=None)
            self._base.execute("PRAGMA journal_mode = WAL")
            self._base.execute("PRAGMA synchronous = FULL")
            self._base.execute("PRAGMA cache_size = -256")  # kilobytes: an idle site is a small process
            self._base.executescript(SCHEMA)

    def jobs(self) -> list[str]:
        return [job for (job,) in self._rows("SELECT job FROM jobs ORDER BY job")]

    def deployed(self, job: str) -> DeployJob | None:
        rows = self._rows("SELECT deploy FROM jobs WHERE job = ?", job)
        return msgspec.msgpack.decode(rows[0][0], type=DeployJob) if rows else None

    def remember(self, deploy: DeployJob) -> None:
        with self._changing() as base:
            base.execute("INSERT OR REPLACE INTO jobs VALUES (?, ?)", (deploy.job, msgspec.msgpack.encode(deploy)))

    def forget(self, job: str) -> None:
        with self._changing() as base:
            for statement in (
                "DELETE FROM jobs WHERE job = ?",
                "DELETE FROM replies WHERE job = ?",
                "DELETE FROM kept WHERE job = ?",
            ):
                base.execute(statement, (job,))

    def add(self, made: StoredResult) -> None:
        answer = made.answer
        row = (answer.job, answer.task, answer.client, made.round, msgspec.msgpack.encode(answer))
        with self._changing() as base:
            base.execute(
                "INSERT OR REPLACE INTO replies VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (*row, made.payload, made.keep, made.life),
            )

    def made(self, job: str, task: str) -> dict[int, StoredResult]:
        rows = self._rows(
            "SELECT client, round, answer, payload, keep, life FROM replies WHERE job = ? AND task = ?", job, task
        )
        return {
            client: StoredResult(
                answer=msgspec.msgpack.decode(answer, type=ClientResult),
                round=at,
                payload=payload,
                keep=keep,
                life=life,
            )
            for client, at, answer, payload, keep, life in rows
        }

    def kept(self, job: str) -> dict[int, str]:
        return dict(self._rows("SELECT client, file FROM kept WHERE job = ?", job))

    def drop(self, made: StoredResult) -> None:
        """Forget a reply for which nobody waits any more."""
        answer = made.answer
        with self._changing() as base:
            base.execute(
                "DELETE FROM replies WHERE job = ? AND task = ? AND client = ?",
                (answer.job, answer.task, answer.client),
            )

    def settle(self, order: Settle) -> None:
        """Keep what the clients listed with tasks proposed, and forget their replies, and all that is left of tasks
        that are over. Others go on: a workflow need not wait for everybody before it ends a round.

        Rounds may be settled again, in any order: what a later one had a client keep stays.
        """
        folded = [(order.job, task, client) for task, clients in order.tasks.items() for client in clients]
        with self._changing() as base:
            base.executemany(
                "INSERT INTO kept SELECT job, client, keep, ? FROM replies"
                " WHERE job = ? AND task = ? AND client = ? AND keep IS NOT NULL"
                " ON CONFLICT DO UPDATE SET file = excluded.file, settled = excluded.settled"
                " WHERE excluded.settled >= settled",
                [(order.round, *key) for key in folded],
            )
            base.executemany("DELETE FROM replies WHERE job = ? AND task = ? AND client = ?", folded)
            base.executemany(
                "DELETE FROM replies WHERE job = ? AND task = ?", [(order.job, task) for task in order.ended_tasks]
            )

    def claim(self, submission: str, job: str) -> str:
        """The name under which what an author submitted runs here: this one, if it had none. It outlives the job."""
        with self._changing() as base:
            base.execute("INSERT INTO submissions VALUES (?, ?) ON CONFLICT DO NOTHING", (submission, job))
        [(name,)] = self._rows("SELECT job FROM submissions WHERE submission = ?", submission)
        return str(name)

    def numbering(self, submission: str) -> dict[str, range]:
        """Which clients of a job are at which sites, as it was fixed."""
        rows = self._rows("SELECT site, first, clients FROM numbering WHERE submission = ?", submission)
        return {site: range(first, first + clients) for site, first, clients in rows}

    def number(self, submission: str, numbers: Mapping[str, range]) -> None:
        """Fix the numbers of sites' clients in a job; who has numbers keeps them. They outlive the job."""
        rows = [(submission, site, clients.start, len(clients)) for site, clients in numbers.items()]
        with self._changing() as base:
            base.executemany("INSERT INTO numbering VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING", rows)

    def first_digest(self, submission: str) -> str | None:
        """That of the data with which a submission started here, if it has."""
        rows = self._rows("SELECT digest FROM data WHERE submission = ?", submission)
        return str(rows[0][0]) if rows else None

    def fix_digest(self, submission: str, digest: str) -> str:
        """The same, and it starts now if it has not: that outlives the job."""
        with self._changing() as base:
            base.execute("INSERT INTO data VALUES (?, ?) ON CONFLICT DO NOTHING", (submission, digest))
        return self.first_digest(submission) or digest

    def release(
        self, submission: str, client: int, round: int, what: str, note: bytes = b"", instead_of: bytes = b""
    ) -> int:
        """Note that something leaves; how often it has with this time, or 0 if it had in this round or a later one.

        A client is known by its place among the site's own, from 0 on, for its number in the job is the server's word.
        This outlives the job: whoever has it deployed once more does not get the same update into another sum, nor the
        same numbers under other noise. What left in this round with the note `instead_of` leaves again, and counts
        once.
        """
        with self._changing() as base:
            noted = base.execute(
                "INSERT INTO departures VALUES (?, ?, ?, ?, 1)"
                " ON CONFLICT DO UPDATE SET round = excluded.round, times = times + 1 WHERE excluded.round > round"
                " RETURNING times",
                (submission, client, what, round),
            ).fetchall()
            if not noted and instead_of:
                noted = base.execute(
                    "SELECT times FROM departures JOIN notes USING (submission, client, what, round)"
                    " WHERE submission = ? AND client = ? AND what = ? AND round = ? AND note = ?",
                    (submission, client, what, round, instead_of),
                ).fetchall()
            if noted:  # also without a note: one that stayed from before would let it out again
                base.execute(
                    "INSERT OR REPLACE INTO notes VALUES (?, ?, ?, ?, ?)", (submission, client, what, round, note)
                )
            return int(noted[0][0]) if noted else 0

    def noted(self, submission: str, client: int, round: int) -> bytes:
        """The note with which an update of this round has left."""
        question = "SELECT note FROM notes WHERE submission = ? AND client = ? AND what = ? AND round = ?"
        rows = self._rows(question, submission, client, UPDATE, round)
        return bytes(rows[0][0]) if rows else b""

    def cast(self, submission: str, client: int, ballot: bytes, content: bytes) -> bool:
        """Whether this, and nothing else, was or is now signed for a ballot."""
        digest = sha256(content).digest()
        with self._changing() as base:
            base.execute("INSERT OR IGNORE INTO ballots VALUES (?, ?, ?, ?)", (submission, client, ballot, digest))
            [(found,)] = base.execute(
                "SELECT content FROM ballots WHERE submission = ? AND client = ? AND ballot = ?",
                (submission, client, ballot),
            ).fetchall()
        return bool(found == digest)

    def files(self, job: str) -> set[str]:
        """All that must stay on the disk."""
        rows = self._rows("SELECT payload, keep FROM replies WHERE job = ?", job)
        return {name for row in rows for name in row if name} | set(self.kept(job).values())

    def close(self) -> None:
        with self._lock:
            self._base.close()

    def _rows(self, question: str, *values: object) -> list[tuple[Any, ...]]:
        with self._lock, self._told():
            return self._base.execute(question, values).fetchall()

    @contextmanager
    def _changing(self) -> Iterator[sqlite3.Connection]:
        with self._lock, self._told():
            self._base.execute("BEGIN IMMEDIATE")
            try:
                yield self._base
                self._base.execute("COMMIT")
            except BaseException:
                if self._base.in_transaction:
                    self._base.execute("ROLLBACK")
                raise

    @contextmanager
    def _told(self) -> Iterator[None]:
        try:
            yield
        except (sqlite3.Error, OSError) as error:
            raise StateStoreError(f"the site's records in {self._path} cannot be used: {error}") from error
