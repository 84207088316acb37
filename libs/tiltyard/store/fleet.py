"""Runners: incarnations, heartbeats, and what happens when one is lost.

Guarantees: a restarted runner supersedes its predecessor at once; an incarnation is marked lost in the same
transaction that takes its rollouts back.
Does not: decide who is lost (`core.fleet`)."""

import difflib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.orm import Session

from tiltyard.contracts.http import NodeHealth
from tiltyard.core.capacity import Capacity
from tiltyard.core.fleet import LOWEST, SILENT_AFTER, AfterLoss, GiveUp, Runner, after_loss
from tiltyard.core.outcome import Charge, Outcome
from tiltyard.core.retry import Spent, retry
from tiltyard.core.rollout import Actor, State
from tiltyard.store.attempts import budgets_of
from tiltyard.store.moves import Key, end_attempts, move


class OtherVersion(RuntimeError):
    """The dispatcher that leads runs another version of Tiltyard."""


def join(
    session: Session,
    incarnation: str,
    *,
    node: str,
    slots: int,
    version: str,
    pool: str = "default",
    cpu: float = 0.0,
    memory_mb: int = 0,
    gpu: int = 0,
) -> None:
    """Enter the fleet; older incarnations of the node are lost at once. Raises `OtherVersion`."""
    leads = session.execute(
        text("SELECT version FROM leaderships WHERE name = :name AND lease_until > clock_timestamp()"),
        {"name": DISPATCHER},
    ).scalar()
    if leads and leads != version:
        raise OtherVersion(
            f"this runner is of version {version}, its dispatcher of version {leads};"
            f" install the same on both: pip install tiltyard=={leads}"
        )
    older = session.execute(
        text("SELECT incarnation FROM runners WHERE node = :node AND alive FOR UPDATE"), {"node": node}
    ).scalars()
    for predecessor in list(older):
        lose(session, predecessor, reason=f"superseded by {incarnation}")
    session.execute(
        text(
            "INSERT INTO runners (incarnation, node, pool, slots, cpu, memory_mb, gpu, version)"
            " VALUES (:incarnation, :node, :pool, :slots, :cpu, :memory_mb, :gpu, :version)"
        ),
        {
            "incarnation": incarnation,
            "node": node,
            "pool": pool,
            "slots": slots,
            "cpu": cpu,
            "memory_mb": memory_mb,
            "gpu": gpu,
            "version": version,
        },
    )


DISPATCHER = "dispatcher"
"""Name of the dispatcher's leadership."""


class NoSuchNode(LookupError):
    """No living runner is on a node of this name."""


