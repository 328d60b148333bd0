"""The audit log in the database, to which all servers of a project append in turn."""

from collections.abc import Callable, Iterator

import msgspec
from sqlalchemy import select

from winnow.deploy.server.database import Database
from winnow.deploy.server.tables import AuditHeadRow, AuditRow
from winnow.deploy.trust.audit_chain import AuditEntry, AuditLogOwner, ChainHead
from winnow.deploy.trust.audit_log import REMEDY, AuditLog, MakeEntry
from winnow.deploy.trust.errors import AuditError
from winnow.deploy.trust.kit import Kit

HEAD_ID = 1
PAGE = 1000
ANY_SERVER = AuditLogOwner(kind="server")


class DatabaseAuditStore:
    """An `AuditStore`. Entry and head are written in one transaction, so that neither is ever without the other."""

    def __init__(self, database: Database) -> None:
        self._database = database

    def extend(self, make: MakeEntry, sign_head: Callable[[AuditEntry], ChainHead]) -> AuditEntry:
        with self._database.write_session() as session:
            head = session.scalars(select(AuditHeadRow).where(AuditHeadRow.id == HEAD_ID).with_for_update()).one()
            last = session.scalar(select(AuditRow.line).order_by(AuditRow.seq.desc()).limit(1))
            signed = None if head.head is None else msgspec.json.decode(head.head, type=ChainHead)
            entry = make(None if last is None else _entry(last), signed)
            session.add(AuditRow(seq=entry.seq, line=entry.line().decode()))
            head.head = msgspec.json.encode(sign_head(entry))
            return entry

    def lines(self) -> Iterator[bytes]:
        last = 0
        while True:
            page = select(AuditRow).where(AuditRow.seq > last).order_by(AuditRow.seq).limit(PAGE)
            with self._database.read_session() as session:
                rows = list(session.scalars(page))
            if not rows:
                return
            yield from (row.line.encode() for row in rows)
            last = rows[-1].seq

    def close(self) -> None:
        self._database.close()

    def __str__(self) -> str:
        return "the audit log in the database"

    def head(self) -> ChainHead | None:
        with self._database.read_session() as session:
            row = session.get_one(AuditHeadRow, HEAD_ID)
            return None if row.head is None else msgspec.json.decode(row.head, type=ChainHead)


def _entry(line: str) -> AuditEntry:
    entry = AuditEntry.parse(line.encode())
    if entry is None:
        raise AuditError(f"the last row of the audit table is not a valid entry; {REMEDY}")
    return entry


def shared_audit_log(database: Database, kit: Kit) -> AuditLog:
    """The log that all servers of a project write, and that any of them signs."""
    return AuditLog(DatabaseAuditStore(database), kit, owner=ANY_SERVER)
