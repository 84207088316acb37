"""Preemption, headroom of pools, caps of images.

Revision ID: 0003
"""

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"


def upgrade() -> None:
    op.create_index(
        "ix_attempts_taken",
        "attempts",
        ["incarnation", "ended_at"],
        postgresql_where=sa.text("outcome IN ('preempted', 'cancelled')"),
    )
    op.create_index(
        "ix_transitions_preempting",
        "transitions",
        ["at"],
        postgresql_where=sa.text("\"end\" = 'PREEMPTING'"),
    )
    op.add_column("pools", sa.Column("headroom", sa.BigInteger(), server_default="0", nullable=False))
    op.create_check_constraint(op.f("ck_pools_headroom"), "pools", "headroom >= 0")
    op.create_table(
        "images",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("max_running", sa.BigInteger(), nullable=False),
        sa.CheckConstraint("max_running >= 0", name=op.f("ck_images_cap")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_images")),
    )


def downgrade() -> None:
    op.drop_table("images")
    op.drop_constraint(op.f("ck_pools_headroom"), "pools")
    op.drop_column("pools", "headroom")
    op.drop_index("ix_transitions_preempting", "transitions")
    op.drop_index("ix_attempts_taken", "attempts")
