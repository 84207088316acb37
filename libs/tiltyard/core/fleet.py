"""When a silent runner is given up, and what its rollouts then pay.

Guarantees: nobody is given up in the first minute after the database returned or a clock jumped.
Does not: stop the silent runner. It stops itself when its heartbeat touches no row
(services/runner/heartbeat.py). Nor does it choose who gets a grant (`core.fairness`)."""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

from tiltyard.core.capacity import NOTHING, Capacity

HEARTBEAT_EVERY = timedelta(seconds=5)
SILENT_AFTER = timedelta(seconds=30)
RECOVERY_GRACE = timedelta(seconds=60)
CLAIM_WITHIN = timedelta(seconds=60)
LOWEST = 99
"""A rank below every class of priority."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """A living incarnation, as the dispatcher sees it."""

    incarnation: str
    last_heartbeat: datetime
    capacity: Capacity
    pool: str = "default"
    aboard: int = 0
    """Rollouts granted to it that have not ended."""
    used: Capacity = NOTHING
    """What those take."""
    draining: bool = False
    ill: bool = False
    """Whether its machine makes no sandboxes now: it gets nothing until it does."""
    lonely: bool = False
    """Whether a rollout is aboard that must be alone: it gets nothing beside it."""
    yields_to: int = LOWEST
    """While rollouts aboard yield to work of this rank, what gets free goes to no lower one."""

    @property
    def closed(self) -> bool:
        """Whether nothing is granted to it, however much it has free."""
        return self.draining or self.ill

    @property
    def room(self) -> Capacity:
        """What may be granted to it now."""
        return NOTHING if self.closed or self.lonely else self.capacity - self.used


@dataclass(frozen=True, slots=True, kw_only=True)
class GiveUp:
    """An incarnation that is to be marked lost."""

    incarnation: str
    silent_for: timedelta


def given_up(runners: Iterable[Runner], *, now: datetime, trusted_since: datetime) -> list[GiveUp]:
    """Runners silent for longer than `SILENT_AFTER`, judged only by time that can be trusted."""
    if now - trusted_since < RECOVERY_GRACE:
        return []
    return [
        GiveUp(incarnation=r.incarnation, silent_for=now - r.last_heartbeat)
        for r in runners
        if now - r.last_heartbeat > SILENT_AFTER
    ]


class AfterLoss(StrEnum):
    """What becomes of a rollout whose incarnation was lost."""

    REQUEUE = "requeue"
    """Tried again; the loss is charged to the infrastructure."""
    REQUEUE_ALONE = "requeue_alone"
    """Tried again, alone on its runner: it was aboard two lost incarnations."""
    DEAD = "dead"
    """It was alone aboard when its runner died."""


def after_loss(*, losses: int, was_alone_by_order: bool) -> AfterLoss:
    """Judge a rollout after its `losses`-th lost incarnation (this one counted)."""
    if was_alone_by_order:
        return AfterLoss.DEAD
    return AfterLoss.REQUEUE_ALONE if losses >= 2 else AfterLoss.REQUEUE
