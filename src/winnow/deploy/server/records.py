"""What anybody may read in the database: how jobs, sites and rounds stand."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from winnow.deploy.server.database import Database
from winnow.deploy.server.ledger import ACCEPTED, ENDED
from winnow.deploy.server.tables import Job, LineRow, MemberRow, Output, Round, SiteRow
from winnow.deploy.wire.messages import MAX_TEXT, Blob, DataDescription, JobState, Line

PAGE = 500
CUT = "…"


@dataclass(frozen=True, kw_only=True)
class StoredRound:
    number: int
    checkpoint: Blob | None
    settled: dict[str, dict[str, list[int]]]


@dataclass(frozen=True, kw_only=True)
class StoredMember:
    site: str
    state: str
    reason: str
    clients_from: int | None
    data: DataDescription | None


@dataclass(frozen=True, kw_only=True)
class Records:
    """Reads; any server may, whether it leads or not."""

    database: Database

    def job(self, job: str) -> Job | None:
        with self.database.reading() as session:
            return session.get(Job, job)

    def open_jobs(self) -> list[Job]:
        """Those that have not ended, in the order in which they are to start."""
        with self.database.reading() as session:
            open_ones = select(Job).where(Job.status.not_in(ENDED))
            return list(session.scalars(open_ones.order_by(Job.priority.desc(), Job.submitted, Job.job)))

    def states(self, job: str | None = None) -> list[JobState]:
        with self.database.reading() as session:
            jobs = select(Job).order_by(Job.submitted, Job.job)
            rows = session.scalars(jobs if job is None else jobs.where(Job.job == job))
            return [_state(session, row) for row in rows]

    def counts(self) -> dict[str, int]:
        with self.database.reading() as session:
            rows = session.execute(select(Job.status, func.count()).group_by(Job.status))
            return {row[0]: row[1] for row in rows}

    def rounds(self) -> int:
        """Of all jobs together."""
        with self.database.reading() as session:
            return session.scalar(select(func.count()).select_from(Round)) or 0

    def last_round(self, job: str) -> StoredRound | None:
        with self.database.reading() as session:
            row = session.scalar(select(Round).where(Round.job == job).order_by(Round.number.desc()).limit(1))
            return None if row is None else _round(row)

    def last_rounds(self, job: str, count: int) -> list[StoredRound]:
        """The oldest first."""
        with self.database.reading() as session:
            rows = session.scalars(select(Round).where(Round.job == job).order_by(Round.number.desc()).limit(count))
            return [_round(row) for row in rows][::-1]

    def members(self, job: str) -> list[StoredMember]:
        """In the order of their clients' numbers, then by name."""
        with self.database.reading() as session:
            rows = session.scalars(select(MemberRow).where(MemberRow.job == job).order_by(MemberRow.site))
            return sorted(map(_member, rows), key=lambda member: (member.clients_from is None, member.clients_from))

    def sites(self) -> list[SiteRow]:
        with self.database.reading() as session:
            return list(session.scalars(select(SiteRow).order_by(SiteRow.site)))

    def certificates(self) -> dict[str, bytes]:
        with self.database.reading() as session:
            return {row.site: row.certificate for row in session.scalars(select(SiteRow))}

    def outputs(self, job: str) -> dict[str, Blob]:
        with self.database.reading() as session:
            rows = session.scalars(select(Output).where(Output.job == job).order_by(Output.name))
            return {row.name: Blob(digest=row.digest, size=row.size) for row in rows}

    def lines(self, job: str, first: int, *, kind: str | None = None) -> list[Line]:
        """The next lines, a page of them; long ones are cut unless a kind is asked for."""
        return [_line(row, whole=kind is not None) for row in self._rows(job, first, kind)]

    def write_events(self, job: str, path: Path) -> None:
        """All event lines of the committed rounds, one after the other."""
        first = 0
        with path.open("w", encoding="utf-8") as file:
            while page := self.lines(job, first, kind="event"):
                file.writelines(line.text + "\n" for line in page)
                first = page[-1].number + 1

    def _rows(self, job: str, first: int, kind: str | None) -> Sequence[LineRow]:
        wanted = select(LineRow).where(LineRow.job == job, LineRow.number >= first)
        if kind is not None:
            wanted = wanted.where(LineRow.kind == kind)
        with self.database.reading() as session:
            return list(session.scalars(wanted.order_by(LineRow.number).limit(PAGE)))


def _state(session: Session, row: Job) -> JobState:
    sites = select(MemberRow.site).where(MemberRow.job == row.job, MemberRow.state == ACCEPTED)
    return JobState(
        job=row.job,
        title=row.title,
        status=row.status,
        reason=row.reason,
        submitter=row.submitter,
        organisation=row.organisation,
        priority=row.priority,
        round=row.round,
        rounds=row.rounds,
        sites=sorted(session.scalars(sites)),
        submitted=row.submitted,
        metrics=msgspec.msgpack.decode(row.metrics, type=dict[str, dict[str, float]]),
    )


def _round(row: Round) -> StoredRound:
    checkpoint = None if row.checkpoint is None else Blob(digest=row.checkpoint, size=row.checkpoint_size)
    settled = msgspec.msgpack.decode(row.settled, type=dict[str, dict[str, list[int]]])
    return StoredRound(number=row.number, checkpoint=checkpoint, settled=settled)


def _member(row: MemberRow) -> StoredMember:
    data = None if row.data is None else msgspec.msgpack.decode(row.data, type=DataDescription)
    return StoredMember(site=row.site, state=row.state, reason=row.reason, clients_from=row.clients_from, data=data)


def _line(row: LineRow, *, whole: bool) -> Line:
    text = row.text if whole or len(row.text) <= MAX_TEXT else row.text[: MAX_TEXT - 1] + CUT
    return Line(number=row.number, at=row.at, source=row.source, kind=row.kind, text=text)
