"""Tasks, their versions and selections, and what admitting them showed."""

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from .schema import NOW, Base, one_of


class Task(Base):
    """A name that versions belong to."""

    __tablename__ = "tasks"
    __table_args__ = (Index("uq_tasks_tenant_id_name", "tenant_id", "name", unique=True),)
    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)


class TaskVersion(Base):
    """Immutable content, named by its hash within its task; `public` is what a runner may read."""

    __tablename__ = "task_versions"
    __table_args__ = (
        Index("uq_task_versions_task_id_digest", "task_id", "digest", unique=True),
        one_of("state", "SUBMITTED", "ACTIVE", "QUARANTINED"),
    )
    id: Mapped[str] = mapped_column(primary_key=True)
    """Row id; `digest` is the name that people use."""
    task_id: Mapped[str] = mapped_column(ForeignKey("tasks.id"))
    digest: Mapped[str]
    state: Mapped[str] = mapped_column(server_default="SUBMITTED")
    public: Mapped[dict[str, Any]]
    difficulty: Mapped[float | None]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)


class TaskSecret(Base):
    """Verifier and oracle of a version: a table of its own, so that runners can be denied it."""

    __tablename__ = "task_secrets"
    version_id: Mapped[str] = mapped_column(ForeignKey("task_versions.id"), primary_key=True)
    hidden: Mapped[dict[str, Any]]
    digest: Mapped[str]


class Taskset(Base):
    """A named selection of task versions."""

    __tablename__ = "tasksets"
    __table_args__ = (Index("uq_tasksets_tenant_id_name", "tenant_id", "name", unique=True),)
    id: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"))
    name: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)


class TasksetMember(Base):
    __tablename__ = "taskset_members"
    taskset_id: Mapped[str] = mapped_column(ForeignKey("tasksets.id"), primary_key=True)
    version_id: Mapped[str] = mapped_column(ForeignKey("task_versions.id"), primary_key=True)


class Admission(Base):
    """A job: whether a task version is fit to be trained on."""

    __tablename__ = "admissions"
    __table_args__ = (
        one_of("state", "QUEUED", "LEASED", "DONE", "FAILED"),
        Index("ix_admissions_waiting", "created_at", postgresql_where=text("state IN ('QUEUED', 'LEASED')")),
    )
    id: Mapped[str] = mapped_column(primary_key=True)
    version_id: Mapped[str] = mapped_column(ForeignKey("task_versions.id"), index=True)
    repeats: Mapped[int]
    state: Mapped[str] = mapped_column(server_default="QUEUED")
    number: Mapped[int] = mapped_column(server_default="0")
    """Raised by each claim: the lease's number."""
    holder: Mapped[str | None]
    lease_until: Mapped[datetime | None]
    not_before: Mapped[datetime] = mapped_column(server_default=NOW)
    announced_at: Mapped[datetime | None]
    failures: Mapped[int] = mapped_column(server_default="0")
    oracle_passes: Mapped[int] = mapped_column(server_default="0")
    oracle_failures: Mapped[int] = mapped_column(server_default="0")
    noop_passes: Mapped[int] = mapped_column(server_default="0")
    noop_failures: Mapped[int] = mapped_column(server_default="0")
    report: Mapped[str] = mapped_column(server_default="")
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    finished_at: Mapped[datetime | None]
