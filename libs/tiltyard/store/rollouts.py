"""Rollouts as the dispatcher and people move them: planned, granted, cancelled.

Guarantees: a group and its members are planned together, and a grant makes the attempt's row.
Does not: touch a state but through `store.moves`."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import Text, bindparam, text
from sqlalchemy.dialects.postgresql import ARRAY, JSONB
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


_PLAN = """
WITH planned AS (
    SELECT * FROM jsonb_to_recordset(:groups) AS g(id text, run_id text, version_id text, "index" bigint,
        size bigint, patience float8, expires float8, slots bigint, cpu float8, memory_mb bigint, gpu bigint,
        members text[])
), grouped AS (
    INSERT INTO groups (id, run_id, version_id, "index", size, patience)
    SELECT id, run_id, version_id, "index", size, make_interval(secs => patience) FROM planned
), made AS (
    INSERT INTO rollouts (id, run_id, group_id, version_id, member, seq, queued_at, expires_at, slots, cpu,
        memory_mb, gpu)
    SELECT m.id, g.run_id, g.id, g.version_id, m.number - 1, 1, statement_timestamp(),
        statement_timestamp() + make_interval(secs => g.expires), g.slots, g.cpu, g.memory_mb, g.gpu
    FROM planned g CROSS JOIN unnest(g.members) WITH ORDINALITY AS m(id, number)
    RETURNING id
)
INSERT INTO transitions (rollout_id, seq, start, "end", fence, actor, reason)
SELECT id, 1, NULL, 'QUEUED', 0, 'dispatcher', 'planned' FROM made
"""


def plan(session: Session, groups: Sequence[NewGroup]) -> list[str]:
    """Insert groups with their QUEUED rollouts and first transitions; returns the rollout ids."""
    if not groups:
        return []
    rows = [_planned(group) for group in groups]
    session.execute(text(_PLAN).bindparams(bindparam("groups", type_=JSONB)), {"groups": rows})
    return [member for row in rows for member in row["members"]]


def _planned(group: NewGroup) -> dict[str, Any]:
    return {
        "id": new_id(),
        "run_id": group.run_id,
        "version_id": group.version_id,
        "index": group.index,
        "size": group.size,
        "patience": group.deadline_after.total_seconds(),
        "expires": group.expires_after.total_seconds(),
        **asdict(group.demand),
        "members": [new_id() for _ in range(group.size)],
    }


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
        rows = [
            {
                "rollout_id": m.rollout_id,
                "fence": m.fence,
                "incarnation": by_id[m.rollout_id].incarnation,
                "traceparent": by_id[m.rollout_id].traceparent,
            }
            for m in moved
        ]
        session.execute(
            text(_BEGIN_ATTEMPTS).bindparams(bindparam("rows", type_=JSONB)),
            {"rows": rows, "groups": sorted({m.group_id for m in moved})},
        )
    return moved


_BEGIN_ATTEMPTS = """
WITH begun AS (
    INSERT INTO attempts (rollout_id, fence, incarnation, traceparent)
    SELECT rollout_id, fence, incarnation, traceparent FROM jsonb_to_recordset(:rows) AS x(
        rollout_id text, fence bigint, incarnation text, traceparent text)
)
UPDATE groups SET deadline = clock_timestamp() + patience
WHERE id = ANY(CAST(:groups AS text[])) AND deadline IS NULL
"""
"""Stragglers of a group are waited for from its first grant on."""


def cancel(session: Session, keys: Sequence[Key], *, actor: Actor, reason: str) -> None:
    """RUNNING → CANCELLING (its runner is told at its next heartbeat), any other living state → CANCELLED."""
    if not keys:
        return
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
