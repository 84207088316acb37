"""Whose turn it is: priority class with ageing, then tenant, then run.

Guarantees: tenants that wait share a pool by their weights, and so do the runs of a tenant, however the work
is cut into runs; nobody waits for ever; what nobody else can use is given to whoever can; caps hold.
Does not: keep accounts (`core.accounts` says how they change, `store.accounts` keeps them), nor take anything
back: a grant stands until its rollout ends.

The rule, at each grant: the one that is most whole rollouts behind its share of what those who wait hold
together (dominant shares, Ghodsi et al., NSDI 2011); among those about right the one with the greatest
deficit, which settles over time what whole rollouts of unequal length leave (deficit round robin, Shreedhar
and Varghese, SIGCOMM 1995)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from enum import StrEnum
from math import floor

from tiltyard.core.capacity import NOTHING, Capacity
from tiltyard.core.fleet import Runner

AGE_EVERY = timedelta(seconds=120)
"""A run that waits this long without a grant rises one class, until it gets one."""
BOOST_AFTER = 2
"""A rollout preempted this often rises one class and is not preempted again."""

EXACT = 1e-9
"""For sums of shares that do not add up exactly."""


class Priority(StrEnum):
    """Class of a run."""

    HIGH = "high"
    """Served first."""
    NORMAL = "normal"
    """Served when no high run waits."""
    LOW = "low"
    """Served when nobody else waits."""

    @property
    def rank(self) -> int:
        """0 is served first."""
        return list(Priority).index(self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """A rollout that may be granted now."""

    rollout: str
    group: str
    demand: Capacity
    queued_at: datetime
    alone: bool = False
    preemptions: int = 0
    image: str = ""
    """Its image, where that has a cap."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """A tenant in one pool."""

    id: str
    weight: float = 1.0
    deficit: float = 0.0
    """Share-seconds that it is owed; negative: that it owes."""
    usage: Capacity = NOTHING
    held: float = 0.0
    """Dominant share that it had after the last turn."""
    waited: bool = False
    """Whether work of it was left waiting by the last turn."""
    aboard: int = 0
    """Of its rollouts in all pools, those that are granted and have not ended."""
    cap: int | None = None
    """Most rollouts aboard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A run in its pool, with the head of its queue."""

    id: str
    tenant: str
    priority: Priority = Priority.NORMAL
    weight: float = 1.0
    deficit: float = 0.0
    usage: Capacity = NOTHING
    held: float = 0.0
    waited: bool = False
    aboard: int = 0
    cap: int | None = None
    granted_at: datetime | None = None
    """When it last got a grant."""
    waiting: tuple[Waiting, ...] = ()
    """In order; members of a group stand together."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Runners that can take the same work, and who asks for them."""

    name: str
    runners: tuple[Runner, ...]
    tenants: Mapping[str, Tenant]
    runs: tuple[Run, ...]
    cap: int | None = None
    capacity: Capacity = field(default=NOTHING)
    """Of all its runners together."""
    headroom: int = 0
    """Slots that only runs of the highest class may take."""
    images: Mapping[str, int] = field(default_factory=dict[str, int])
    """How many more rollouts of each image that has a cap may be aboard, in all pools together."""

    @property
    def lendable(self) -> int:
        """Slots that runs below the highest class may hold together."""
        return sum(r.used.slots if r.closed else r.capacity.slots for r in self.runners) - self.headroom

    @property
    def lent(self) -> int:
        """Slots that they hold."""
        return sum(r.usage.slots for r in self.runs if r.priority is not Priority.HIGH)


def rank(run: Run, now: datetime) -> int:
    """The class in which a run is served now: its own, raised by waiting and by having been preempted."""
    if not run.waiting:
        return run.priority.rank
    since = min(w.queued_at for w in run.waiting)
    if run.granted_at is not None:
        since = max(since, run.granted_at)
    aged = max(0, int((now - since) / AGE_EVERY))
    boosted = any(w.preemptions >= BOOST_AFTER for w in run.waiting)
    return max(0, run.priority.rank - aged - boosted)


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """A rollout that a runner shall get."""

    rollout: str
    run: str
    incarnation: str
    rank: int
    """The class that it was served in: nothing of that class or a lower one takes its place."""


class Refusal(StrEnum):
    """Why work of a run still waits after a turn."""

    NO_RUNNER = "no_runner"
    """The pool has no runner that takes work."""
    TOO_LARGE = "too_large"
    """No runner of the pool is large enough, even empty."""
    RUN_CAP = "run_cap"
    """The run has as many rollouts aboard as it may."""
    TENANT_CAP = "tenant_cap"
    """The tenant has as many rollouts aboard as it may."""
    POOL_CAP = "pool_cap"
    """The pool has as many rollouts aboard as it may."""
    IMAGE_CAP = "image_cap"
    """As many rollouts of its image are aboard as may be."""
    HEADROOM = "headroom"
    """What is free is kept for runs of the highest class."""
    FULL = "full"
    """It waits for its share of capacity that others hold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Dealt:
    """What one turn gives, and why the rest waits."""

    grants: tuple[Grant, ...]
    refusals: Mapping[str, Refusal]
    """By run."""


def behind(share: float, weight: float, *, held: float, weights: float, item: float) -> tuple[int, float]:
    """How many whole items of dominant share `item` one is behind its part of `held + item`, and how much
    that is as a share.

    Up to one item too many and two too few count as 0: within them the deficit decides."""
    lag = weight / weights * (held + item) - share
    items = lag / item
    return 0 if -1 - EXACT <= items < 2 - EXACT else floor(items + EXACT), lag


def in_order(waiting: Sequence[Waiting]) -> list[list[Waiting]]:
    """Bundles that are granted together: those preempted too often first, then as they stand."""
    boosted = [w for w in waiting if w.preemptions >= BOOST_AFTER]
    bundles: list[list[Waiting]] = []
    for item in (*boosted, *(w for w in waiting if w.preemptions < BOOST_AFTER)):
        if bundles and bundles[-1][-1].group == item.group:
            bundles[-1].append(item)
        else:
            bundles.append([item])
    return bundles
