"""How well a runner's machine makes sandboxes, told with its heartbeat.

Revision ID: 0004
"""

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects.postgresql import JSONB

revision = "0004"
down_revision = "0003"


def upgrade() -> None:
    op.add_column("runners", sa.Column("health", JSONB(), nullable=True))


def downgrade() -> None:
    op.drop_column("runners", "health")
