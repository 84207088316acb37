"""Who may ask, and what a repeated request was answered."""

from datetime import datetime
from typing import Any

from sqlalchemy import CheckConstraint, ForeignKey
from sqlalchemy.orm import Mapped, mapped_column

from .schema import NOW, Base


class Tenant(Base):
    """Who owns tasks and runs, and what part of a contended pool is theirs."""

    __tablename__ = "tenants"
    __table_args__ = (
        CheckConstraint("weight > 0", name="weight"),
        CheckConstraint("max_running >= 0 AND max_queued >= 0", name="caps"),
    )
    id: Mapped[str] = mapped_column(primary_key=True)
    weight: Mapped[float] = mapped_column(server_default="1")
    max_running: Mapped[int | None]
    """Most rollouts aboard at once; None: no cap."""
    max_queued: Mapped[int | None]
    """QUEUED rollouts at which no new run is taken; None: no cap."""
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)


class IdempotencyKey(Base):
    """The answer given to a POST, so that its repetition gets the same."""

    __tablename__ = "idempotency_keys"
    tenant_id: Mapped[str] = mapped_column(ForeignKey("tenants.id"), primary_key=True)
    key: Mapped[str] = mapped_column(primary_key=True)
    request_hash: Mapped[str]
    status: Mapped[int]
    body: Mapped[dict[str, Any]]
    created_at: Mapped[datetime] = mapped_column(server_default=NOW)