def drain(session: Session, node: str, *, draining: bool) -> None:
    """Grant nothing more to the node's runner, or grant to it again; what it has aboard goes on.

    Raises `NoSuchNode`."""
    changed = session.execute(
        text("UPDATE runners SET draining = :draining WHERE node = :node AND alive RETURNING incarnation"),
        {"node": node, "draining": draining},
    ).all()
    if not changed:
        raise NoSuchNode(f"no living runner is on node {node!r}; `tiltyard fleet show` lists the nodes")


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What a heartbeat brings back."""

    stop: tuple[Key, ...]
    """Rollouts aboard that are to be stopped."""
    draining: bool
    yields: tuple[Key, ...] = ()
    """Rollouts aboard that are to yield their places; one that is being handed in may end."""
    taken: tuple[Key, ...] = ()
    """Rollouts that were lately taken from it: what still runs of them dies."""


def heartbeat(session: Session, incarnation: str, health: NodeHealth | None = None) -> Orders | None:
    """Say "alive", and how well the sandboxes are; None when the incarnation has been given up: kill
    everything and join anew."""
    row = session.execute(
        text(
            "UPDATE runners SET last_heartbeat = clock_timestamp(), health = CAST(:health AS jsonb)"
            " WHERE incarnation = :me AND alive RETURNING draining"
        ),
        {"me": incarnation, "health": health.model_dump_json() if health else None},
    ).one_or_none()
    if row is None:
        return None
    values = {"me": incarnation, "lately": 2 * SILENT_AFTER}
    orders = session.execute(text(_ORDERS), values).all()
    keys = {
        kind: tuple(Key(rollout_id=o.id, fence=o.fence) for o in orders if o.kind == kind)
        for kind in ("CANCELLING", "PREEMPTING", "TAKEN")
    }
    return Orders(
        stop=keys["CANCELLING"], yields=keys["PREEMPTING"], taken=keys["TAKEN"], draining=row.draining
    )


_ORDERS = """
SELECT r.state AS kind, r.id, r.fence FROM rollouts r
WHERE r.incarnation = :me AND r.state IN ('CANCELLING', 'PREEMPTING')
UNION ALL
SELECT 'TAKEN', a.rollout_id, a.fence FROM attempts a
WHERE a.incarnation = :me AND a.outcome IN ('preempted', 'cancelled')
AND a.ended_at > clock_timestamp() - :lately
"""
"""Those that were taken are told for as long as a runner may be silent."""


def leave(session: Session, incarnation: str) -> None:
    """Leave in good order: what is still aboard goes back to the queue."""
    lose(session, incarnation, reason="left")


_ALIVE = """
SELECT n.incarnation, n.pool, n.last_heartbeat, n.slots, n.cpu, n.memory_mb, n.gpu, n.draining,
    coalesce(n.health->>'state' = 'open', false) AS ill,
    count(r.id) AS aboard, coalesce(bool_or(r.alone), false) AS lonely,
    coalesce(sum(r.slots), 0)::bigint AS used_slots, coalesce(sum(r.cpu), 0)::float8 AS used_cpu,
    coalesce(sum(r.memory_mb), 0)::bigint AS used_memory_mb, coalesce(sum(r.gpu), 0)::bigint AS used_gpu,
    min(array_position(ARRAY['high', 'normal', 'low'], y.config->>'priority') - 1) AS yields_to
FROM runners n
LEFT JOIN rollouts r ON r.incarnation = n.incarnation
    AND r.state IN ('GRANTED', 'RUNNING', 'PREEMPTING', 'CANCELLING')
