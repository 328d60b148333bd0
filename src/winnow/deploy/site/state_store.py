"""What a site must know after it was killed: its jobs, results that were made, and the state of its clients.

Results that hold only while the process lives that made them are in memory, unless they have files: nothing could use
them after a kill, and a protocol of many short exchanges need not wait for the disk. SQLite knows which files count;
files are written before they are mentioned there and deleted after, so a site that is killed in between has at most a
file too many, which `ResultDelivery` deletes.
"""

from pathlib import Path
from threading import Lock

import msgspec

from winnow.deploy.site.budget_records import PrivacyBudgets
from winnow.deploy.site.state_database import SiteDatabase, StateStoreError
from winnow.deploy.site.submission_records import SubmissionRecords
from winnow.deploy.wire.messages import ClientResult, DeployJob, Settle


class StoredResult(msgspec.Struct, frozen=True, kw_only=True):
    """A client's result as it is sent, and the names of its files."""

    result: ClientResult
    round: int
    payload: str | None = None
    new_client_state: str | None = None
    worker_id: str = ""
    """The process whose secrets the result depends on; empty if it may be sent whenever it is asked for."""

    @property
    def in_memory(self) -> bool:
        return bool(self.worker_id) and self.payload is None and self.new_client_state is None


class SiteStateStore:
    """One file; any thread may use it."""

    def __init__(self, path: Path) -> None:
        self._database = SiteDatabase(path)
        self.submissions = SubmissionRecords(self._database)
        self.budgets = PrivacyBudgets(self._database)
        self._volatile: dict[tuple[str, str], dict[int, StoredResult]] = {}
        """By job and task, then client."""
        self._lock = Lock()

    def jobs(self) -> list[str]:
        return [job for (job,) in self._database.rows("SELECT job FROM jobs ORDER BY job")]

    def deployment(self, job: str) -> DeployJob | None:
        """How the job was last deployed, if it was."""
        rows = self._database.rows("SELECT deploy FROM jobs WHERE job = ?", job)
        with self._database.wrapping_errors():
            return msgspec.msgpack.decode(rows[0][0], type=DeployJob) if rows else None

    def save_job(self, deploy: DeployJob) -> None:
        with self._database.transaction() as database:
            database.execute("INSERT OR REPLACE INTO jobs VALUES (?, ?)", (deploy.job, msgspec.msgpack.encode(deploy)))

    def delete_job(self, job: str) -> None:
        with self._lock:
            self._volatile = {key: results for key, results in self._volatile.items() if key[0] != job}
        with self._database.transaction() as database:
            for statement in (
                "DELETE FROM jobs WHERE job = ?",
                "DELETE FROM replies WHERE job = ?",
                "DELETE FROM kept WHERE job = ?",
            ):
                database.execute(statement, (job,))

    def add_result(self, stored: StoredResult) -> None:
        result = stored.result
        if stored.in_memory:
            with self._lock:
                self._volatile.setdefault((result.job, result.task), {})[result.client] = stored
            return
        row = (result.job, result.task, result.client, stored.round, msgspec.msgpack.encode(result))
        with self._database.transaction() as database:
            database.execute(
                "INSERT OR REPLACE INTO replies VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
                (*row, stored.payload, stored.new_client_state, stored.worker_id),
            )

    def results(self, job: str, task: str) -> dict[int, StoredResult]:
        """Those of a task, by client."""
        rows = self._database.rows(
            "SELECT client, round, answer, payload, keep, life FROM replies WHERE job = ? AND task = ?", job, task
        )
        with self._lock, self._database.wrapping_errors():
            return self._volatile.get((job, task), {}) | {
                client: StoredResult(
                    result=msgspec.msgpack.decode(result, type=ClientResult),
                    round=at,
                    payload=payload,
                    new_client_state=new_client_state,
                    worker_id=worker_id,
                )
                for client, at, result, payload, new_client_state, worker_id in rows
            }

    def client_state_files(self, job: str) -> dict[int, str]:
        return dict(self._database.rows("SELECT client, file FROM kept WHERE job = ?", job))

    def delete_result(self, stored: StoredResult) -> None:
        result = stored.result
        with self._lock:
            self._volatile.get((result.job, result.task), {}).pop(result.client, None)
        with self._database.transaction() as database:
            database.execute(
                "DELETE FROM replies WHERE job = ? AND task = ? AND client = ?",
                (result.job, result.task, result.client),
            )

    def settle(self, settle: Settle) -> None:
        """Adopt the new state of the clients listed with tasks, and delete their results, and all that is left of
        tasks that have ended. Other tasks go on: a workflow need not wait for every client before it ends a round.

        Rounds may be settled again, in any order: the state that a client has from a later one stays.
        """
        aggregated = [(settle.job, task, client) for task, clients in settle.tasks.items() for client in clients]
        with self._lock:
            for job, task, client in aggregated:
                self._volatile.get((job, task), {}).pop(client, None)
            for task in settle.ended_tasks:
                self._volatile.pop((settle.job, task), None)
        with self._database.transaction() as database:
            database.executemany(
                "INSERT INTO kept SELECT job, client, keep, ? FROM replies"
                " WHERE job = ? AND task = ? AND client = ? AND keep IS NOT NULL"
                " ON CONFLICT DO UPDATE SET file = excluded.file, settled = excluded.settled"
                " WHERE excluded.settled >= settled",
                [(settle.round, *key) for key in aggregated],
            )
            database.executemany("DELETE FROM replies WHERE job = ? AND task = ? AND client = ?", aggregated)
            database.executemany(
                "DELETE FROM replies WHERE job = ? AND task = ?", [(settle.job, task) for task in settle.ended_tasks]
            )

    def files(self, job: str) -> set[str]:
        """The names of all files that must stay."""
        rows = self._database.rows("SELECT payload, keep FROM replies WHERE job = ?", job)
        return {name for row in rows for name in row if name} | set(self.client_state_files(job).values())

    def close(self) -> None:
        self._database.close()


__all__ = ["SiteStateStore", "StateStoreError", "StoredResult"]
