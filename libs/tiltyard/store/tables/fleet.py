"""Who works, how much room there is, who leads, and what no worker could take."""

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey, Identity, Index, text
from sqlalchemy.orm import Mapped, mapped_column

from .schema import NOW, Base


class RunnerRow(Base):
    """One incarnation of a runner, with its heartbeat."""

    __tablename__ = "runners"
    __table_args__ = (
        Index("ix_runners_alive", "node", postgresql_where=text("alive")),
        Index("ix_runners_pool", "pool"),
        {"postgresql_with": {"fillfactor": 50}},
    )
    incarnation: Mapped[str] = mapped_column(primary_key=True)
    node: Mapped[str]
    pool: Mapped[str] = mapped_column(server_default="default")
    slots: Mapped[int]
    cpu: Mapped[float] = mapped_column(server_default="0")
    memory_mb: Mapped[int] = mapped_column(server_default="0")
    gpu: Mapped[int] = mapped_column(server_default="0")
    alive: Mapped[bool] = mapped_column(server_default="true")
    draining: Mapped[bool] = mapped_column(server_default="false")
    version: Mapped[str]
    started_at: Mapped[datetime] = mapped_column(server_default=NOW)
    last_heartbeat: Mapped[datetime] = mapped_column(server_default=NOW)
    ended_at: Mapped[datetime | None]
    reason: Mapped[str] = mapped_column(server_default="")
    health: Mapped[dict[str, Any] | None]
    """Of its sandboxes, a `NodeHealth`, as its last heartbeat told; None: it has none."""


class PoolRow(Base):
    """Limits of a pool; a pool without a row has none."""

    __tablename__ = "pools"
    __table_args__ = (
        CheckConstraint("max_running >= 0", name="cap"),
        CheckConstraint("headroom >= 0", name="headroom"),
    )
    name: Mapped[str] = mapped_column(primary_key=True)
    max_running: Mapped[int | None]
    """Most rollouts aboard at once; None: no cap."""
    headroom: Mapped[int] = mapped_column(server_default="0")
    """Slots that only runs of the highest class may take."""


class ImageRow(Base):
    """A cap on rollouts of one image; an image without a row has none."""

    __tablename__ = "images"
    __table_args__ = (CheckConstraint("max_running >= 0", name="cap"),)
    name: Mapped[str] = mapped_column(primary_key=True)
    """As tasks name it in `environment.image`."""
    max_running: Mapped[int]
    """Most rollouts aboard at once, in all pools together."""


class Account(Base):
    """How far a tenant, or one of its runs, is behind its share of a pool; the leader alone writes it."""

    __tablename__ = "accounts"
    __table_args__ = ({"postgresql_with": {"fillfactor": 50}},)
    pool: Mapped[str] = mapped_column(primary_key=True)
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    run_id: Mapped[str] = mapped_column(primary_key=True)
    """Empty: the tenant's own account."""
    deficit: Mapped[float] = mapped_column(server_default="0")
    """Share-seconds that it is owed."""
    held: Mapped[float] = mapped_column(server_default="0")
    """Dominant share after the last turn."""
    waited: Mapped[bool] = mapped_column(server_default="false")
    """Whether the last turn left work of it waiting."""
    granted_at: Mapped[datetime | None]
    updated_at: Mapped[datetime] = mapped_column(server_default=NOW)


class Leadership(Base):
    """Who leads a loop; the epoch stands in every write of the leader."""

    __tablename__ = "leaderships"
    name: Mapped[str] = mapped_column(primary_key=True)
    holder: Mapped[str]
    epoch: Mapped[int]
    version: Mapped[str] = mapped_column(server_default="")
    """Of Tiltyard, as the holder has it installed; empty: untold."""
    lease_until: Mapped[datetime]
    trusted_since: Mapped[datetime] = mapped_column(server_default=NOW)
    """Since when silence may be counted against a runner."""


class DeadLetter(Base):
    """A message that the broker gave up on, kept for people."""

    __tablename__ = "dead_letters"
    id: Mapped[int] = mapped_column(Identity(), primary_key=True)
    queue: Mapped[str]
    reason: Mapped[str]
    headers: Mapped[dict[str, Any]]
    body: Mapped[str]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
