"""Moves: the only writer of a rollout's state.

Guarantees: every move is one row of `core.rollout.MOVES`, made by compare-and-set on id, fence and state, and
leaves one transition; a caller whose key did not move has been fenced off and must stop.
Does not: decide (that is `core`)."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Text, bindparam, text
from sqlalchemy.dialects.postgresql import ARRAY, BIGINT
from sqlalchemy.orm import Session

from tiltyard.core.outcome import Outcome
from tiltyard.core.rollout import Actor, State, move_between, sources


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """A rollout under one fence."""

    rollout_id: str
    fence: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """A rollout after a move."""

    rollout_id: str
    fence: int
    run_id: str
    group_id: str


_MOVE = """
WITH asked AS (
    SELECT * FROM unnest(:ids, :fences) AS asked(id, fence)
), held AS (
    SELECT r.id, r.state AS start FROM rollouts r JOIN asked a ON a.id = r.id AND a.fence = r.fence
    WHERE r.state = ANY(:starts) ORDER BY r.id FOR UPDATE OF r
), moved AS (
    UPDATE rollouts r SET state = :end, seq = r.seq + 1, updated_at = clock_timestamp(),
        fence = r.fence + CASE WHEN held.start = ANY(:raising) THEN 1 ELSE 0 END {queued} {sets}
    FROM held WHERE r.id = held.id
    RETURNING r.id, r.seq, held.start, r.fence, r.run_id, r.group_id
), written AS (
    INSERT INTO transitions (rollout_id, seq, start, "end", fence, actor, reason, at)
    SELECT id, seq, start, :end, fence, :actor, :reason, clock_timestamp() FROM moved
)
SELECT id, fence, run_id, group_id FROM moved
"""


_QUEUED = (
    ", queued_at = clock_timestamp(), yields_to = NULL,"
    " expires_at = clock_timestamp() + (r.expires_at - r.queued_at)"
)
"""Schedule-to-start begins anew, as long as it was when the rollout was planned."""


def move(
    session: Session,
    keys: Iterable[Key],
    end: State,
    *,
    actor: Actor,
    reason: str = "",
    sets: str = "",
    values: Mapping[str, Any] | None = None,
    only_from: Iterable[State] | None = None,
) -> list[Moved]:
    """Move every rollout whose key still holds; those missing from the answer have been fenced off.

    `sets` is SQL for further columns (", incarnation = :incarnation"), `values` its parameters. `only_from`
    narrows the states that `MOVES` allows. Raises `IllegalMove` when the table has no such move for the
    actor."""
    wanted = list(keys)
    starts = sources(end, actor) if only_from is None else frozenset(only_from)
    raising = [str(s) for s in starts if move_between(s, end, actor).raises_fence(actor)]
    if not wanted:
        return []
    queued = _QUEUED if end is State.QUEUED else ""
    statement = text(_MOVE.format(sets=sets, queued=queued)).bindparams(
        bindparam("ids", type_=ARRAY(Text)),
        bindparam("fences", type_=ARRAY(BIGINT)),
        bindparam("starts", type_=ARRAY(Text)),
        bindparam("raising", type_=ARRAY(Text)),
    )
    rows = session.execute(
        statement,
        {
            "ids": [k.rollout_id for k in wanted],
            "fences": [k.fence for k in wanted],
            "starts": [str(s) for s in starts],
            "raising": raising,
            "end": str(end),
            "actor": str(actor),
            "reason": reason[:2_000],
            **(values or {}),
        },
    )
    return [Moved(rollout_id=r.id, fence=r.fence, run_id=r.run_id, group_id=r.group_id) for r in rows]


def keys_where(
    session: Session, condition: str, values: Mapping[str, Any], *, lock: bool = False
) -> list[Key]:
    """Keys of the rollouts that an SQL condition over `rollouts r` picks, oldest first.

    With `lock`, nobody moves them before this transaction ends, so that each key still holds."""
    query = f"SELECT r.id, r.fence FROM rollouts r WHERE {condition} ORDER BY r.id"
    rows = session.execute(text(f"{query} FOR UPDATE OF r" if lock else query), dict(values))
    return [Key(rollout_id=row.id, fence=row.fence) for row in rows]


def end_attempts(session: Session, keys: Sequence[Key], outcome: Outcome, reason: str = "") -> None:
    """Close the newest attempt of each rollout, at or before its key's fence, if it is open."""
    if keys:
        session.execute(
            text(
                "UPDATE attempts a SET ended_at = clock_timestamp(), outcome = :outcome, reason = :reason"
                " FROM unnest(:ids, :fences) AS k(id, fence)"
                " WHERE a.rollout_id = k.id AND a.fence <= k.fence AND a.ended_at IS NULL"
            ).bindparams(bindparam("ids", type_=ARRAY(Text)), bindparam("fences", type_=ARRAY(BIGINT))),
            {
                "ids": [k.rollout_id for k in keys],
                "fences": [k.fence for k in keys],
                "outcome": str(outcome),
                "reason": reason[:2_000],
            },
        )
