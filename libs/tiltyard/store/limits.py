"""Limits that people set: weight and caps of tenants, cap and headroom of pools, caps of images.

Guarantees: what a change leaves out stays as it is; what has no row has no limit.
Does not: hold anybody to them; the next turn of granting does (`core.deal`)."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from sqlalchemy import text
from sqlalchemy.orm import Session

from tiltyard.contracts.http import ImageLimits, PoolLimits, TenantLimits
from tiltyard.store import tenants

_ABOARD = """
SELECT v.public->'environment'->>'image' AS name, sum(held.aboard)::bigint AS aboard
FROM (
    SELECT r.version_id, count(*) AS aboard FROM rollouts r
    WHERE r.state IN ('GRANTED', 'RUNNING', 'PREEMPTING', 'CANCELLING') GROUP BY 1
) held JOIN task_versions v ON v.id = held.version_id
WHERE v.public->'environment'->>'image' = ANY(:names) GROUP BY 1
"""
_VERSIONS = """
SELECT v.id, v.public->'environment'->>'image' AS name FROM task_versions v
WHERE v.public->'environment'->>'image' = ANY(:names) AND v.id IN (
    SELECT m.version_id FROM taskset_members m JOIN runs run ON run.taskset_id = m.taskset_id
    WHERE run.state = 'RUNNING'
)
"""


def set_tenant(session: Session, tenant_id: str, change: TenantLimits) -> TenantLimits:
    """Change a tenant's limits, making the tenant where there is none; what they are now."""
    tenants.ensure(session, tenant_id)
    known = session.execute(
        text("SELECT weight, max_running, max_queued FROM tenants WHERE id = :id FOR UPDATE"),
        {"id": tenant_id},
    ).one()
    now = TenantLimits(**known._mapping).model_copy(update=change.model_dump(exclude_unset=True))
    session.execute(
        text(
            "UPDATE tenants SET weight = :weight, max_running = :max_running, max_queued = :max_queued"
            " WHERE id = :id"
        ),
        {"id": tenant_id, **now.model_dump()},
    )
    return now


def set_pool(session: Session, name: str, change: PoolLimits) -> PoolLimits:
    """Change a pool's limits; what they are now."""
    session.execute(text("INSERT INTO pools (name) VALUES (:name) ON CONFLICT DO NOTHING"), {"name": name})
    known = session.execute(
        text("SELECT max_running, headroom FROM pools WHERE name = :name FOR UPDATE"), {"name": name}
    ).one()
    now = PoolLimits(**known._mapping).model_copy(update=change.model_dump(exclude_unset=True))
    session.execute(
        text("UPDATE pools SET max_running = :max_running, headroom = :headroom WHERE name = :name"),
        {"name": name, **now.model_dump()},
    )
    return now


def set_image(session: Session, name: str, change: ImageLimits) -> ImageLimits:
    """Set an image's cap; None takes it away."""
    if change.max_running is None:
        session.execute(text("DELETE FROM images WHERE name = :name"), {"name": name})
    else:
        session.execute(
            text(
                "INSERT INTO images (name, max_running) VALUES (:name, :cap)"
                " ON CONFLICT (name) DO UPDATE SET max_running = :cap"
            ),
            {"name": name, "cap": change.max_running},
        )
    return change


def pools(session: Session) -> dict[str, PoolLimits]:
    """Limits of the pools that have any."""
    rows = session.execute(text("SELECT name, max_running, headroom FROM pools"))
    return {r.name: PoolLimits(max_running=r.max_running, headroom=r.headroom) for r in rows}


@dataclass(frozen=True, slots=True, kw_only=True)
class Images:
    """Images that have a cap, at one moment."""

    left: Mapping[str, int] = field(default_factory=dict[str, int])
    """How many more rollouts of each may be aboard; below zero: it has too many."""
    of: Mapping[str, str] = field(default_factory=dict[str, str])
    """Image of each task version of a running run that has one of these."""

    @property
    def full(self) -> list[str]:
        """Task versions of which nothing more may be granted."""
        return sorted(version for version, name in self.of.items() if self.left[name] <= 0)


def images(session: Session) -> Images:
    """Nothing is counted where no image has a cap."""
    caps = {r.name: r.max_running for r in session.execute(text("SELECT name, max_running FROM images"))}
    if not caps:
        return Images()
    names = {"names": sorted(caps)}
    aboard = {r.name: r.aboard for r in session.execute(text(_ABOARD), names)}
    return Images(
        left={name: cap - aboard.get(name, 0) for name, cap in caps.items()},
        of={r.id: r.name for r in session.execute(text(_VERSIONS), names)},
    )
