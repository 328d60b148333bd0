"""What a site records about a submission, by what its author signed. These records outlive the job.

A server that deploys a job again, under any name, gets neither the same update into another sum nor the same values
under other noise.
"""

import sqlite3
from collections.abc import Mapping
from hashlib import sha256

from winnow.deploy.site.state_database import SiteDatabase
from winnow.learn.party_signing_interface import UPDATE


class SubmissionRecords:
    """Clients are known by their index among the site's own, from 0 on: the server assigns their numbers in a job."""

    def __init__(self, database: SiteDatabase) -> None:
        self._database = database

    def claim(self, submission: str, job: str) -> str:
        """The name of the job under which a submission runs here: this one, if it had none."""
        with self._database.transaction() as database:
            database.execute("INSERT INTO submissions VALUES (?, ?) ON CONFLICT DO NOTHING", (submission, job))
        [(name,)] = self._database.rows("SELECT job FROM submissions WHERE submission = ?", submission)
        return str(name)

    def numbering(self, submission: str) -> dict[str, range]:
        """The clients' numbers in the job by site, as far as they are fixed."""
        rows = self._database.rows("SELECT site, first, clients FROM numbering WHERE submission = ?", submission)
        return {site: range(first, first + clients) for site, first, clients in rows}

    def fix_numbering(self, submission: str, numbers: Mapping[str, range]) -> None:
        """Fix the numbers of sites' clients in a job; numbers that are fixed stay."""
        rows = [(submission, site, clients.start, len(clients)) for site, clients in numbers.items()]
        with self._database.transaction() as database:
            database.executemany("INSERT INTO numbering VALUES (?, ?, ?, ?) ON CONFLICT DO NOTHING", rows)

    def data_digest(self, submission: str) -> str | None:
        """Of the data with which the submission started here, if it has."""
        rows = self._database.rows("SELECT digest FROM data WHERE submission = ?", submission)
        return str(rows[0][0]) if rows else None

    def fix_data_digest(self, submission: str, digest: str) -> str:
        """The digest that is fixed: this one, if there was none."""
        with self._database.transaction() as database:
            database.execute("INSERT INTO data VALUES (?, ?) ON CONFLICT DO NOTHING", (submission, digest))
        return self.data_digest(submission) or digest

    def record_release(self, submission: str, client: int, round: int, kind: str, note: bytes = b"") -> int:
        """Record that something leaves; how often it has, this time included. 0, and it must not leave, if it left in
        this round or a later one.
        """
        release = (submission, client, kind, round)
        with self._database.transaction() as database:
            return _noted(database, release, note, _counted(database, release))

    def replace_release(
        self, submission: str, client: int, round: int, kind: str, note: bytes, replaced_note: bytes
    ) -> int:
        """The same; but if it left in this round with `replaced_note`, it leaves again, and counts once."""
        release = (submission, client, kind, round)
        with self._database.transaction() as database:
            times = _counted(database, release) or _counted_before(database, release, replaced_note)
            return _noted(database, release, note, times)

    def release_note(self, submission: str, client: int, round: int) -> bytes:
        """The note with which an update left in this round; empty if it did not."""
        query = "SELECT note FROM notes WHERE submission = ? AND client = ? AND what = ? AND round = ?"
        rows = self._database.rows(query, submission, client, UPDATE, round)
        return bytes(rows[0][0]) if rows else b""

    def record_ballot(self, submission: str, client: int, ballot: bytes, content: bytes) -> bool:
        """Whether this content, and no other, is signed for a ballot: now, or before."""
        digest = sha256(content).digest()
        with self._database.transaction() as database:
            database.execute("INSERT OR IGNORE INTO ballots VALUES (?, ?, ?, ?)", (submission, client, ballot, digest))
            [(found,)] = database.execute(
                "SELECT content FROM ballots WHERE submission = ? AND client = ? AND ballot = ?",
                (submission, client, ballot),
            ).fetchall()
        return bool(found == digest)


def _counted(database: sqlite3.Connection, release: tuple[str, int, str, int]) -> int:
    """How often it has left if it may leave in this round, else 0."""
    rows = database.execute(
        "INSERT INTO departures VALUES (?, ?, ?, ?, 1)"
        " ON CONFLICT DO UPDATE SET round = excluded.round, times = times + 1 WHERE excluded.round > round"
        " RETURNING times",
        release,
    ).fetchall()
    return int(rows[0][0]) if rows else 0


def _counted_before(database: sqlite3.Connection, release: tuple[str, int, str, int], note: bytes) -> int:
    """How often it has left if it left in this round with this note, else 0. No note is no such note."""
    rows = database.execute(
        "SELECT times FROM departures JOIN notes USING (submission, client, what, round)"
        " WHERE submission = ? AND client = ? AND what = ? AND round = ? AND note = ? AND note != x''",
        (*release, note),
    ).fetchall()
    return int(rows[0][0]) if rows else 0


def _noted(database: sqlite3.Connection, release: tuple[str, int, str, int], note: bytes, times: int) -> int:
    if times:  # also an empty note: one that stayed from before would let it out again
        database.execute("INSERT OR REPLACE INTO notes VALUES (?, ?, ?, ?, ?)", (*release, note))
    return times
