"""A round has a digest of the job's event lines up to its own; rounds of earlier versions have none."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("rounds", sa.Column("events", sa.String(64), nullable=True))
