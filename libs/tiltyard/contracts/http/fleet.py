"""The fleet and the queue: who works, who waits for what, and what limits hold."""

from datetime import datetime
from typing import Literal

from pydantic import Field

from tiltyard.contracts.document import Document


class NodeHealth(Document):
    """How well a runner's machine makes sandboxes; see `tiltyard.sandbox.PoolHealth`."""

    state: Literal["closed", "open", "half_open"]
    """Of the breaker. While it is open nothing is granted to the runner."""
    reason: str = ""
    """Why it is not closed."""
    pressure: dict[str, float] = Field(default_factory=dict)
    """Percent of the last ten seconds in which work stood still for a resource."""
    drifted: int = 0
    """Sandboxes that were found not to be pristine, and were destroyed."""
    failed: int = 0
    """Sandboxes that could not be made, or whose commands the platform failed, in the last half minute."""


class RunnerView(Document):
    incarnation: str
    node: str
    pool: str
    alive: bool
    slots: int
    cpu: float = 0.0
    memory_mb: int = 0
    gpu: int = 0
    aboard: int
    """Rollouts granted to it that have not ended; `used_…` is what they take."""
    used_slots: int = 0
    used_cpu: float = 0.0
    used_memory_mb: int = 0
    used_gpu: int = 0
    draining: bool
    health: NodeHealth | None = None
    """None: it has no sandboxes of its own."""
    version: str
    last_heartbeat: datetime


class DrainOrder(Document):
    """`POST /v1/fleet/{node}/drain`."""

    draining: bool = True
    """False: grant to the node again."""


class PriorityOrder(Document):
    """`POST /v1/runs/{run}/priority`."""

    priority: Literal["low", "normal", "high"]


class TenantLimits(Document):
    """`PATCH /v1/tenants/{tenant}/limits`: what is left out stays as it is; null: no cap."""

    weight: float = Field(default=1.0, gt=0, le=1_000_000)
    """Part of a contended pool, against other tenants."""
    max_running: int | None = Field(default=None, ge=0, lt=2**31)
    """Most rollouts granted at once."""
    max_queued: int | None = Field(default=None, ge=0, lt=2**31)
    """QUEUED rollouts at which no new run is taken (429)."""


class PoolLimits(Document):
    """`PATCH /v1/pools/{pool}/limits`: what is left out stays as it is; null: no cap."""

    max_running: int | None = Field(default=None, ge=0, lt=2**31)
    """Most rollouts granted at once."""
    headroom: int = Field(default=0, ge=0, lt=2**31)
    """Slots that only runs of the class `high` may take."""


class ImageLimits(Document):
    """`PATCH /v1/images/{image}/limits`; null: no cap."""

    max_running: int | None = Field(ge=0, lt=2**31)
    """Most rollouts of the image granted at once, in all pools together."""


class PoolView(Document):
    """Runners that can take the same work."""

    name: str
    runners: int
    draining: int
    desired_runners: int
    """That could hold all that is aboard or may be granted."""
    queued: int
    aboard: int
    max_running: int | None
    headroom: int
    """Slots that are kept for runs of the class `high`."""
    oldest_queued_at: datetime | None
    slots: int
    cpu: float
    memory_mb: int
    gpu: int
    used_slots: int
    used_cpu: float
    used_memory_mb: int
    used_gpu: int


class QueueEntry(Document):
    """One run in its pool. Shares are dominant shares of the pool, from 0 to 1."""

    run: str
    """Its name; empty for another tenant's."""
    run_id: str
    tenant: str
    pool: str
    priority: Literal["low", "normal", "high"]
    served_as: Literal["low", "normal", "high"]
    """Its class as waiting and preemptions have raised it."""
    queued: int
    backing_off: int
    """Of `queued`, those that wait out a failure."""
    aboard: int
    oldest_wait_seconds: float | None
    share: float
    tenant_share: float
    tenant_due: float | None
    """What its weight gives the tenant among those who wait; None when it does not wait."""
    deficit_seconds: float
    """Share-seconds that the run is owed by its tenant's other runs."""
    tenant_deficit_seconds: float
    """Share-seconds that the tenant is owed by the others."""
    waits_for: str
    """Why what is queued is not granted."""


class QueueView(Document):
    """Who waits for what, and why."""

    pools: tuple[PoolView, ...]
    runs: tuple[QueueEntry, ...]
