"""Which server is the leader: the holder of a lease in the database, with a fencing token that no earlier holder had.

Only the database's clock decides when the lease expires. The holder also watches its own monotonic clock, counted
from before it asked, so that it steps down no later than another may take over. Should it sleep through that moment,
the token stops it: whatever a leader writes is written in a transaction that first locks the lease's row and compares.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from threading import Lock
from uuid import uuid4

from sqlalchemy import select
from sqlalchemy.exc import DBAPIError
from sqlalchemy.orm import Session

from winnow.core import WinnowError
from winnow.deploy.server.database import Database
from winnow.deploy.server.tables import LeaseRow

LEASE_ID = 1
LOCK_NOT_AVAILABLE = "55P03"
RENEWALS = 3
"""In the time of a lease."""
LOCK_SECONDS = 0.5
"""For so long the lease's row may be locked by others; each has it for milliseconds, unless its process was stopped."""
EXPIRY_MARGIN = 0.02
"""Seconds after which another's lease has certainly expired."""


class LeaseLostError(WinnowError):
    """Another server is the leader."""


@dataclass(frozen=True, kw_only=True)
class LeaseHolder:
    """The holder as the database knows it."""

    server: str
    address: str
    token: int
    since: float


def lock_lease(session: Session) -> LeaseRow:
    """The lease's row, locked until the transaction ends; on SQLite a writing transaction has locked everything."""
    return session.scalars(select(LeaseRow).where(LeaseRow.id == LEASE_ID).with_for_update()).one()


class Lease:
    """The lease as one server sees it."""

    def __init__(self, database: Database, *, server: str, address: str, seconds: float) -> None:
        self._database = database
        self._server = server
        self._address = address
        self.seconds = seconds
        self.retry_after = seconds / RENEWALS
        """Seconds until our lease is to be renewed, or another's may have expired."""
        self.holder_id = self._new_holder()
        self._token: int | None = None
        self._until = 0.0
        self._first = True
        self._lock = Lock()

    @property
    def token(self) -> int | None:
        """Our token while we may lead by our own clock, else None."""
        return self._token if time.monotonic() < self._until else None

    def acquire_or_renew(self) -> bool:
        """Take the lease if it is free, renew it if it is ours; whether we hold it now.

        Whoever takes it from another ends that one's connections to the database: it may have been stopped in the
        middle of a transaction, with rows locked that are needed now.
        """
        try:
            return self._acquire_or_renew()
        except DBAPIError as error:
            if getattr(error.orig, "sqlstate", None) != LOCK_NOT_AVAILABLE or not self._disconnect_expired():
                raise
        return self._acquire_or_renew()

    def _disconnect_expired(self) -> bool:
        """Free the lease's row from a holder whose time has run out."""
        with self._database.read_session() as session:
            row = session.get_one(LeaseRow, LEASE_ID)
            if row.expires > self._database.now(session):
                return False
            holder = row.holder
        self._database.disconnect(_application(holder))
        return True

    def _acquire_or_renew(self) -> bool:
        asked, holder = time.monotonic(), self.holder_id
        with self._database.write_session() as session:
            self._database.limit_lock_wait(session, LOCK_SECONDS)
            row = lock_lease(session)
            former = row.holder
            now = self._database.now(session)
            ours = row.holder == holder
            if not ours and row.expires > now and not self._is_own_predecessor(row):
                self._token, self._first = None, False
                self.retry_after = min(self.seconds / RENEWALS, row.expires - now + EXPIRY_MARGIN)
                return False
            if not ours:
                row.token += 1
                row.holder, row.server, row.address, row.since = holder, self._server, self._address, now
            row.expires = now + self.seconds
            token = row.token
        if not ours:
            self._database.disconnect(_application(former))
        self.retry_after = self.seconds / RENEWALS
        with self._lock:
            if holder != self.holder_id:
                return False
            self._token, self._until, self._first = token, asked + self.seconds, False
            return True

    def discard(self) -> None:
        """Do not lead before the lease has been acquired again, as another holder: its new token rejects writes that
        were started under this one and may still be under way.
        """
        with self._lock:
            self.holder_id, self._first, self._token = self._new_holder(), True, None

    def _new_holder(self) -> str:
        return f"{uuid4().hex}@{self._database.application}"

    def _is_own_predecessor(self, row: LeaseRow) -> bool:
        """A server that restarts need not wait for its own former process, whose writes the token rejects."""
        return self._first and row.server == self._server

    def release(self) -> None:
        """Let another server become leader at once."""
        with self._database.write_session() as session:
            row = lock_lease(session)
            if row.holder == self.holder_id:
                row.expires = 0.0
        self._token = None

    def current_holder(self) -> LeaseHolder | None:
        """The leader, if there is one."""
        with self._database.read_session() as session:
            row = session.get_one(LeaseRow, LEASE_ID)
            if row.expires <= self._database.now(session):
                return None
            return LeaseHolder(server=row.server, address=row.address, token=row.token, since=row.since)


def _application(holder: str) -> str:
    """The name of a holder's process in the database."""
    return holder.rpartition("@")[2]


@dataclass(frozen=True, kw_only=True)
class FencedDatabase:
    """Lets a leader write, as long as it is the leader."""

    database: Database
    token: int

    @contextmanager
    def write_session(self) -> Iterator[Session]:
        with self.database.write_session() as session:
            if lock_lease(session).token != self.token:
                raise LeaseLostError(
                    f"another server is the leader; the write under lease token {self.token} was rejected"
                )
            yield session
