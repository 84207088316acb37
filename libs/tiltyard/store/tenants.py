"""Tenants: who owns tasks and runs, and what of the fleet is theirs.

Guarantees: the tenant of a local stack exists before anything is written under it; a tenant past its cap of
QUEUED rollouts gets no new run.
Does not: hold people or tokens; a token maps to a tenant in the registry's settings."""

from sqlalchemy import text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.orm import Session

from tiltyard.store.tables import Tenant

DEFAULT = "default"
"""The tenant that a registry with one token serves."""


def ensure(session: Session, tenant_id: str = DEFAULT) -> None:
    """Make the tenant unless it exists."""
    session.execute(insert(Tenant).values(id=tenant_id).on_conflict_do_nothing())


class QueueFull(RuntimeError):
    """The tenant has as many QUEUED rollouts as it may: try again later."""


def has_room(session: Session, tenant_id: str) -> None:
    """Raise `QueueFull` when the tenant is at its cap of QUEUED rollouts."""
    counted = _queued(session, tenant_id)
    if counted is not None and counted[0] >= counted[1]:
        raise QueueFull(
            f"tenant {tenant_id!r} has {counted[0]} rollouts queued, and may have {counted[1]}: wait until"
            " some have been granted, or cancel a run"
        )


def is_full(session: Session, tenant_id: str) -> bool:
    """Whether the tenant is at its cap of QUEUED rollouts."""
    counted = _queued(session, tenant_id)
    return counted is not None and counted[0] >= counted[1]


def _queued(session: Session, tenant_id: str) -> tuple[int, int] | None:
    """How many rollouts the tenant has QUEUED, and may have; None without a cap: then nothing is counted."""
    cap = session.execute(
        text("SELECT max_queued FROM tenants WHERE id = :id"), {"id": tenant_id}
    ).scalar_one_or_none()
    if cap is None:
        return None
    waiting = session.execute(
        text(
            "SELECT count(*) FROM rollouts r JOIN runs run ON run.id = r.run_id"
            " WHERE r.state = 'QUEUED' AND run.tenant_id = :id"
        ),
        {"id": tenant_id},
    ).scalar_one()
    return waiting, cap
