"""What came to nothing: rollouts that ended without a reward, and messages that the broker gave up on.

Guarantees: a redrive is a move of the state table, with a new fence and a full retry budget; a message is
never put back, since the old one may be stale.
Does not: reopen what is settled: a group or a run that has ended takes no rollout back."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import text
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.orm import Session
from sqlalchemy.sql import bindparam

from tiltyard.contracts.http import BrokerLetter
from tiltyard.core.rollout import LIVING, Actor, State, sources
from tiltyard.store.moves import Key, move

REDRIVABLE = sources(State.QUEUED, Actor.REGISTRY)
"""States that a person may send back to the queue."""


class NotRedrivable(ValueError):
    """The rollout cannot be sent back to the queue; the message says why, and what can be done."""


_ROLLOUT = """
SELECT r.id, r.state, r.fence, g.state AS "group", run.state AS run
FROM rollouts r JOIN runs run ON run.id = r.run_id JOIN groups g ON g.id = r.group_id
WHERE r.id = :id AND run.tenant_id = :tenant FOR UPDATE OF r, g
"""
_AFRESH = (
    ", not_before = clock_timestamp(), infrastructure_failures = 0, losses = 0, alone = false, reward = NULL"
)


def redrive(session: Session, tenant_id: str, rollout_id: str) -> bool:
    """Send a rollout back to the queue; False when there is none of this id. Raises `NotRedrivable`."""
    row = session.execute(text(_ROLLOUT), {"id": rollout_id, "tenant": tenant_id}).one_or_none()
    if row is None:
        return False
    if reason := _hindrance(State(row.state), row.group, row.run):
        raise NotRedrivable(f"rollout {rollout_id} cannot be redriven: {reason}")
    move(
        session,
        [Key(rollout_id=row.id, fence=row.fence)],
        State.QUEUED,
        actor=Actor.REGISTRY,
        reason="redriven",
        sets=_AFRESH,
    )
    return True


def _hindrance(state: State, group: str, run: str) -> str | None:
    """Why it cannot be redriven."""
    if state in LIVING:
        return f"it is {state}, on its way; cancel its run to stop it"
    if state not in REDRIVABLE:
        return f"it is {state}; only {', '.join(sorted(REDRIVABLE))} can be"
    if run not in ("PENDING", "RUNNING"):
        return f"its run is {run}; start a new run"
    if group != "OPEN":
        return f"its group is settled ({group}); its run plans new groups as long as it needs them"
    return None


def keep(session: Session, *, queue: str, reason: str, headers: Mapping[str, Any], body: str) -> None:
    """Keep a message that the broker gave up on."""
    session.execute(
        text(
            "INSERT INTO dead_letters (queue, reason, headers, body)"
            " VALUES (:queue, :reason, :headers, :body)"
        ).bindparams(bindparam("headers", type_=JSONB)),
        {"queue": queue, "reason": reason, "headers": dict(headers), "body": body.replace("\x00", "?")},
    )


def letters(session: Session, limit: int) -> tuple[BrokerLetter, ...]:
    """Messages that the broker gave up on, newest first."""
    rows = session.execute(
        text(
            "SELECT id, queue, reason, headers, body, created_at FROM dead_letters"
            " ORDER BY id DESC LIMIT :limit"
        ),
        {"limit": limit},
    )
    return tuple(BrokerLetter.model_validate(dict(row._mapping)) for row in rows)
