"""Since when a site is left out of a running job."""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.add_column("members", sa.Column("out_since", sa.Float, nullable=True))
