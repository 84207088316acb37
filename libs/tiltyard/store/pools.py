"""Pools as a turn of granting needs them: runners, who waits, and what everybody holds.

Guarantees: what is held derives from the rows of rollouts aboard, so that nothing leaks; the query touches
rollouts that wait or are aboard alone, whatever number has ended.
Does not: lock anything: a grant is a compare-and-set (`store.rollouts`)."""

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, replace
from datetime import datetime
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.orm import Session

from tiltyard.contracts.http import PoolLimits
from tiltyard.core.capacity import NOTHING, Capacity, total
from tiltyard.core.fairness import Pool, Priority, Run, Tenant, Waiting
from tiltyard.store import accounts, fleet, limits
from tiltyard.store.database import now
from tiltyard.store.moves import Key

MOST_AT_ONCE = 512
FEWEST_EACH = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Market:
    """Every pool at one moment."""

    pools: tuple[Pool, ...]
    keys: Mapping[str, Key]
    """Of the rollouts that wait, by id."""
    at: datetime
    since: Mapping[str, datetime]
    """When each pool's accounts were last brought up to date."""

    def seconds(self, pool: str) -> float:
        """Time that the pool's accounts are to be accrued for; longer than a few turns nobody looked."""
        last = self.since.get(pool, self.at)
        return min(LONGEST_GAP, max(0.0, (self.at - last).total_seconds()))


LONGEST_GAP = 5.0

_WAITING = """
WITH living AS (
    SELECT greatest(:few, least(:most, 2 * :each / greatest(1, count(*)))) AS each
    FROM runs WHERE state = 'RUNNING' AND kind <> 'sft'
)
SELECT run.id AS run_id, run.tenant_id, run.config->>'priority' AS priority,
    coalesce(run.config->'rollouts'->>'pool', 'default') AS pool,
    coalesce((run.config->'rollouts'->>'weight')::float8, 1) AS weight,
    (run.config->'rollouts'->>'max_running')::bigint AS cap, head.*
FROM living CROSS JOIN runs run
LEFT JOIN unnest(CAST(:runs AS text[]), CAST(:aboard AS bigint[])) AS mine(run, aboard) ON mine.run = run.id
CROSS JOIN LATERAL (
    SELECT (run.config->'rollouts'->>'max_running')::bigint - coalesce(mine.aboard, 0)
) AS under(cap)
LEFT JOIN LATERAL (
    SELECT r.id, r.version_id, r.group_id, r.fence, r.queued_at, r.alone, r.preemptions, r.slots, r.cpu,
        r.memory_mb, r.gpu
    FROM rollouts r
    WHERE r.run_id = run.id AND r.state = 'QUEUED' AND r.not_before <= statement_timestamp()
    AND r.version_id <> ALL(CAST(:full AS text[]))
    ORDER BY r.id
    LIMIT CASE WHEN under.cap <= 0 THEN 1
        ELSE least(living.each, greatest(:few, coalesce(under.cap, living.each))) END
) head ON true
WHERE run.state = 'RUNNING' AND run.kind <> 'sft'
ORDER BY run.id, head.id
"""
"""A loose scan: one probe of a partial index for each running run, then the head of its queue, which is short
where the run is near its cap."""

_HELD = """
SELECT r.run_id, run.tenant_id, coalesce(run.config->'rollouts'->>'pool', 'default') AS pool,
    count(*) AS aboard, sum(r.slots)::bigint AS slots, sum(r.cpu)::float8 AS cpu,
    sum(r.memory_mb)::bigint AS memory_mb, sum(r.gpu)::bigint AS gpu
FROM rollouts r JOIN runs run ON run.id = r.run_id
WHERE r.state IN ('GRANTED', 'RUNNING', 'PREEMPTING', 'CANCELLING')
GROUP BY r.run_id, run.tenant_id, 3
"""
_TENANTS = "SELECT id, weight, max_running FROM tenants WHERE id = ANY(:ids)"


def capacity_of(row: Row[Any]) -> Capacity:
    """The four columns of a row."""
    return Capacity(slots=row.slots, cpu=row.cpu, memory_mb=row.memory_mb, gpu=row.gpu)


@dataclass(slots=True)
class _Held:
    """What a run holds."""

    tenant: str
    pool: str
    aboard: int = 0
    usage: Capacity = NOTHING


