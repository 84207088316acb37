"""Fairness, capacity and preemption.

Revision ID: 0002
"""

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

VACUUM = ("rollouts", "attempts", "gradings", "transitions")


def upgrade() -> None:
    _tenants_and_pools()
    _capacity()
    _rollouts()
    op.add_column(
        "leaderships", sa.Column("version", sa.Text(), server_default=sa.text("''"), nullable=False)
    )
    for table in VACUUM:
        op.execute(
            f"ALTER TABLE {table} SET (autovacuum_vacuum_scale_factor = 0.01,"
            " autovacuum_vacuum_insert_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02)"
        )


def _tenants_and_pools() -> None:
    op.add_column("tenants", sa.Column("max_running", sa.BigInteger()))
    op.add_column("tenants", sa.Column("max_queued", sa.BigInteger()))
    op.create_check_constraint(op.f("ck_tenants_weight"), "tenants", "weight > 0")
    op.create_check_constraint(op.f("ck_tenants_caps"), "tenants", "max_running >= 0 AND max_queued >= 0")
    op.create_table(
        "pools",
        sa.Column("name", sa.Text(), nullable=False),
        sa.Column("max_running", sa.BigInteger(), nullable=True),
        sa.CheckConstraint("max_running >= 0", name=op.f("ck_pools_cap")),
        sa.PrimaryKeyConstraint("name", name=op.f("pk_pools")),
    )
    op.create_table(
        "accounts",
        sa.Column("pool", sa.Text(), nullable=False),
        sa.Column("tenant_id", sa.Text(), nullable=False),
        sa.Column("run_id", sa.Text(), nullable=False),
        sa.Column("deficit", sa.Float(), server_default="0", nullable=False),
        sa.Column("held", sa.Float(), server_default="0", nullable=False),
        sa.Column("waited", sa.Boolean(), server_default="false", nullable=False),
        sa.Column("granted_at", sa.DateTime(timezone=True), nullable=True),
        sa.Column(
            "updated_at",
            sa.DateTime(timezone=True),
            server_default=sa.text("clock_timestamp()"),
            nullable=False,
        ),
        sa.ForeignKeyConstraint(["tenant_id"], ["tenants.id"], name=op.f("fk_accounts_tenant_id")),
        sa.PrimaryKeyConstraint("pool", "tenant_id", "run_id", name=op.f("pk_accounts")),
        postgresql_with={"fillfactor": 50},
    )


def _capacity() -> None:
    for table in ("runners", "rollouts"):
        op.add_column(table, sa.Column("cpu", sa.Float(), server_default="0", nullable=False))
        op.add_column(table, sa.Column("memory_mb", sa.BigInteger(), server_default="0", nullable=False))
        op.add_column(table, sa.Column("gpu", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("rollouts", sa.Column("slots", sa.BigInteger(), server_default="1", nullable=False))
    op.create_index("ix_runners_pool", "runners", ["pool"])


def _rollouts() -> None:
    now = sa.text("clock_timestamp()")
    op.add_column(
        "rollouts", sa.Column("queued_at", sa.DateTime(timezone=True), server_default=now, nullable=False)
    )
    op.execute("UPDATE rollouts SET queued_at = least(created_at, expires_at)")
    op.add_column("rollouts", sa.Column("rank", sa.BigInteger()))
    op.add_column("rollouts", sa.Column("preemptions", sa.BigInteger(), server_default="0", nullable=False))
    op.add_column("rollouts", sa.Column("yields_to", sa.Text()))
    op.create_foreign_key(op.f("fk_rollouts_yields_to"), "rollouts", "runs", ["yields_to"], ["id"])
    op.drop_index("ix_rollouts_queued", "rollouts")
    op.create_index(
        "ix_rollouts_queued", "rollouts", ["run_id", "id"], postgresql_where=sa.text("state = 'QUEUED'")
    )
    patience = sa.text("interval '10 minutes'")
    op.add_column("groups", sa.Column("patience", sa.Interval(), server_default=patience, nullable=False))
    op.execute("UPDATE groups SET patience = greatest(deadline - created_at, interval '1 second')")
    op.alter_column("groups", "deadline", nullable=True)


def downgrade() -> None:
    for table in VACUUM:
        op.execute(
            f"ALTER TABLE {table} RESET (autovacuum_vacuum_scale_factor,"
            " autovacuum_vacuum_insert_scale_factor, autovacuum_analyze_scale_factor)"
        )
    op.drop_column("leaderships", "version")
    op.execute("UPDATE groups SET deadline = clock_timestamp() + patience WHERE deadline IS NULL")
    op.alter_column("groups", "deadline", nullable=False)
    op.drop_column("groups", "patience")
    op.drop_index("ix_rollouts_queued", "rollouts")
    op.create_index(
        "ix_rollouts_queued", "rollouts", ["not_before"], postgresql_where=sa.text("state = 'QUEUED'")
    )
    for column in ("yields_to", "preemptions", "rank", "queued_at", "slots", "cpu", "memory_mb", "gpu"):
        op.drop_column("rollouts", column)
    op.drop_index("ix_runners_pool", "runners")
    for column in ("cpu", "memory_mb", "gpu"):
        op.drop_column("runners", column)
    op.drop_table("accounts")
    op.drop_table("pools")
    op.drop_constraint(op.f("ck_tenants_caps"), "tenants")
    op.drop_constraint(op.f("ck_tenants_weight"), "tenants")
    op.drop_column("tenants", "max_queued")
    op.drop_column("tenants", "max_running")
