"""People and sites apply for kits on the server's pages."""

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.create_table(
        "applications",
        sa.Column("application", sa.String(64), primary_key=True),
        sa.Column("content", sa.LargeBinary, nullable=False),
        sa.Column("code", sa.String(64), nullable=False, index=True),
        sa.Column("state", sa.String(20), nullable=False, index=True),
        sa.Column("reason", sa.Text, nullable=False),
        sa.Column("received", sa.Float, nullable=False),
        sa.Column("changed", sa.Float, nullable=False),
        sa.Column("handed_out", sa.LargeBinary, nullable=True),
    )
