"""The queue as people see it: who waits, for how long, with what share, and for what.

Guarantees: told by the rows and the rules that the next turn of granting decides by; nothing is changed.
Does not: tell the names of other tenants' runs."""

from dataclasses import dataclass
from datetime import datetime

from sqlalchemy import text
from sqlalchemy.orm import Session

from tiltyard.contracts.http import PoolView, QueueEntry, QueueView
from tiltyard.core.accounts import accrued
from tiltyard.core.backlog import Backlog, Caps, admissible, desired_runners
from tiltyard.core.capacity import NOTHING, Capacity, total
from tiltyard.core.deal import deal_all
from tiltyard.core.fairness import Pool, Priority, Refusal, Run, rank
from tiltyard.store import pools
from tiltyard.store.pools import capacity_of

_QUEUES = """
SELECT r.run_id, min(run.name) AS name, count(*) AS queued, min(r.queued_at) AS oldest,
    count(*) FILTER (WHERE r.not_before <= clock_timestamp()) AS admissible,
    coalesce(sum(r.slots) FILTER (WHERE r.not_before <= clock_timestamp()), 0)::bigint AS slots,
    coalesce(sum(r.cpu) FILTER (WHERE r.not_before <= clock_timestamp()), 0)::float8 AS cpu,
    coalesce(sum(r.memory_mb) FILTER (WHERE r.not_before <= clock_timestamp()), 0)::bigint AS memory_mb,
    coalesce(sum(r.gpu) FILTER (WHERE r.not_before <= clock_timestamp()), 0)::bigint AS gpu
FROM rollouts r JOIN runs run ON run.id = r.run_id WHERE r.state = 'QUEUED' GROUP BY r.run_id
"""
REASONS = {
    Refusal.NO_RUNNER: "pool {pool!r} has no runner that takes work: start one, end its draining, or see its"
    " health",
    Refusal.TOO_LARGE: "no living runner of pool {pool!r} is large enough: {lacking}",
    Refusal.RUN_CAP: "the run has {aboard} aboard, and rollouts.max_running is {cap}",
    Refusal.TENANT_CAP: "the tenant has as many aboard as it may",
    Refusal.POOL_CAP: "pool {pool!r} has as many aboard as it may",
    Refusal.IMAGE_CAP: "as many rollouts of its image are aboard as may be",
    Refusal.HEADROOM: "pool {pool!r} keeps {headroom} slots for high runs",
    Refusal.FULL: "for its turn: others hold the capacity",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class _Told:
    """What is counted of a run's queue."""

    name: str
    queued: int
    oldest: datetime
    admissible: int
    demand: Capacity


def _queues(session: Session) -> dict[str, _Told]:
    return {
        r.run_id: _Told(
            name=r.name, queued=r.queued, oldest=r.oldest, admissible=r.admissible, demand=capacity_of(r)
        )
        for r in session.execute(text(_QUEUES))
    }


def queue(session: Session, tenant_id: str) -> QueueView:
    """Every pool, and every run that waits or has something aboard; most behind first."""
    market, told = pools.market(session), _queues(session)
    entries: list[QueueEntry] = []
    due = [accrued(pool, seconds=market.seconds(pool.name)) for pool in market.pools]
    for now_due, dealt in deal_all(due, now=market.at):
        entries += [
            _entry(now_due, run, told.get(run.id), dealt.refusals.get(run.id), market.at, tenant_id)
            for run in now_due.runs
            if run.id in told or run.aboard
        ]
    return QueueView(pools=tuple(_pool_view(p, told) for p in market.pools), runs=tuple(entries))


def _entry(
    pool: Pool, run: Run, told: _Told | None, refusal: Refusal | None, at: datetime, tenant_id: str
) -> QueueEntry:
    tenant = pool.tenants[run.tenant]
    waiting = {r.tenant for r in pool.runs if r.waiting}
    weights = sum(pool.tenants[t].weight for t in waiting)
    return QueueEntry(
        run=(told.name if told else run.id) if run.tenant == tenant_id else "",
        run_id=run.id if run.tenant == tenant_id else "",
        tenant=run.tenant,
        pool=pool.name,
        priority=run.priority.value,
        served_as=list(Priority)[rank(run, at)].value,
        queued=told.queued if told else 0,
        backing_off=told.queued - told.admissible if told else 0,
        aboard=run.aboard,
        oldest_wait_seconds=max(0.0, (at - told.oldest).total_seconds()) if told else None,
        share=run.usage.share(pool.capacity) if run.aboard else 0.0,
        tenant_share=tenant.usage.share(pool.capacity) if tenant.aboard else 0.0,
        tenant_due=tenant.weight / weights if run.tenant in waiting else None,
        deficit_seconds=run.deficit,
        tenant_deficit_seconds=tenant.deficit,
        waits_for=_reason(pool, run, told, refusal),
    )


def _reason(pool: Pool, run: Run, told: _Told | None, refusal: Refusal | None) -> str:
    if told is None:
        return ""
    if refusal is None and not told.admissible:
        return "its back-off after a failure"
    if refusal is None and run.waiting:
        return "its grant: there is room"
    refusal = refusal or Refusal.IMAGE_CAP  # nothing else keeps work out of the turn's sight
    sizes = [r.capacity for r in pool.runners]
    largest = max(sizes, key=lambda c: (c.slots, c.memory_mb), default=NOTHING)
    lacking = next((w.demand.lacking(largest) for w in run.waiting if w.demand.lacking(largest)), ())
    return REASONS[refusal].format(
        pool=pool.name,
        aboard=run.aboard,
        cap=run.cap,
        headroom=pool.headroom,
        lacking=", ".join(lacking) or "see its demand",
    )


def _pool_view(pool: Pool, told: dict[str, _Told]) -> PoolView:
    waiting = [told[r.id] for r in pool.runs if r.id in told]
    oldest = min((t.oldest for t in waiting), default=None)
    used = total(r.used for r in pool.runners)
    return PoolView(
        name=pool.name,
        runners=len(pool.runners),
        draining=sum(r.draining for r in pool.runners),
        desired_runners=_desired(pool, told),
        queued=sum(t.queued for t in waiting),
        aboard=sum(r.aboard for r in pool.runners),
        max_running=pool.cap,
        headroom=pool.headroom,
        oldest_queued_at=oldest,
        slots=pool.capacity.slots,
        cpu=pool.capacity.cpu,
        memory_mb=pool.capacity.memory_mb,
        gpu=pool.capacity.gpu,
        used_slots=used.slots,
        used_cpu=used.cpu,
        used_memory_mb=used.memory_mb,
        used_gpu=used.gpu,
    )


def _desired(pool: Pool, told: dict[str, _Told]) -> int:
    backlogs = [
        Backlog(
            tenant=r.tenant,
            queued=told[r.id].admissible,
            demand=told[r.id].demand,
            aboard=r.aboard,
            cap=r.cap,
        )
        for r in pool.runs
        if r.id in told and told[r.id].admissible
    ]
    caps = {t.id: Caps(aboard=t.aboard, cap=t.cap) for t in pool.tenants.values()}
    largest = max((r.capacity for r in pool.runners), key=lambda c: (c.slots, c.memory_mb), default=NOTHING)
    return desired_runners(total(r.used for r in pool.runners), admissible(backlogs, caps), runner=largest)


def desired(session: Session) -> dict[str, int]:
    """Runners that each pool needs for what may be served: what an autoscaler follows."""
    told = _queues(session)
    return {p.name: _desired(p, told) for p in pools.market(session, most=1).pools}