def market(session: Session, *, most: int = MOST_AT_ONCE, fewest: int = 1) -> Market:
    """Everything that a turn of granting decides by; the heads of queues hold `most` rollouts together, but
    a few at least each; where no slot is free, `fewest`."""
    runners: dict[str, list[fleet.Runner]] = defaultdict(list)
    for runner in fleet.alive(session):
        runners[runner.pool].append(runner)
    free = sum(max(0, r.room.slots) for rs in runners.values() for r in rs)
    held = _held(session)
    images = limits.images(session)
    runs, keys = _runs(session, held, images, each=min(most, free) if free else fewest)
    tenants = _tenants(session, {r.tenant for rs in runs.values() for r in rs}, held)
    capped = limits.pools(session)
    books, since = accounts.load(session)
    pools = tuple(
        _pool(
            name,
            tuple(runners[name]),
            tuple(runs[name]),
            tenants,
            held,
            books,
            capped.get(name, UNLIMITED),
            images.left,
        )
        for name in sorted({*runners, *runs})
    )
    return Market(pools=pools, keys=keys, at=now(session), since=since)


def _held(session: Session) -> dict[str, _Held]:
    return {
        row.run_id: _Held(row.tenant_id, row.pool, row.aboard, capacity_of(row))
        for row in session.execute(text(_HELD))
    }


def _runs(
    session: Session, held: Mapping[str, _Held], images: limits.Images, *, each: int
) -> tuple[dict[str, list[Run]], dict[str, Key]]:
    waiting: dict[str, list[Waiting]] = defaultdict(list)
    keys: dict[str, Key] = {}
    first: dict[str, Row[Any]] = {}
    few, most = (1, 1) if each == 1 else (FEWEST_EACH, MOST_AT_ONCE)
    values = {
        "each": each,
        "few": few,
        "most": most,
        "full": list(images.full),
        "runs": list(held),
        "aboard": [h.aboard for h in held.values()],
    }
    for row in session.execute(text(_WAITING), values):
        first.setdefault(row.run_id, row)
        if row.id is not None:
            keys[row.id] = Key(rollout_id=row.id, fence=row.fence)
            waiting[row.run_id].append(_waiting(row, images.of.get(row.version_id, "")))
    runs: dict[str, list[Run]] = defaultdict(list)
    for run_id, row in first.items():
        mine = held.get(run_id, _Held(row.tenant_id, row.pool))
        runs[row.pool].append(
            Run(
                id=run_id,
                tenant=row.tenant_id,
                priority=Priority(row.priority or "normal"),
                weight=row.weight,
                usage=mine.usage,
                aboard=mine.aboard,
                cap=row.cap,
                waiting=tuple(waiting[run_id]),
            )
        )
    return runs, keys


def _waiting(row: Row[Any], image: str) -> Waiting:
    return Waiting(
        rollout=row.id,
        group=row.group_id,
        demand=capacity_of(row),
        queued_at=row.queued_at,
        alone=row.alone,
        preemptions=row.preemptions,
        image=image,
    )


def _tenants(session: Session, ids: set[str], held: Mapping[str, _Held]) -> dict[str, Tenant]:
    everyone = ids | {h.tenant for h in held.values()}
    return {
        row.id: Tenant(
            id=row.id,
            weight=row.weight,
            cap=row.max_running,
            aboard=sum(h.aboard for h in held.values() if h.tenant == row.id),
        )
        for row in session.execute(text(_TENANTS), {"ids": sorted(everyone)})
    }


def _pool(
    name: str,
    runners: tuple[fleet.Runner, ...],
    runs: tuple[Run, ...],
    tenants: Mapping[str, Tenant],
    held: Mapping[str, _Held],
    books: Mapping[accounts.Name, accounts.Book],
    limit: PoolLimits,
    images: Mapping[str, int],
) -> Pool:
    here = [h for h in held.values() if h.pool == name]
    present = {r.tenant for r in runs} | {h.tenant for h in here}
    return Pool(
        name=name,
        runners=runners,
        cap=limit.max_running,
        headroom=limit.headroom,
        images=images,
        capacity=total(r.capacity for r in runners),
        tenants={
            key: _tenant(
                tenants[key],
                total(h.usage for h in here if h.tenant == key),
                books.get((name, key, ""), NO_BOOK),
            )
            for key in sorted(present)
        },
        runs=tuple(_run(run, books.get((name, run.tenant, run.id), NO_BOOK)) for run in runs),
    )


NO_BOOK = accounts.Book()
UNLIMITED = PoolLimits()


def _tenant(tenant: Tenant, usage: Capacity, book: accounts.Book) -> Tenant:
    return replace(tenant, usage=usage, deficit=book.deficit, held=book.held, waited=book.waited)


def _run(run: Run, book: accounts.Book) -> Run:
    return replace(run, deficit=book.deficit, held=book.held, waited=book.waited, granted_at=book.granted_at)
