"""Groups: what the dispatcher settles.

Guarantees: a group and its scored members change together.
Does not: decide (`core.group.settle`)."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, bindparam, text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session

from tiltyard.core.group import Member, Settlement, Verdict
from tiltyard.core.plan import Progress
from tiltyard.core.rollout import Actor, State
from tiltyard.store.moves import Key, move
from tiltyard.store.rollouts import cancel


@dataclass(frozen=True, slots=True, kw_only=True)
class OpenGroup:
    """A group that is not settled yet, with its members."""

    id: str
    run_id: str
    deadline: datetime | None
    """None before its first grant."""
    members: tuple[Member, ...]
    keys: tuple[Key, ...]
    """In the order of `members`."""


def open_groups(session: Session, run_id: str, limit: int = 512) -> list[OpenGroup]:
    """OPEN groups that may settle: no member on its way, or past the deadline.

    Their rollouts are locked, so that what is decided about them can be carried out."""
    settling = session.execute(text(_SETTLING), {"run": run_id, "limit": limit}).all()
    members = _locked(session, [g.id for g in settling])
    return [
        OpenGroup(
            id=g.id,
            run_id=run_id,
            deadline=g.deadline,
            members=tuple(
                Member(
                    state=State(r.state),
                    reward=r.reward if r.state == State.SCORED else None,
                    oldest_version=r.oldest_version,
                )
                for r in members[g.id]
            ),
            keys=tuple(Key(rollout_id=r.id, fence=r.fence) for r in members[g.id]),
        )
        for g in settling
    ]


_SETTLING = """
SELECT g.id, g.deadline FROM groups g
WHERE g.run_id = :run AND g.state = 'OPEN' AND (g.deadline <= clock_timestamp() OR NOT EXISTS (
    SELECT FROM rollouts r WHERE r.group_id = g.id
    AND r.state IN ('QUEUED', 'GRANTED', 'RUNNING', 'PREEMPTING', 'CANCELLING', 'PRODUCED')
))
ORDER BY g."index" LIMIT :limit
"""
"""Each group's members are looked at until one is on its way: a join would count all that are in flight, and
beside millions of ended rollouts the planner may scan them all."""


def _locked(session: Session, group_ids: list[str]) -> dict[str, list[Row[Any]]]:
    """Each group's rollouts in the order of their members, locked in the order of their ids."""
    rows = session.execute(
        text(
            "SELECT id, group_id, member, fence, state, reward, oldest_version FROM rollouts"
            " WHERE group_id = ANY(:groups) ORDER BY id FOR UPDATE"
        ),
        {"groups": group_ids},
    ).all()
    found: dict[str, list[Row[Any]]] = {group: [] for group in group_ids}
    for row in sorted(rows, key=lambda r: r.member):
        found[row.group_id].append(row)
    return found


_ENDS = {
    Verdict.READY: State.READY,
    Verdict.FILTERED: State.FILTERED,
    Verdict.STALE: State.STALE,
    Verdict.EVALUATED: State.EVALUATED,
}


def close(session: Session, settled: Sequence[tuple[OpenGroup, Settlement]]) -> None:
    """Carry settlements out: stragglers are cancelled, scored members follow their group."""
    stragglers: list[Key] = []
    scored: dict[tuple[Verdict, str], list[Key]] = defaultdict(list)
    for group, settlement in settled:
        for key, member in zip(group.keys, group.members, strict=True):
            follows = member.state is State.SCORED
            (scored[settlement.verdict, settlement.reason] if follows else stragglers).append(key)
    cancel(session, stragglers, actor=Actor.DISPATCHER, reason="its group settled without it")
    for (verdict, reason), keys in scored.items():
        end, only = _ENDS[verdict], [State.SCORED]
        move(session, keys, end, actor=Actor.DISPATCHER, reason=reason, only_from=only)
    rows = [{"id": g.id, "state": str(s.verdict), "reason": s.reason} for g, s in settled]
    session.execute(text(_CLOSE).bindparams(bindparam("rows", type_=JSONB)), {"rows": rows})


_CLOSE = """
UPDATE groups g SET state = x.state, reason = x.reason, settled_at = clock_timestamp()
FROM jsonb_to_recordset(:rows) AS x(id text, state text, reason text) WHERE g.id = x.id AND g.state = 'OPEN'
"""


def progress(session: Session, run_id: str) -> Progress:
    """A run's groups, counted."""
    row = session.execute(
        text(
            "SELECT count(*) FILTER (WHERE state = 'OPEN') AS open, count(*) FILTER (WHERE state = 'READY')"
            " AS ready,"
            " (SELECT count(*) FROM training_steps WHERE run_id = :run AND state <> 'WITHDRAWN') AS steps,"
            " (SELECT groups_planned FROM runs WHERE id = :run) AS planned,"
            " (SELECT count(*) FROM step_groups m JOIN training_steps s ON s.run_id = m.run_id AND s.step ="
            " m.step"
            "  WHERE s.run_id = :run AND s.state = 'STARTED') AS training"
            " FROM groups WHERE run_id = :run AND state IN ('OPEN', 'READY')"
        ),
        {"run": run_id},
    ).one()
    return Progress(
        open=row.open, ready=row.ready, steps_done=row.steps, planned=row.planned, training=row.training
    )


_READY = """
SELECT g.id, members.* FROM groups g CROSS JOIN LATERAL (
    SELECT array_agg(r.id) FILTER (WHERE r.state = 'READY') AS ids,
        array_agg(r.fence) FILTER (WHERE r.state = 'READY') AS fences,
        array_agg(r.reward) FILTER (WHERE r.state = 'READY') AS rewards,
        array_agg(r.oldest_version) FILTER (WHERE r.state = 'READY') AS versions
    FROM rollouts r WHERE r.group_id = g.id
    HAVING min(r.oldest_version) FILTER (WHERE r.state = 'READY') < :oldest
        OR bool_or(r.state = 'CANCELLED' AND r.reward IS NOT NULL)
) members
WHERE g.run_id = :run AND g.state = 'READY'
"""


def doubtful(session: Session, run_id: str, *, oldest_allowed: int) -> list[OpenGroup]:
    """READY groups that may not stay so: their tokens are older than `oldest_allowed`, or a member was
    withdrawn after its group had settled; with the members that are READY."""
    rows = session.execute(text(_READY), {"run": run_id, "oldest": oldest_allowed})
    return [
        OpenGroup(
            id=row.id,
            run_id=run_id,
            deadline=None,
            members=tuple(
                Member(state=State.READY, reward=reward, oldest_version=version)
                for reward, version in zip(row.rewards or (), row.versions or (), strict=True)
            ),
            keys=tuple(
                Key(rollout_id=i, fence=f) for i, f in zip(row.ids or (), row.fences or (), strict=True)
            ),
        )
        for row in rows
    ]


def reopen(session: Session, group: OpenGroup, settlement: Settlement) -> bool:
    """Carry out what a second look at a READY group says; whether anything changed."""
    if settlement.verdict is Verdict.READY:
        return False
    changed = session.execute(
        text(
            "UPDATE groups SET state = :state, reason = :reason WHERE id = :id AND state = 'READY'"
            " RETURNING id"
        ),
        {"id": group.id, "state": str(settlement.verdict), "reason": settlement.reason},
    ).one_or_none()
    if changed is None:
        return False
    end = _ENDS[settlement.verdict]
    move(
        session,
        group.keys,
        end,
        actor=Actor.DISPATCHER,
        reason=settlement.reason,
        only_from=[State.READY],
    )
    return True
