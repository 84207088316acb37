"""Versions of a policy, and the steps that made them."""

from datetime import datetime
from typing import Any

from sqlalchemy import ForeignKey, text
from sqlalchemy.orm import Mapped, mapped_column

from .schema import NOW, Base, one_of


class PolicyVersion(Base):
    """Weights of a run, published under an integer that only grows."""

    __tablename__ = "policy_versions"
    __table_args__ = (one_of("state", "PUBLISHED", "WITHDRAWN"),)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    version: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(server_default="PUBLISHED")
    step: Mapped[int | None]
    prefix: Mapped[str]
    """Objects under it are a Hugging Face checkpoint folder."""
    files: Mapped[dict[str, Any]]
    """File name → hex SHA-256."""
    checkpoint: Mapped[bool] = mapped_column(server_default="false")
    """Whether the optimizer's state lies beside the weights."""
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)


class TrainingStep(Base):
    """Step n of a run: recorded with its groups before it is computed."""

    __tablename__ = "training_steps"
    __table_args__ = (one_of("state", "STARTED", "COMMITTED", "WITHDRAWN"),)
    run_id: Mapped[str] = mapped_column(ForeignKey("runs.id"), primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True)
    state: Mapped[str] = mapped_column(server_default="STARTED")
    fence: Mapped[int]
    policy_version: Mapped[int | None]
    manifest: Mapped[str | None]
    metrics: Mapped[dict[str, Any]] = mapped_column(server_default=text("'{}'::jsonb"))
    traceparent: Mapped[str] = mapped_column(server_default="")
    started_at: Mapped[datetime] = mapped_column(server_default=NOW)
    committed_at: Mapped[datetime | None]


class StepGroup(Base):
    """The ordered list of a step's groups; a group stands in one step at most."""

    __tablename__ = "step_groups"
    run_id: Mapped[str] = mapped_column(primary_key=True)
    step: Mapped[int] = mapped_column(primary_key=True)
    position: Mapped[int] = mapped_column(primary_key=True)
    group_id: Mapped[str] = mapped_column(ForeignKey("groups.id"), unique=True)
