"""What any server may read in the database, whether it is the leader or not: the state of jobs, sites and rounds."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import msgspec
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from winnow.deploy.server.database import Database
from winnow.deploy.server.database_writes import ACCEPTED, ENDED, REJECTED
from winnow.deploy.server.sanitise_text import ELLIPSIS
from winnow.deploy.server.stored_record_integrity import EventDigestCheck
from winnow.deploy.server.tables import JobRow, LogLineRow, MemberRow, OutputRow, RoundRow, SiteRow
from winnow.deploy.wire.messages import MAX_TEXT, Blob, DataDescription, JobInfo, LogLine, Settle

PAGE_ROWS = 500
LOG_PAGE_ROWS = 64
"""Log lines that are read at a time, so that many users may follow a log whose lines are long."""
MAX_LISTED_JOBS = 500
"""The latest; no more are listed."""


@dataclass(frozen=True, kw_only=True)
class StoredRound:
    number: int
    checkpoint: Blob | None
    settled: dict[str, dict[str, list[int]]]
    ended_tasks: dict[str, list[str]]

    def settle_for(self, site: str, job: str) -> Settle:
        """What this site is sent about the round."""
        tasks, ended_tasks = self.settled.get(site, {}), self.ended_tasks.get(site, [])
        return Settle(job=job, round=self.number, tasks=tasks, ended_tasks=ended_tasks)


@dataclass(frozen=True, kw_only=True)
class StoredMember:
    site: str
    reason: str
    first_client: int | None
    data: DataDescription | None
    acknowledged_round: int
    excluded_since: float | None


@dataclass(frozen=True, kw_only=True)
class Queries:
    database: Database

    def job(self, job: str) -> JobRow | None:
        with self.database.read_session() as session:
            return session.get(JobRow, job)

    def open_jobs(self) -> list[JobRow]:
        """Those that have not ended, in the order in which they are to start."""
        with self.database.read_session() as session:
            open_ones = select(JobRow).where(JobRow.status.not_in(ENDED))
            return list(session.scalars(open_ones.order_by(JobRow.priority.desc(), JobRow.submitted, JobRow.job)))

    def job_states(self, job: str | None = None) -> list[JobInfo]:
        """One job, or the latest ones; the oldest first."""
        with self.database.read_session() as session:
            jobs = select(JobRow).order_by(JobRow.submitted.desc(), JobRow.job.desc()).limit(MAX_LISTED_JOBS)
            rows = session.scalars(jobs if job is None else jobs.where(JobRow.job == job))
            return [_state(session, row) for row in rows][::-1]

    def job_counts(self) -> dict[str, int]:
        with self.database.read_session() as session:
            rows = session.execute(select(JobRow.status, func.count()).group_by(JobRow.status))
            return {row[0]: row[1] for row in rows}

    def round_count(self) -> int:
        """Of all jobs together."""
        with self.database.read_session() as session:
            return session.scalar(select(func.count()).select_from(RoundRow)) or 0

    def last_round(self, job: str) -> StoredRound | None:
        with self.database.read_session() as session:
            row = session.scalar(select(RoundRow).where(RoundRow.job == job).order_by(RoundRow.number.desc()).limit(1))
            return None if row is None else _round(row)

    def pending_settles(self, job: str, acknowledged: Mapping[str, int]) -> list[tuple[str, Settle]]:
        """What sites have not acknowledged, given the last round that each has; the oldest first."""
        found: list[tuple[str, Settle]] = []
        for row in self._rounds_after(job, min(acknowledged.values(), default=0)):
            for site, last in acknowledged.items():
                order = row.settle_for(site, job)
                if row.number > last and (order.tasks or order.ended_tasks):
                    found.append((site, order))
        return found

    def _rounds_after(self, job: str, number: int) -> Iterator[StoredRound]:
        while True:
            later = (
                select(RoundRow)
                .where(RoundRow.job == job, RoundRow.number > number)
                .order_by(RoundRow.number)
                .limit(PAGE_ROWS)
            )
            with self.database.read_session() as session:
                rows = [_round(row) for row in session.scalars(later)]
            if not rows:
                return
            yield from rows
            number = rows[-1].number

    def members(self, job: str) -> list[StoredMember]:
        """In the order of their clients' numbers, then by name."""
        with self.database.read_session() as session:
            rows = session.scalars(select(MemberRow).where(MemberRow.job == job).order_by(MemberRow.site))
            return sorted(map(_member, rows), key=lambda member: (member.first_client is None, member.first_client))

    def sites(self) -> list[SiteRow]:
        with self.database.read_session() as session:
            return list(session.scalars(select(SiteRow).order_by(SiteRow.site)))

    def certificates(self) -> dict[str, bytes]:
        with self.database.read_session() as session:
            return {row.site: row.certificate for row in session.scalars(select(SiteRow))}

    def outputs(self, job: str) -> dict[str, Blob]:
        with self.database.read_session() as session:
            rows = session.scalars(select(OutputRow).where(OutputRow.job == job).order_by(OutputRow.name))
            return {row.name: Blob(digest=row.digest, size=row.size) for row in rows}

    def referenced_blobs(self, job: str) -> set[str]:
        """The digests of all blobs that the job's rows name."""
        with self.database.read_session() as session:
            checkpoints = select(RoundRow.checkpoint).where(RoundRow.job == job, RoundRow.checkpoint.is_not(None))
            found = {digest for digest in session.scalars(checkpoints) if digest is not None}
            found |= set(session.scalars(select(OutputRow.digest).where(OutputRow.job == job)))
            return found | set(session.scalars(select(JobRow.bundle).where(JobRow.job == job)))

    def lines(self, job: str, first: int, *, kind: str | None = None) -> list[LogLine]:
        """The next lines, a page of them; long ones are cut unless a kind is asked for."""
        text = LogLineRow.text if kind is not None else func.substr(LogLineRow.text, 1, MAX_TEXT + 1)
        wanted = select(LogLineRow.number, LogLineRow.at, LogLineRow.source, LogLineRow.kind, text)
        wanted = wanted.where(LogLineRow.job == job, LogLineRow.number >= first).order_by(LogLineRow.number)
        if kind is not None:
            wanted = wanted.where(LogLineRow.kind == kind)
        with self.database.read_session() as session:
            rows = session.execute(wanted.limit(PAGE_ROWS if kind is not None else LOG_PAGE_ROWS)).all()
        return [_line(*row, whole=kind is not None) for row in rows]

    def write_events(self, job: str, path: Path) -> None:
        """All event lines of the committed rounds, one after the other. Raises if they are not what was committed."""
        first, check = 0, self._check(job)
        with path.open("w", encoding="utf-8") as file:
            while page := self.lines(job, first, kind="event"):
                check.add_lines(line.text for line in page)
                file.writelines(line.text + "\n" for line in page)
                first = page[-1].number + 1
        check.finish()

    def _check(self, job: str) -> EventDigestCheck:
        with self.database.read_session() as session:
            config = session.get_one(JobRow, job).config
            rounds = session.execute(
                select(RoundRow.number, RoundRow.events).where(RoundRow.job == job).order_by(RoundRow.number)
            )
            return EventDigestCheck(job, config, [(number, digest) for number, digest in rounds])


