"""The tables. `migrations` makes them; a test holds that both agree."""

from sqlalchemy import BigInteger, Float, ForeignKey, Integer, LargeBinary, String, Text
from sqlalchemy.orm import DeclarativeBase, Mapped, mapped_column

NAME = String(100)
DIGEST = String(64)


class TableBase(DeclarativeBase):
    """Base class of all tables."""


class JobRow(TableBase):
    """A job and its status. `round` is its last committed round."""

    __tablename__ = "jobs"

    job: Mapped[str] = mapped_column(NAME, primary_key=True)
    title: Mapped[str] = mapped_column(Text)
    status: Mapped[str] = mapped_column(String(20), index=True)
    reason: Mapped[str] = mapped_column(Text, default="")
    submitter: Mapped[str] = mapped_column(NAME)
    organisation: Mapped[str] = mapped_column(Text)
    role: Mapped[str] = mapped_column(Text)
    priority: Mapped[int] = mapped_column(Integer)
    round: Mapped[int] = mapped_column(Integer, default=0)
    rounds: Mapped[int] = mapped_column(Integer, default=0)
    submitted: Mapped[float] = mapped_column(Float)
    config: Mapped[str] = mapped_column(Text)
    bundle: Mapped[str] = mapped_column(DIGEST)
    bundle_size: Mapped[int] = mapped_column(BigInteger)
    metrics: Mapped[bytes] = mapped_column(LargeBinary, default=b"\x80")
    """Msgpack of metrics by source."""


class RoundRow(TableBase):
    """A committed round. The key makes committing one twice impossible."""

    __tablename__ = "rounds"

    job: Mapped[str] = mapped_column(NAME, ForeignKey("jobs.job"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True)
    checkpoint: Mapped[str | None] = mapped_column(DIGEST)
    """None once a later round has made it superfluous."""
    checkpoint_size: Mapped[int] = mapped_column(BigInteger)
    settled: Mapped[bytes] = mapped_column(LargeBinary)
    """Msgpack of whose replies were aggregated: site, task, clients."""
    ended_tasks: Mapped[bytes | None] = mapped_column("over", LargeBinary)
    """Msgpack of the tasks that ended, by site."""
    events: Mapped[str | None] = mapped_column(DIGEST)
    """Of the configuration and all event lines up to this round; None in jobs that an earlier version started."""
    token: Mapped[int] = mapped_column(BigInteger)
    """Of the lease under which it was committed."""
    at: Mapped[float] = mapped_column(Float)


class LogLineRow(TableBase):
    """A line of a job's log: what people follow."""

    __tablename__ = "lines"

    job: Mapped[str] = mapped_column(NAME, ForeignKey("jobs.job"), primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True)
    at: Mapped[float] = mapped_column(Float)
    source: Mapped[str] = mapped_column(NAME)
    kind: Mapped[str] = mapped_column(String(20))
    text: Mapped[str] = mapped_column(Text)


class MemberRow(TableBase):
    """A site's part in a job: offered, accepted or rejected."""

    __tablename__ = "members"

    job: Mapped[str] = mapped_column(NAME, ForeignKey("jobs.job"), primary_key=True)
    site: Mapped[str] = mapped_column(NAME, primary_key=True, index=True)
    state: Mapped[str] = mapped_column(String(20))
    reason: Mapped[str] = mapped_column(Text, default="")
    first_client: Mapped[int | None] = mapped_column("clients_from", BigInteger)
    data: Mapped[bytes | None] = mapped_column(LargeBinary)
    """Msgpack of its `DataDescription`."""
    heard: Mapped[int] = mapped_column(Integer, default=0, server_default="0")
    """The last round such that the site has acknowledged its settlement and all before."""
    out_since: Mapped[float | None] = mapped_column(Float)
    """Since when it is excluded from the running job, for `reason`; None while it participates."""


class OutputRow(TableBase):
    """An output file of a finished job."""

    __tablename__ = "outputs"

    job: Mapped[str] = mapped_column(NAME, ForeignKey("jobs.job"), primary_key=True)
    name: Mapped[str] = mapped_column(String(200), primary_key=True)
    digest: Mapped[str] = mapped_column(DIGEST)
    size: Mapped[int] = mapped_column(BigInteger)


class BlobRow(TableBase):
    """A complete blob. Blobs belong to a job, so that removing those of one cannot hurt another."""

    __tablename__ = "blobs"

    job: Mapped[str] = mapped_column(NAME, primary_key=True)
    digest: Mapped[str] = mapped_column(DIGEST, primary_key=True)
    size: Mapped[int] = mapped_column(BigInteger)


class BlobChunkRow(TableBase):
    """A piece of a blob, where servers share no disk."""

    __tablename__ = "chunks"

    job: Mapped[str] = mapped_column(NAME, primary_key=True)
    digest: Mapped[str] = mapped_column(DIGEST, primary_key=True)
    number: Mapped[int] = mapped_column(Integer, primary_key=True)
    data: Mapped[bytes] = mapped_column(LargeBinary)


class SiteRow(TableBase):
    """A site as it last introduced itself."""

    __tablename__ = "sites"

    site: Mapped[str] = mapped_column(NAME, primary_key=True)
    organisation: Mapped[str] = mapped_column(Text)
    seen: Mapped[float] = mapped_column(Float)
    winnow: Mapped[str] = mapped_column(Text)
    data: Mapped[bytes] = mapped_column(LargeBinary)
    resources: Mapped[bytes] = mapped_column(LargeBinary)
    certificate: Mapped[bytes] = mapped_column(LargeBinary)
    """PEM, for those who encrypt messages to it."""


class LeaseRow(TableBase):
    """The one row that names the leader. Its lock orders everything that a leader writes."""

    __tablename__ = "lease"

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    holder: Mapped[str] = mapped_column(Text)
    """Name of the process: no two are alike."""
    server: Mapped[str] = mapped_column(NAME)
    address: Mapped[str] = mapped_column(Text)
    token: Mapped[int] = mapped_column(BigInteger)
    since: Mapped[float] = mapped_column(Float)
    expires: Mapped[float] = mapped_column(Float)


class AuditRow(TableBase):
    """An entry of the audit log."""

    __tablename__ = "audit"

    seq: Mapped[int] = mapped_column(BigInteger, primary_key=True, autoincrement=False)
    line: Mapped[str] = mapped_column(Text)


class AuditHeadRow(TableBase):
    """The one row with the end of the audit log. Its lock lets one server at a time append."""

    __tablename__ = "audit_head"

    id: Mapped[int] = mapped_column(Integer, primary_key=True)
    head: Mapped[bytes | None] = mapped_column(LargeBinary)


class ApplicationRow(TableBase):
    """Somebody applies for a kit."""

    __tablename__ = "applications"

    application: Mapped[str] = mapped_column(DIGEST, primary_key=True)
    """SHA-256 of its content."""
    content: Mapped[bytes] = mapped_column(LargeBinary)
    code: Mapped[str] = mapped_column(DIGEST, index=True)
    """SHA-256 of the code under which the kit is collected."""
    state: Mapped[str] = mapped_column(String(20), index=True)
    reason: Mapped[str] = mapped_column(Text)
    received: Mapped[float] = mapped_column(Float)
    changed: Mapped[float] = mapped_column(Float)
    handed_out: Mapped[bytes | None] = mapped_column(LargeBinary)
    """The kit without its keys, between approval and collection."""
