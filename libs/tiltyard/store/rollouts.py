"""Rollouts as the dispatcher and people move them: planned, granted, cancelled.

Guarantees: a group and its members are planned together, and a grant makes the attempt's row.
Does not: touch a state but through `store.moves`."""

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from sqlalchemy import Text, bindparam, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Session

from tiltyard.core.outcome import Outcome
from tiltyard.core.rollout import Actor, State
from tiltyard.store.database import new_id
from tiltyard.store.moves import Key, Moved, end_attempts, keys_where, move


@dataclass(frozen=True, slots=True, kw_only=True)
class NewGroup:
    """A group to plan, with its members."""

    run_id: str
    version_id: str
    index: int
    size: int
    deadline_after: timedelta
    expires_after: timedelta


def plan(session: Session, groups: Sequence[NewGroup]) -> list[str]:
    """Insert groups with their QUEUED rollouts and first transitions; returns the rollout ids."""
    if not groups:
        return []
    group_rows = [
        {
            "id": new_id(),
            "run_id": g.run_id,
            "version_id": g.version_id,
            "index": g.index,
            "size": g.size,
            "deadline": g.deadline_after,
            "expires": g.expires_after,
        }
        for g in groups
    ]
    session.execute(
        text(
            'INSERT INTO groups (id, run_id, version_id, "index", size, deadline)'
            " VALUES (:id, :run_id, :version_id, :index, :size, clock_timestamp() + :deadline)"
        ),
        group_rows,
    )
    members = [
        {**g, "group_id": g["id"], "id": new_id(), "member": m} for g in group_rows for m in range(g["size"])
    ]
    session.execute(
        text(
            "INSERT INTO rollouts (id, run_id, group_id, version_id, member, seq, expires_at)"
            " VALUES (:id, :run_id, :group_id, :version_id, :member, 1, clock_timestamp() + :expires)"
        ),
        members,
    )
    session.execute(
        text(
            'INSERT INTO transitions (rollout_id, seq, start, "end", fence, actor, reason)'
            " VALUES (:id, 1, NULL, 'QUEUED', 0, 'dispatcher', 'planned')"
        ),
        members,
    )
    return [m["id"] for m in members]


@dataclass(frozen=True, slots=True, kw_only=True)
class Granting:
    """One grant to write: the rollout, its runner and the trace of the attempt."""

    key: Key
    incarnation: str
    traceparent: str


def grant(session: Session, grants: Sequence[Granting]) -> list[Moved]:
    """QUEUED → GRANTED with a new fence and a new attempt row each."""
    by_id = {g.key.rollout_id: g for g in grants}
    moved: list[Moved] = []
    for incarnation in sorted({g.incarnation for g in grants}):
        moved += move(
            session,
            [g.key for g in grants if g.incarnation == incarnation],
            State.GRANTED,
            actor=Actor.DISPATCHER,
            sets=", incarnation = :incarnation, granted_at = statement_timestamp()",
            values={"incarnation": incarnation},
        )
    if moved:
        session.execute(
            text(
                "INSERT INTO attempts (rollout_id, fence, incarnation, traceparent)"
                " VALUES (:rollout_id, :fence, :incarnation, :traceparent)"
            ),
            [
                {
                    "rollout_id": m.rollout_id,
                    "fence": m.fence,
                    "incarnation": by_id[m.rollout_id].incarnation,
                    "traceparent": by_id[m.rollout_id].traceparent,
                }
                for m in moved
            ],
        )
    return moved


def cancel(session: Session, keys: Sequence[Key], *, actor: Actor, reason: str) -> None:
    """RUNNING → CANCELLING (its runner is told at its next heartbeat), any other living state → CANCELLED."""
    ids = [k.rollout_id for k in keys]
    held = set(keys_where(session, "r.id = ANY(:ids)", {"ids": ids}, lock=True))
    keys = [k for k in keys if k in held]
    move(session, keys, State.CANCELLING, actor=actor, reason=reason)
    gone = move(session, keys, State.CANCELLED, actor=actor, reason=reason, only_from=_CANCELLED_AT_ONCE)
    end_attempts(
        session, [Key(rollout_id=m.rollout_id, fence=m.fence) for m in gone], Outcome.CANCELLED, reason
    )
    session.execute(
        text(
            "UPDATE gradings SET state = 'CANCELLED', finished_at = clock_timestamp()"
            " WHERE rollout_id = ANY(:ids) AND state IN ('QUEUED', 'LEASED')"
        ).bindparams(bindparam("ids", type_=ARRAY(Text))),
        {"ids": [m.rollout_id for m in gone]},
    )


_CANCELLED_AT_ONCE = (
    State.QUEUED,
    State.GRANTED,
    State.PREEMPTING,
    State.PRODUCED,
    State.SCORED,
    State.READY,
    State.TRAINING,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Queued:
    """A rollout that waits for a grant."""

    key: Key
    run_id: str
    alone: bool
    created_at: datetime


def queued(session: Session, limit: int) -> list[Queued]:
    """Rollouts that may be granted now: groups in the order of their planning, high priority first."""
    rows = session.execute(
        text(
            "SELECT r.id, r.fence, r.run_id, r.alone, r.created_at FROM rollouts r JOIN runs run ON run.id"
            " = r.run_id"
            " WHERE r.state = 'QUEUED' AND r.not_before <= clock_timestamp() AND run.state = 'RUNNING'"
            " ORDER BY CASE run.config->>'priority' WHEN 'high' THEN 0 WHEN 'normal' THEN 1 ELSE 2 END, r.id"
            " LIMIT :limit FOR UPDATE OF r SKIP LOCKED"
        ),
        {"limit": limit},
    )
    return [
        Queued(
            key=Key(rollout_id=r.id, fence=r.fence), run_id=r.run_id, alone=r.alone, created_at=r.created_at
        )
        for r in rows
    ]