def _state(session: Session, row: JobRow) -> JobInfo:
    members = session.execute(select(MemberRow.site, MemberRow.state, MemberRow.reason).where(MemberRow.job == row.job))
    replies = sorted((site, state, reason) for site, state, reason in members)
    return JobInfo(
        job=row.job,
        title=row.title,
        status=row.status,
        reason=row.reason,
        submitter=row.submitter,
        organisation=row.organisation,
        priority=row.priority,
        round=row.round,
        rounds=row.rounds,
        sites=[site for site, state, _ in replies if state == ACCEPTED],
        submitted=row.submitted,
        metrics=msgspec.msgpack.decode(row.metrics, type=dict[str, dict[str, float]]),
        rejections={site: reason for site, state, reason in replies if state == REJECTED},
    )


def _round(row: RoundRow) -> StoredRound:
    checkpoint = None if row.checkpoint is None else Blob(digest=row.checkpoint, size=row.checkpoint_size)
    settled = msgspec.msgpack.decode(row.settled, type=dict[str, dict[str, list[int]]])
    ended_tasks = {} if row.ended_tasks is None else msgspec.msgpack.decode(row.ended_tasks, type=dict[str, list[str]])
    return StoredRound(number=row.number, checkpoint=checkpoint, settled=settled, ended_tasks=ended_tasks)


def _member(row: MemberRow) -> StoredMember:
    data = None if row.data is None else msgspec.msgpack.decode(row.data, type=DataDescription)
    return StoredMember(
        site=row.site,
        reason=row.reason,
        first_client=row.first_client,
        data=data,
        acknowledged_round=row.heard,
        excluded_since=row.out_since,
    )


def _line(number: int, at: float, source: str, kind: str, text: str, *, whole: bool) -> LogLine:
    shown = text if whole or len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + ELLIPSIS
    return LogLine(number=number, at=at, source=source, kind=kind, text=shown)
