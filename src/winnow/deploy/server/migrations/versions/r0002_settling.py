"""What a round settled is told by client: which tasks are over is stored beside it, and what each site has heard."""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"


def upgrade() -> None:
    op.add_column("rounds", sa.Column("over", sa.LargeBinary, nullable=True))
    op.add_column("members", sa.Column("heard", sa.Integer, nullable=False, server_default="0"))
