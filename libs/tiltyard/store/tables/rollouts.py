"""Runs, their groups and rollouts, and every move of a rollout."""

from datetime import datetime, timedelta
from typing import Any

from sqlalchemy import ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from tiltyard.core.rollout import State

from .schema import NOW, Base, one_of


class Run(Base):
    """One training or evaluation job. `holder` and `fence` are the trainer's lease on it."""

    __tablename__ = "runs"
    __table_args__ = (
        Index("uq_runs_tenant_id_name", "tenant_id", "name", unique=True),
        one_of("state", "PENDING", "RUNNING", "COMPLETED", "FAILED", "CANCELLED"),
        one_of("kind", "sft", "train", "evaluation"),
        Index("ix_runs_living", "created_at", postgresql_where=text("state IN ('PENDING', 'RUNNING')")),
    )
    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str]
    kind: Mapped[str]
    state: Mapped[str] = mapped_column(server_default="PENDING")
    reason: Mapped[str] = mapped_column(server_default="")
    config: Mapped[dict[str, Any]]
    taskset_id: Mapped[str | None] = mapped_column(ForeignKey("tasksets.id"))
    policy_run_id: Mapped[str | None] = mapped_column(ForeignKey("runs.id"))
    """The run whose policy it starts from, or evaluates."""
    policy_version: Mapped[int | None]
    """The version of `policy_run_id`, fixed when the run was made."""
    holder: Mapped[str | None]
    fence: Mapped[int] = mapped_column(server_default="0")
    lease_until: Mapped[datetime | None]
    groups_planned: Mapped[int] = mapped_column(server_default="0")
    """Draws made from the sampler; the next group takes this index."""
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    started_at: Mapped[datetime | None]
    finished_at: Mapped[datetime | None]
    deadline: Mapped[datetime]


class Group(Base):
    """G rollouts of one task version, settled together."""

    __tablename__ = "groups"
    __table_args__ = (
        Index("uq_groups_run_id_index", "run_id", "index", unique=True),
        one_of("state", "OPEN", "READY", "FILTERED", "STALE", "EVALUATED", "TRAINED", "CANCELLED"),
        Index("ix_groups_open", "run_id", "index", postgresql_where=text("state = 'OPEN'")),
        Index("ix_groups_ready", "run_id", "index", postgresql_where=text("state = 'READY'")),
    )
    id: Mapped[str] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"))
    version_id: Mapped[str] = mapped_column(ForeignKey("task_versions.id"))
    index: Mapped[int]
    size: Mapped[int]
    state: Mapped[str] = mapped_column(server_default="OPEN")
    reason: Mapped[str] = mapped_column(server_default="")
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    patience: Mapped[timedelta] = mapped_column(server_default=text("interval '10 minutes'"))
    """How long stragglers are waited for."""
    deadline: Mapped[datetime | None]
    """`patience` after its first grant; None before that, and while members were preempted."""
    settled_at: Mapped[datetime | None]


class Rollout(Base):
    """One planned episode. `state` and `fence` are written by `store.rollouts` alone."""

    __tablename__ = "rollouts"
    __table_args__ = (
        Index("uq_rollouts_group_id_member", "group_id", "member", unique=True),
        one_of("state", *(str(s) for s in State)),
        Index("ix_rollouts_queued", "run_id", "id", postgresql_where=text("state = 'QUEUED'")),
        Index(
            "ix_rollouts_aboard",
            "incarnation",
            postgresql_where=text("state IN ('GRANTED', 'RUNNING', 'PREEMPTING', 'CANCELLING')"),
        ),
        Index("ix_rollouts_run_id_state", "run_id", "state"),
        {"postgresql_with": {"fillfactor": 70}},
    )
    id: Mapped[str] = mapped_column(primary_key=True)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"))
    group_id: Mapped[str] = mapped_column(ForeignKey("groups.id"))
    version_id: Mapped[str] = mapped_column(ForeignKey("task_versions.id"))
    member: Mapped[int]
    state: Mapped[str] = mapped_column(server_default="QUEUED")
    fence: Mapped[int] = mapped_column(server_default="0")
    seq: Mapped[int] = mapped_column(server_default="0")
    """Number of its last transition."""
    incarnation: Mapped[str | None]
    granted_at: Mapped[datetime | None]
    queued_at: Mapped[datetime] = mapped_column(server_default=NOW)
    """When it was last queued."""
    not_before: Mapped[datetime] = mapped_column(server_default=NOW)
    expires_at: Mapped[datetime]
    """Schedule-to-start, counted from `queued_at`."""
    slots: Mapped[int] = mapped_column(server_default="1")
    """With `cpu`, `memory_mb` and `gpu`: what it takes of its runner."""
    cpu: Mapped[float] = mapped_column(server_default="0")
    memory_mb: Mapped[int] = mapped_column(server_default="0")
    gpu: Mapped[int] = mapped_column(server_default="0")
    rank: Mapped[int | None]
    """Class in which its last grant was served; 0 is the highest."""
    preemptions: Mapped[int] = mapped_column(server_default="0")
    """How often it was told to yield; free of charge."""
    yields_to: Mapped[str | None] = mapped_column(ForeignKey("runs.id"))
    """While PREEMPTING: the run that its place is kept for."""
    infrastructure_failures: Mapped[int] = mapped_column(server_default="0")
    losses: Mapped[int] = mapped_column(server_default="0")
    """Incarnations lost while it was aboard."""
    alone: Mapped[bool] = mapped_column(server_default="false")
    """Must be alone on its next runner."""
    reward: Mapped[float | None]
    """Of the selected grading; None when there is none or it is invalid."""
    oldest_version: Mapped[int | None]
    """Oldest policy version among the tokens of its produced attempt."""
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    updated_at: Mapped[datetime] = mapped_column(server_default=NOW)


class Transition(Base):
    """Append-only: each move of each rollout."""

    __tablename__ = "transitions"
    __table_args__ = (
        Index("ix_transitions_preempting", "at", postgresql_where=text("\"end\" = 'PREEMPTING'")),
    )
    rollout_id: Mapped[str] = mapped_column(ForeignKey("rollouts.id"), primary_key=True)
    seq: Mapped[int] = mapped_column(primary_key=True)
    start: Mapped[str | None]
    end: Mapped[str]
    fence: Mapped[int]
    actor: Mapped[str]
    reason: Mapped[str] = mapped_column(server_default="")
    at: Mapped[datetime] = mapped_column(server_default=NOW)