LEFT JOIN runs y ON y.id = r.yields_to AND r.state = 'PREEMPTING' AND y.state = 'RUNNING'
WHERE n.alive GROUP BY n.incarnation ORDER BY n.incarnation
"""


def alive(session: Session) -> list[Runner]:
    """Living incarnations with what each has aboard."""
    return [
        Runner(
            incarnation=r.incarnation,
            pool=r.pool,
            last_heartbeat=r.last_heartbeat,
            capacity=Capacity(slots=r.slots, cpu=r.cpu, memory_mb=r.memory_mb, gpu=r.gpu),
            aboard=r.aboard,
            used=Capacity(slots=r.used_slots, cpu=r.used_cpu, memory_mb=r.used_memory_mb, gpu=r.used_gpu),
            draining=r.draining,
            ill=r.ill,
            lonely=r.lonely,
            yields_to=LOWEST if r.yields_to is None else r.yields_to,
        )
        for r in session.execute(text(_ALIVE))
    ]


class Unplaceable(ValueError):
    """A run asks for a pool that nobody knows, or for more than any runner of it ever had."""


DEFAULT_POOL = "default"


def can_host(session: Session, pool: str, demands: Iterable[Capacity]) -> None:
    """Raise `Unplaceable` unless each demand fits on some runner that the pool has, or has ever had.

    A default pool that no runner has joined yet is taken at its word."""
    sizes = [
        Capacity(slots=r.slots, cpu=r.cpu, memory_mb=r.memory_mb, gpu=r.gpu)
        for r in session.execute(
            text("SELECT DISTINCT slots, cpu, memory_mb, gpu FROM runners WHERE pool = :pool"), {"pool": pool}
        )
    ]
    if not sizes:
        if pool != DEFAULT_POOL:
            raise Unplaceable(_unknown(session, pool))
        return
    for demand in demands:
        if not any(demand.fits(size) for size in sizes):
            best = min(sizes, key=lambda size: (len(demand.lacking(size)), -size.slots))
            raise Unplaceable(
                f"a rollout of this run asks for more than any runner of pool {pool!r} ever had:"
                f" {', '.join(demand.lacking(best))}; ask for less under rollouts.demand, or add a larger"
                " runner"
            )


def _unknown(session: Session, pool: str) -> str:
    known = sorted({DEFAULT_POOL, *session.execute(text("SELECT DISTINCT pool FROM runners")).scalars()})
    near = difflib.get_close_matches(pool, known, n=1)
    hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"
    return f"no runner has ever joined a pool {pool!r}{hint}"


def lose(session: Session, lost: GiveUp | str, reason: str = "") -> list[str]:
    """Mark an incarnation lost and take its rollouts back; the ids of those that were aboard."""
    incarnation = lost if isinstance(lost, str) else lost.incarnation
    why = reason if isinstance(lost, str) else f"silent for {lost.silent_for.total_seconds():.0f} s"
    ended = session.execute(
        text(
            "UPDATE runners SET alive = false, ended_at = clock_timestamp(), reason = :why"
            " WHERE incarnation = :me AND alive RETURNING incarnation"
        ),
        {"me": incarnation, "why": why},
    ).one_or_none()
    if ended is None:
        return []
    return _take_back(session, incarnation, charged=reason != "left", why=why)


@dataclass(frozen=True, slots=True)
class _Fate:
    """What becomes of a rollout whose incarnation is lost."""

    end: State
    charged: bool = False
    alone: bool = False
    """Must be alone on its next runner."""


_CHARGED = ", losses = r.losses + 1, infrastructure_failures = r.infrastructure_failures + 1, alone = :alone"


def _take_back(session: Session, incarnation: str, *, charged: bool, why: str) -> list[str]:
    rows = session.execute(
        text(
            "SELECT r.id, r.fence, r.state, r.alone, r.losses, r.infrastructure_failures, run.config FROM"
            " rollouts r"
            " JOIN runs run ON run.id = r.run_id WHERE r.incarnation = :me"
            " AND r.state IN ('GRANTED', 'RUNNING', 'PREEMPTING', 'CANCELLING') ORDER BY r.id FOR UPDATE OF r"
        ),
        {"me": incarnation},
    ).all()
    keys: dict[_Fate, list[Key]] = defaultdict(list)
    for row in rows:
        keys[_fate(row, charged=charged)].append(Key(rollout_id=row.id, fence=row.fence))
    for fate, those in keys.items():
        move(
            session,
            those,
            fate.end,
            actor=Actor.DISPATCHER,
            reason=f"{Outcome.RUNNER_LOST}: {why}" if fate.charged else why,
            only_from=_FROM[fate.end],
            sets=_CHARGED if fate.charged else "",
            values={"alone": fate.alone} if fate.charged else {},
        )
    end_attempts(session, [k for those in keys.values() for k in those], Outcome.RUNNER_LOST, why)
    return [r.id for r in rows]


_FROM = {
    State.CANCELLED: [State.CANCELLING],
    State.QUEUED: [State.GRANTED, State.RUNNING, State.PREEMPTING],
    State.FAILED: [State.RUNNING],
    State.DEAD: [State.RUNNING],
}


def _fate(row: Row[Any], *, charged: bool) -> _Fate:
    if row.state == State.CANCELLING:
        return _Fate(State.CANCELLED)
    if row.state != State.RUNNING or not charged:
        return _Fate(State.QUEUED)
    after = after_loss(losses=row.losses + 1, was_alone_by_order=row.alone)
    budgets, failures = budgets_of(row.config), row.infrastructure_failures + 1
    spent = isinstance(retry(Charge.INFRASTRUCTURE, failures=failures, budgets=budgets, jitter=0.0), Spent)
    end = State.DEAD if after is AfterLoss.DEAD else State.FAILED if spent else State.QUEUED
    return _Fate(end, charged=True, alone=after is AfterLoss.REQUEUE_ALONE)


def last_heartbeat(session: Session) -> datetime | None:
    """The newest heartbeat of any living runner."""
    return session.execute(text("SELECT max(last_heartbeat) FROM runners WHERE alive")).scalar_one()
