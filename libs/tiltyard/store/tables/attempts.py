"""Attempts at a rollout, their gradings, and the scores that came of them."""

from datetime import datetime

from sqlalchemy import ForeignKey, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from .schema import NOW, Base, one_of


class Attempt(Base):
    """One try at a rollout, named by its fence."""

    __tablename__ = "attempts"
    __table_args__ = (
        Index(
            "ix_attempts_taken",
            "incarnation",
            "ended_at",
            postgresql_where=text("outcome IN ('preempted', 'cancelled')"),
        ),
    )
    rollout_id: Mapped[str] = mapped_column(ForeignKey("rollouts.id"), primary_key=True)
    fence: Mapped[int] = mapped_column(primary_key=True)
    incarnation: Mapped[str]
    traceparent: Mapped[str]
    granted_at: Mapped[datetime] = mapped_column(server_default=NOW)
    claimed_at: Mapped[datetime | None]
    ended_at: Mapped[datetime | None]
    outcome: Mapped[str | None]
    reason: Mapped[str] = mapped_column(server_default="")
    artifact: Mapped[str | None]
    """Key of its AttemptRecord."""
    sha256: Mapped[str | None]
    oldest_version: Mapped[int | None]
    newest_version: Mapped[int | None]


class Grading(Base):
    """A job: one evaluation of a produced attempt."""

    __tablename__ = "gradings"
    __table_args__ = (
        one_of("state", "QUEUED", "LEASED", "DONE", "FAILED", "CANCELLED"),
        Index("uq_gradings_selected", "rollout_id", unique=True, postgresql_where=text("selected")),
        Index("ix_gradings_waiting", "created_at", postgresql_where=text("state IN ('QUEUED', 'LEASED')")),
        Index("ix_gradings_rollout_id", "rollout_id"),
    )
    id: Mapped[str] = mapped_column(primary_key=True)
    rollout_id: Mapped[str] = mapped_column(ForeignKey("rollouts.id"))
    fence: Mapped[int]
    state: Mapped[str] = mapped_column(server_default="QUEUED")
    number: Mapped[int] = mapped_column(server_default="0")
    holder: Mapped[str | None]
    lease_until: Mapped[datetime | None]
    not_before: Mapped[datetime] = mapped_column(server_default=NOW)
    announced_at: Mapped[datetime | None]
    failures: Mapped[int] = mapped_column(server_default="0")
    verifier: Mapped[str | None]
    outcome: Mapped[str | None]
    reason: Mapped[str] = mapped_column(server_default="")
    reward: Mapped[float | None]
    artifact: Mapped[str | None]
    selected: Mapped[bool] = mapped_column(server_default="false")
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
    finished_at: Mapped[datetime | None]


class Score(Base):
    """One component of one grading."""

    __tablename__ = "scores"
    grading_id: Mapped[str] = mapped_column(ForeignKey("gradings.id"), primary_key=True)
    component: Mapped[str] = mapped_column(primary_key=True)
    value: Mapped[float | None]
    weight: Mapped[float]
    gate: Mapped[bool]
    tier: Mapped[int]
    outcome: Mapped[str]
