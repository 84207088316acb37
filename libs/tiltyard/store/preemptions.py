"""Preemptions: what is aboard and might yield, and the order to do so.

Guarantees: an order, the place that it keeps for the preemptor's class and the victim's count of preemptions
are one compare-and-set, made for all victims of one demand or for none, after a second look at their rows; a
group that has to yield is not given up for the time that this takes. What an order spends is counted from
rows, so that a new leader goes on.
Does not: choose (`core.preemption`), nor stop anything: the runner's next heartbeat brings the order, and at
the end of its grace the reaper takes what has not yielded. No retry is charged either way."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.orm import Session

from tiltyard.core.fairness import Priority
from tiltyard.core.preemption import LEAST_RUN, MINUTE, WAIT_FIRST, Aboard, Crew, Preemption, may_yield
from tiltyard.core.rollout import Actor, State
from tiltyard.store.moves import Key, move
from tiltyard.store.pools import capacity_of

_RANK = "array_position(ARRAY['high', 'normal', 'low'], coalesce({run}.config->>'priority', 'normal')) - 1"
_THINKABLE = f"""
SELECT EXISTS (
    SELECT 1 FROM runs up JOIN runs down ON {_RANK.format(run="up")} < {_RANK.format(run="down")}
    WHERE up.state = 'RUNNING' AND up.kind <> 'sft' AND down.state = 'RUNNING' AND down.kind <> 'sft'
    AND EXISTS (
        SELECT 1 FROM rollouts r WHERE r.run_id = up.id AND r.state = 'QUEUED'
        AND r.not_before <= clock_timestamp() AND r.queued_at <= clock_timestamp() - :patience
    ) AND EXISTS (
        SELECT 1 FROM rollouts r WHERE r.run_id = down.id AND r.state = 'RUNNING'
        AND r.granted_at <= clock_timestamp() - :least
    )
)
"""
_CREW = """
SELECT r.id, r.fence, r.state, r.group_id, run.tenant_id, r.incarnation, r.rank, r.granted_at, r.preemptions,
    r.slots, r.cpu, r.memory_mb, r.gpu, run.config->>'priority' AS priority
FROM runners n JOIN rollouts r ON r.incarnation = n.incarnation
    AND r.state IN ('GRANTED', 'RUNNING', 'PREEMPTING', 'CANCELLING')
JOIN runs run ON run.id = r.run_id
WHERE n.alive AND n.pool = :pool AND r.state <> 'GRANTED' ORDER BY r.id
"""
_TOLD = """
SELECT coalesce(sum(r.slots), 0)::bigint FROM transitions t JOIN rollouts r ON r.id = t.rollout_id
JOIN runs run ON run.id = r.run_id AND coalesce(run.config->'rollouts'->>'pool', 'default') = :pool
WHERE t."end" = 'PREEMPTING' AND t.at > clock_timestamp() - :lately
"""


def thinkable(session: Session) -> bool:
    """Whether a run waits while something of a lower one runs: most turns need to ask no more than this."""
    values = {"patience": WAIT_FIRST, "least": LEAST_RUN}
    return session.execute(text(_THINKABLE), values).scalar_one()


def crew(session: Session, pool: str) -> Crew:
    """Everything that runs, yields or stops in a pool."""
    rows = session.execute(text(_CREW), {"pool": pool}).all()
    told = session.execute(text(_TOLD), {"pool": pool, "lately": MINUTE}).scalar_one()

    def those(state: State) -> tuple[Aboard, ...]:
        return tuple(_aboard(r) for r in rows if r.state == state)

    return Crew(
        running=those(State.RUNNING),
        yielding=those(State.PREEMPTING),
        stopping=those(State.CANCELLING),
        told=told,
    )


def _aboard(row: Row[Any]) -> Aboard:
    own = Priority(row.priority or "normal").rank
    return Aboard(
        rollout=row.id,
        group=row.group_id,
        tenant=row.tenant_id,
        incarnation=row.incarnation,
        demand=capacity_of(row),
        rank=own if row.rank is None else min(own, row.rank),
        granted_at=row.granted_at,
        preemptions=row.preemptions,
    )


_VICTIMS = """
SELECT r.id, r.fence, r.group_id, run.tenant_id, r.incarnation, r.rank, r.granted_at, r.preemptions, r.slots,
    r.cpu, r.memory_mb, r.gpu, run.config->>'priority' AS priority
FROM rollouts r JOIN runs run ON run.id = r.run_id
WHERE r.id = ANY(:ids) AND r.state = 'RUNNING' ORDER BY r.id FOR UPDATE OF r
"""
_PREEMPTORS = """
SELECT id, config->>'priority' AS priority FROM runs WHERE id = ANY(:ids) AND state = 'RUNNING'
"""


def order(session: Session, preemptions: Sequence[Preemption], *, at: datetime) -> int:
    """RUNNING → PREEMPTING for every victim, free of charge; how many rollouts that were.

    A preemption of which one victim has ended, or is no longer of a lower class, is left to the next turn: it
    may need fewer."""
    wanted = {"ids": sorted(v for p in preemptions for v in p.victims)}
    rows = {r.id: r for r in session.execute(text(_VICTIMS), wanted)}
    runs = session.execute(text(_PREEMPTORS), {"ids": sorted({p.run for p in preemptions})})
    ranks = {r.id: Priority(r.priority or "normal").rank for r in runs}
    groups: set[str] = set()
    told = 0
    for one in preemptions:
        victims = [rows[v] for v in one.victims if v in rows]
        legal = one.run in ranks and all(may_yield(_aboard(v), rank=ranks[one.run], now=at) for v in victims)
        if not legal or len(victims) < len(one.victims):
            continue
        moved = move(
            session,
            [Key(rollout_id=v.id, fence=v.fence) for v in victims],
            State.PREEMPTING,
            actor=Actor.DISPATCHER,
            reason=f"yields to run {one.run}",
            sets=", preemptions = r.preemptions + 1, yields_to = :run",
            values={"run": one.run},
        )
        groups |= {m.group_id for m in moved}
        told += len(moved)
    session.execute(
        text("UPDATE groups SET deadline = NULL WHERE id = ANY(:ids) AND state = 'OPEN'"),
        {"ids": sorted(groups)},
    )
    return told
