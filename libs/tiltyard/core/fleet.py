"""When a silent runner is given up, what its rollouts then pay, and who gets the next grants.

Guarantees: nobody is given up in the first minute after the database returned or a clock jumped; a grant
never exceeds a runner's free slots.
Does not: stop the silent runner. It stops itself when its heartbeat touches no row
(services/runner/heartbeat.py)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from enum import StrEnum

HEARTBEAT_EVERY = timedelta(seconds=5)
SILENT_AFTER = timedelta(seconds=30)
RECOVERY_GRACE = timedelta(seconds=60)
CLAIM_WITHIN = timedelta(seconds=60)


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """A living incarnation, as the dispatcher sees it."""

    incarnation: str
    last_heartbeat: datetime
    slots: int
    aboard: int = 0
    draining: bool = False
    lonely: bool = False
    """Whether a rollout is aboard that must be alone: it gets nothing beside it."""

    @property
    def free(self) -> int:
        """Rollouts that may be granted to it now."""
        return 0 if self.draining or self.lonely else max(0, self.slots - self.aboard)


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


def allot(queued: Sequence[tuple[str, bool]], runners: Iterable[Runner]) -> Mapping[str, list[str]]:
    """Grants: incarnation → rollout ids, in queue order, each to the runner with most free slots.

    `queued` holds (rollout id, must run alone). A lonely rollout goes only to an empty runner, and fills
    it."""
    hosts = [r for r in runners if r.free]
    free = {r.incarnation: r.free for r in hosts}
    empty = {r.incarnation for r in hosts if not r.aboard}
    grants: dict[str, list[str]] = {}
    for rollout, alone in queued:
        choice = sorted(empty) if alone else sorted(free, key=lambda i: (-free[i], i))
        if not choice and alone:
            continue
        if not choice:
            break
        chosen = choice[0]
        grants.setdefault(chosen, []).append(rollout)
        empty.discard(chosen)
        free[chosen] -= free[chosen] if alone else 1
        if not free[chosen]:
            del free[chosen]
    return grants
