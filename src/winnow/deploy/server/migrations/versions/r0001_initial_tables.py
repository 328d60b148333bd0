"""The first tables."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

NAME = sa.String(100)
DIGEST = sa.String(64)


def upgrade() -> None:
    _jobs()
    _of_a_job()
    _blobs()
    _federation()


def _jobs() -> None:
    op.create_table(
        "jobs",
        sa.Column("job", NAME, primary_key=True),
        sa.Column("title", sa.Text, nullable=False),
        sa.Column("status", sa.String(20), nullable=False, index=True),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("submitter", NAME, nullable=False),
        sa.Column("organisation", sa.Text, nullable=False),
        sa.Column("role", sa.Text, nullable=False),
        sa.Column("priority", sa.Integer, nullable=False),
        sa.Column("round", sa.Integer, nullable=False),
        sa.Column("rounds", sa.Integer, nullable=False),
        sa.Column("submitted", sa.Float, nullable=False),
        sa.Column("config", sa.Text, nullable=False),
        sa.Column("bundle", DIGEST, nullable=False),
        sa.Column("bundle_size", sa.BigInteger, nullable=False),
        sa.Column("metrics", sa.LargeBinary, nullable=False),
    )


def _of_a_job() -> None:
    op.create_table(
        "rounds",
        sa.Column("job", NAME, sa.ForeignKey("jobs.job"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("checkpoint", DIGEST, nullable=True),
        sa.Column("checkpoint_size", sa.BigInteger, nullable=False),
        sa.Column("settled", sa.LargeBinary, nullable=False),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("at", sa.Float, nullable=False),
    )
    op.create_table(
        "lines",
        sa.Column("job", NAME, sa.ForeignKey("jobs.job"), primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("at", sa.Float, nullable=False),
        sa.Column("source", NAME, nullable=False),
        sa.Column("kind", sa.String(20), nullable=False),
        sa.Column("text", sa.Text, nullable=False),
    )
    op.create_table(
        "members",
        sa.Column("job", NAME, sa.ForeignKey("jobs.job"), primary_key=True),
        sa.Column("site", NAME, primary_key=True, index=True),
        sa.Column("state", sa.String(20), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("clients_from", sa.BigInteger, nullable=True),
        sa.Column("data", sa.LargeBinary, nullable=True),
    )
    op.create_table(
        "outputs",
        sa.Column("job", NAME, sa.ForeignKey("jobs.job"), primary_key=True),
        sa.Column("name", sa.String(200), primary_key=True),
        sa.Column("digest", DIGEST, nullable=False),
        sa.Column("size", sa.BigInteger, nullable=False),
    )


def _blobs() -> None:
    op.create_table(
        "blobs",
        sa.Column("job", NAME, primary_key=True),
        sa.Column("digest", DIGEST, primary_key=True),
        sa.Column("size", sa.BigInteger, nullable=False),
    )
    op.create_table(
        "chunks",
        sa.Column("job", NAME, primary_key=True),
        sa.Column("digest", DIGEST, primary_key=True),
        sa.Column("number", sa.Integer, primary_key=True),
        sa.Column("data", sa.LargeBinary, nullable=False),
    )


def _federation() -> None:
    op.create_table(
        "sites",
        sa.Column("site", NAME, primary_key=True),
        sa.Column("organisation", sa.Text, nullable=False),
        sa.Column("seen", sa.Float, nullable=False),
        sa.Column("winnow", sa.Text, nullable=False),
        sa.Column("data", sa.LargeBinary, nullable=False),
        sa.Column("resources", sa.LargeBinary, nullable=False),
        sa.Column("certificate", sa.LargeBinary, nullable=False),
    )
    op.create_table(
        "lease",
        sa.Column("id", sa.Integer, primary_key=True),
        sa.Column("holder", sa.Text, nullable=False),
        sa.Column("server", NAME, nullable=False),
        sa.Column("address", sa.Text, nullable=False),
        sa.Column("token", sa.BigInteger, nullable=False),
        sa.Column("since", sa.Float, nullable=False),
        sa.Column("expires", sa.Float, nullable=False),
    )
    op.create_table(
        "audit",
        sa.Column("seq", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("line", sa.Text, nullable=False),
    )
    op.create_table(
        "audit_head", sa.Column("id", sa.Integer, primary_key=True), sa.Column("head", sa.LargeBinary, nullable=True)
    )
    op.execute("INSERT INTO audit_head VALUES (1, NULL)")
    op.execute("INSERT INTO lease VALUES (1, '', '', '', 0, 0, 0)")
