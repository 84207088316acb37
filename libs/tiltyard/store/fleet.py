"""Runners: incarnations, heartbeats, and what happens when one is lost.

Guarantees: a restarted runner supersedes its predecessor at once; an incarnation is marked lost in the same
transaction that takes its rollouts back.
Does not: decide who is lost (`core.fleet`)."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import Row, text
from sqlalchemy.orm import Session

from tiltyard.core.fleet import AfterLoss, GiveUp, Runner, after_loss
from tiltyard.core.outcome import Charge, Outcome
from tiltyard.core.retry import Spent, retry
from tiltyard.core.rollout import Actor, State
from tiltyard.store.attempts import budgets_of
from tiltyard.store.moves import Key, end_attempts, keys_where, move


def join(
    session: Session, incarnation: str, *, node: str, slots: int, version: str, pool: str = "default"
) -> None:
    """Enter the fleet; older incarnations of the node are lost at once."""
    older = session.execute(
        text("SELECT incarnation FROM runners WHERE node = :node AND alive FOR UPDATE"), {"node": node}
    ).scalars()
    for predecessor in list(older):
        lose(session, predecessor, reason=f"superseded by {incarnation}")
    session.execute(
        text(
            "INSERT INTO runners (incarnation, node, pool, slots, version)"
            " VALUES (:incarnation, :node, :pool, :slots, :version)"
        ),
        {"incarnation": incarnation, "node": node, "pool": pool, "slots": slots, "version": version},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Orders:
    """What a heartbeat brings back."""

    stop: tuple[Key, ...]
    """Rollouts aboard that are to be stopped."""
    draining: bool


def heartbeat(session: Session, incarnation: str) -> Orders | None:
    """Say "alive"; None when the incarnation has been given up: kill everything and join anew."""
    row = session.execute(
        text(
            "UPDATE runners SET last_heartbeat = clock_timestamp() WHERE incarnation = :me AND alive"
            " RETURNING draining"
        ),
        {"me": incarnation},
    ).one_or_none()
    if row is None:
        return None
    stop = keys_where(
        session, "r.incarnation = :me AND r.state IN ('CANCELLING', 'PREEMPTING')", {"me": incarnation}
    )
    return Orders(stop=tuple(stop), draining=row.draining)


def leave(session: Session, incarnation: str) -> None:
    """Leave in good order: what is still aboard goes back to the queue."""
    lose(session, incarnation, reason="left")


def alive(session: Session) -> list[Runner]:
    """Living incarnations with how many rollouts each has aboard."""
    rows = session.execute(
        text(
            "SELECT n.incarnation, n.last_heartbeat, n.slots, n.draining, count(r.id) AS aboard,"
            " coalesce(bool_or(r.alone), false) AS lonely FROM runners n"
            " LEFT JOIN rollouts r ON r.incarnation = n.incarnation"
            " AND r.state IN ('GRANTED', 'RUNNING', 'PREEMPTING', 'CANCELLING')"
            " WHERE n.alive GROUP BY n.incarnation"
        )
    )
    return [
        Runner(
            incarnation=r.incarnation,
            last_heartbeat=r.last_heartbeat,
            slots=r.slots,
            aboard=r.aboard,
            draining=r.draining,
            lonely=r.lonely,
        )
        for r in rows
    ]


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
    for row in rows:
        key = Key(rollout_id=row.id, fence=row.fence)
        if row.state == State.CANCELLING:
            move(session, [key], State.CANCELLED, actor=Actor.DISPATCHER, reason=why)
        elif row.state == State.RUNNING and charged:
            _after_loss(session, key, row, why)
        else:
            move(
                session,
                [key],
                State.QUEUED,
                actor=Actor.DISPATCHER,
                reason=why,
                only_from=[State.GRANTED, State.RUNNING, State.PREEMPTING],
            )
    end_attempts(session, [Key(rollout_id=r.id, fence=r.fence) for r in rows], Outcome.RUNNER_LOST, why)
    return [r.id for r in rows]


def _after_loss(session: Session, key: Key, row: Row[Any], why: str) -> None:
    losses, failures = row.losses + 1, row.infrastructure_failures + 1
    fate = after_loss(losses=losses, was_alone_by_order=row.alone)
    budget = budgets_of(row.config)
    spent = isinstance(retry(Charge.INFRASTRUCTURE, failures=failures, budgets=budget, jitter=0.0), Spent)
    end = State.DEAD if fate is AfterLoss.DEAD else State.FAILED if spent else State.QUEUED
    move(
        session,
        [key],
        end,
        actor=Actor.DISPATCHER,
        reason=f"{Outcome.RUNNER_LOST}: {why}",
        only_from=[State.RUNNING],
        sets=", losses = :losses, infrastructure_failures = :failures, alone = :alone",
        values={"losses": losses, "failures": failures, "alone": fate is AfterLoss.REQUEUE_ALONE},
    )


def last_heartbeat(session: Session) -> datetime | None:
    """The newest heartbeat of any living runner."""
    return session.execute(text("SELECT max(last_heartbeat) FROM runners WHERE alive")).scalar_one()
