"""What a leader writes to the database, each in one transaction that checks the lease: jobs, rounds, lines, members."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import reduce

import msgspec
from sqlalchemy import func, select
from sqlalchemy.orm import Session

from winnow.core import WinnowError
from winnow.deploy.jobs.ipc_messages import JobSite
from winnow.deploy.server.lease import FencedDatabase
from winnow.deploy.server.sanitise_text import printable_line, without_nul
from winnow.deploy.server.stored_record_integrity import first_digest, next_digest
from winnow.deploy.server.tables import JobRow, LogLineRow, MemberRow, OutputRow, RoundRow, SiteRow
from winnow.deploy.wire.errors import one_line
from winnow.deploy.wire.messages import LOG_KIND, SITE_LOST_KIND, AbsentSite, Blob, DataDescription, Hello

QUEUED, STARTING, RUNNING = "queued", "starting", "running"
FINISHED, FAILED, ABORTED = "finished", "failed", "aborted"
ENDED = (FINISHED, FAILED, ABORTED)
OFFERED, ACCEPTED, REJECTED = "offered", "accepted", "rejected"

SettledReplies = Mapping[str, Mapping[str, Sequence[int]]]
"""By site and task, the clients whose replies were aggregated."""
EndedTasks = Mapping[str, Sequence[str]]
"""By site, the tasks that have ended."""
SERVER_SOURCE = "server"
"""The source of log lines that a server writes."""


class RoundOrderError(WinnowError):
    """A runner wants to commit a round that is not the next one."""


@dataclass(frozen=True, kw_only=True)
class NewLogLine:
    source: str
    kind: str
    text: str


@dataclass(frozen=True, kw_only=True)
class LeaderWrites:
    fenced: FencedDatabase

    def add_job(self, job: JobRow, line: NewLogLine) -> bool:
        """Queue a job; False if there is one of this name."""
        with self.fenced.write_session() as session:
            if session.get(JobRow, job.job) is not None:
                return False
            job.submitted = self.fenced.database.now(session)
            session.add(job)
            session.flush()
            self._append(session, job.job, [line])
            return True

    def set_status(self, job: str, status: str, reason: str = "", *, line: str | None = None) -> bool:
        """Change the status of a job, unless it has ended: an end is final."""
        with self.fenced.write_session() as session:
            row = session.get_one(JobRow, job)
            if row.status in ENDED:
                return False
            row.status, row.reason = status, one_line(reason)
            if line is not None:
                self._append(session, job, [NewLogLine(source=SERVER_SOURCE, kind=LOG_KIND, text=line)])
            return True

    def finish(self, job: str, outputs: Mapping[str, Blob]) -> bool:
        with self.fenced.write_session() as session:
            row = session.get_one(JobRow, job)
            if row.status in ENDED:
                return False
            row.status, row.reason = FINISHED, ""
            for name, blob in outputs.items():
                session.merge(OutputRow(job=job, name=name, digest=blob.digest, size=blob.size))
            self._append(
                session,
                job,
                [NewLogLine(source=SERVER_SOURCE, kind=LOG_KIND, text=f"finished after round {row.round}")],
            )
            return True

    def commit_round(
        self,
        job: str,
        *,
        number: int,
        rounds: int,
        checkpoint: Blob,
        settled: SettledReplies,
        ended_tasks: EndedTasks,
        acknowledged: Mapping[str, int],
        metrics: Mapping[str, Mapping[str, float]],
        lines: Sequence[NewLogLine],
    ) -> None:
        """The round, its events and what was settled, all or nothing; rounds come one by one.

        `acknowledged` is the last round such that each site has acknowledged it and all before it.
        """
        with self.fenced.write_session() as session:
            row = session.get_one(JobRow, job)
            if row.status in ENDED:
                raise RoundOrderError(f"job {job} has ended ({row.status})")
            if number != row.round + 1:
                raise RoundOrderError(f"job {job} tried to commit round {number} after round {row.round}")
            session.add(
                RoundRow(
                    job=job,
                    number=number,
                    checkpoint=checkpoint.digest,
                    checkpoint_size=checkpoint.size,
                    settled=msgspec.msgpack.encode(settled),
                    ended_tasks=msgspec.msgpack.encode(ended_tasks),
                    events=_digest(session, row, lines),
                    token=self.fenced.token,
                    at=self.fenced.database.now(session),
                )
            )
            row.round, row.rounds, row.metrics = number, rounds, msgspec.msgpack.encode(metrics)
            for site, last in acknowledged.items():
                session.get_one(MemberRow, (job, site)).heard = last
            self._append(session, job, lines)

    def retire_checkpoints(self, job: str, keep: int) -> list[str]:
        """Drop all checkpoints but the last `keep`; the digests of blobs that are no longer referenced."""
        with self.fenced.write_session() as session:
            held = (
                select(RoundRow).where(RoundRow.job == job, RoundRow.checkpoint.is_not(None)).order_by(RoundRow.number)
            )
            rows = list(session.scalars(held))
            old, kept = rows[:-keep], {row.checkpoint for row in rows[-keep:]}
            digests = {row.checkpoint for row in old if row.checkpoint is not None} - kept
            kept |= set(session.scalars(select(OutputRow.digest).where(OutputRow.job == job)))
            kept |= {session.get_one(JobRow, job).bundle}
            for row in old:
                row.checkpoint = None
            return sorted(digests - kept)

    def append(self, job: str, lines: Sequence[NewLogLine]) -> None:
        with self.fenced.write_session() as session:
            self._append(session, job, lines)

    def _append(self, session: Session, job: str, lines: Sequence[NewLogLine]) -> None:
        last = session.scalar(select(func.max(LogLineRow.number)).where(LogLineRow.job == job))
        first = 0 if last is None else last + 1
        now = self.fenced.database.now(session)
        session.add_all(
            LogLineRow(job=job, number=first + index, at=now, source=line.source, kind=line.kind, text=_text(line))
            for index, line in enumerate(lines)
        )

    # Members and sites ------------------------------------------------------------------------------------------------

    def offer_job(self, job: str, sites: Iterable[str]) -> None:
        """The job is offered to these sites; earlier replies to an offer no longer count."""
        with self.fenced.write_session() as session:
            for site in sites:
                session.merge(MemberRow(job=job, site=site, state=OFFERED, reason="", first_client=None, data=None))

    def record_join(self, job: str, site: str, *, accepted: bool, reason: str, data: DataDescription | None) -> None:
        """The site's last reply counts, until the job starts."""
        with self.fenced.write_session() as session:
            row = session.get_one(MemberRow, (job, site))
            if row.first_client is None:
                row.state, row.reason = (ACCEPTED if accepted else REJECTED), one_line(reason)
                row.data = None if data is None else msgspec.msgpack.encode(data)

    def start_job(self, job: str, members: Sequence[JobSite]) -> bool:
        """Fix the members, their data and the numbers of their first clients; the job runs. False if it has ended."""
        with self.fenced.write_session() as session:
            row = session.get_one(JobRow, job)
            if row.status in ENDED:
                return False
            row.status, row.reason = RUNNING, ""
            for member in members:
                part = session.get_one(MemberRow, (job, member.site))
                part.state, part.reason = ACCEPTED, ""
                part.first_client, part.data = member.first_client, msgspec.msgpack.encode(member.data)
            text = f"running on {', '.join(member.site for member in members)}"
            self._append(session, job, [NewLogLine(source=SERVER_SOURCE, kind=LOG_KIND, text=text)])
            return True

    def record_exclusions(self, job: str, changes: Mapping[str, AbsentSite | None]) -> None:
        """Which sites are excluded from a running job, and which no longer are."""
        with self.fenced.write_session() as session:
            for site, exclusion in changes.items():
                row = session.get_one(MemberRow, (job, site))
                row.reason = "" if exclusion is None else exclusion.reason
                row.out_since = None if exclusion is None else exclusion.since

    def record_site(self, site: str, organisation: str, hello: Hello) -> float:
        """How a site introduced itself; returns the time by the database's clock."""
        with self.fenced.write_session() as session:
            now = self.fenced.database.now(session)
            session.merge(
                SiteRow(
                    site=site,
                    organisation=organisation,
                    seen=now,
                    winnow=one_line(hello.winnow_version),
                    data=msgspec.msgpack.encode(hello.data),
                    resources=msgspec.msgpack.encode(hello.resources),
                    certificate=hello.certificate,
                )
            )
            return now


def _digest(session: Session, job: JobRow, lines: Sequence[NewLogLine]) -> str | None:
    """Of all event lines of the job, the next round's included."""
    before = session.get(RoundRow, (job.job, job.round))
    digest = first_digest(job.config) if before is None else before.events
    return None if digest is None else reduce(next_digest, map(_text, lines), digest)


def _text(line: NewLogLine) -> str:
    """Events and metrics are for programs: they stay as they are."""
    return printable_line(line.text) if line.kind in (LOG_KIND, SITE_LOST_KIND) else without_nul(line.text)
