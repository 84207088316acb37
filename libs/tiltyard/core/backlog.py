"""How many runners a pool would need to serve what may be served.

Guarantees: what a cap or a back-off keeps waiting asks for no runner.
Does not: know how long rollouts take; it counts what could be aboard at once."""

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil

from tiltyard.core.capacity import NOTHING, Capacity


@dataclass(frozen=True, slots=True, kw_only=True)
class Backlog:
    """The admissible queue of one run."""

    tenant: str
    queued: int
    demand: Capacity
    """Of all of them together."""
    aboard: int = 0
    cap: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Caps:
    """What a tenant has aboard in all pools, and may have."""

    aboard: int
    cap: int | None


def admissible(backlogs: Iterable[Backlog], tenants: dict[str, Caps]) -> Capacity:
    """Demand of what no cap of a run or tenant keeps waiting, in the order given."""
    room = {t: float("inf") if c.cap is None else max(0, c.cap - c.aboard) for t, c in tenants.items()}
    whole = NOTHING
    for b in backlogs:
        own = float("inf") if b.cap is None else max(0, b.cap - b.aboard)
        count = int(min(b.queued, own, room.get(b.tenant, float("inf"))))
        if b.tenant in room:
            room[b.tenant] -= count
        whole = whole + _part(b.demand, count, b.queued)
    return whole


def _part(demand: Capacity, count: int, of: int) -> Capacity:
    if count == of:
        return demand
    return Capacity(
        slots=ceil(demand.slots * count / of),
        cpu=demand.cpu * count / of,
        memory_mb=ceil(demand.memory_mb * count / of),
        gpu=ceil(demand.gpu * count / of),
    )


def desired_runners(used: Capacity, waiting: Capacity, *, runner: Capacity) -> int:
    """Runners of size `runner` that hold all that is aboard and admissible; 1 for any, where no size is
    known."""
    wanted = used + waiting
    if wanted == NOTHING:
        return 0
    return max(1, ceil(wanted.share(runner) - 1e-9)) if runner.slots else 1
