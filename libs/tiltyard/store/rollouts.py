"""Rollouts as the dispatcher and people move them: planned, granted, cancelled.

Guarantees: a group and its members are planned together, and a grant makes the attempt's row.
Does not: touch a state but through `store.moves`."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import Text, bindparam, text
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.orm import Session

from tiltyard.core.capacity import ONE_SLOT, Capacity
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
    """Patience with stragglers, from the first grant on."""
    expires_after: timedelta
    """Schedule-to-start of each member, from each time that it is queued."""
    demand: Capacity = ONE_SLOT


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
            "patience": g.deadline_after,
            "expires": g.expires_after,
            "slots": g.demand.slots,
            "cpu": g.demand.cpu,
            "memory_mb": g.demand.memory_mb,
            "gpu": g.demand.gpu,
        }
        for g in groups
    ]
    session.execute(
        text(
            'INSERT INTO groups (id, run_id, version_id, "index", size, patience)'
            " VALUES (:id, :run_id, :version_id, :index, :size, :patience)"
        ),
        group_rows,
    )
    members = [
        {**g, "group_id": g["id"], "id": new_id(), "member": m} for g in group_rows for m in range(g["size"])
    ]
    session.execute(
        text(
            "INSERT INTO rollouts (id, run_id, group_id, version_id, member, seq, queued_at, expires_at,"
            " slots, cpu, memory_mb, gpu) VALUES (:id, :run_id, :group_id, :version_id, :member, 1,"
            " statement_timestamp(), statement_timestamp() + :expires, :slots, :cpu, :memory_mb, :gpu)"
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
    rank: int | None = None
    """Class that it was served in."""


def grant(session: Session, grants: Sequence[Granting]) -> list[Moved]:
    """QUEUED → GRANTED with a new fence and a new attempt row each."""
    by_id = {g.key.rollout_id: g for g in grants}
    moved: list[Moved] = []
    batches: dict[tuple[str, int | None], list[Key]] = {}
    for g in grants:
        batches.setdefault((g.incarnation, g.rank), []).append(g.key)
    for (incarnation, rank), keys in sorted(batches.items(), key=str):
        moved += move(
            session,
            keys,
            State.GRANTED,
            actor=Actor.DISPATCHER,
            sets=", incarnation = :incarnation, granted_at = statement_timestamp(), rank = :rank",
            values={"incarnation": incarnation, "rank": rank},
        )
    if moved:
        _start_clocks(session, {m.group_id for m in moved})
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


def _start_clocks(session: Session, group_ids: Iterable[str]) -> None:
    """Stragglers of a group are waited for from its first grant on."""
    session.execute(
        text(
            "UPDATE groups SET deadline = clock_timestamp() + patience"
            " WHERE id = ANY(:ids) AND deadline IS NULL"
        ),
        {"ids": sorted(group_ids)},
    )


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
