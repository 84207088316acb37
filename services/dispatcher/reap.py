"""What ran out of time is taken back.

Guarantees: each rule is one transaction that holds the leadership row; a rollout is never requeued without
raising its fence.
Does not: judge silence while time cannot be trusted (`core.fleet.given_up`)."""

from collections.abc import Callable
from datetime import timedelta

from sqlalchemy.orm import Session

from tiltyard.core.fleet import CLAIM_WITHIN, given_up
from tiltyard.core.outcome import Outcome
from tiltyard.core.rollout import Actor, State
from tiltyard.store import fleet, leadership, runs
from tiltyard.store.database import UnitOfWork, now
from tiltyard.store.leadership import Leader
from tiltyard.store.moves import Key, Moved, end_attempts, keys_where, move

STOP_GRACE = timedelta(seconds=60)
"""How long a runner may take to stop a rollout before it is taken from it."""


def reap(work: UnitOfWork, leader: Leader) -> int:
    """One turn; how many rollouts and runs it changed."""
    return sum(_guarded(work, leader, rule) for rule in (_silent, _unclaimed, _unstopped, _expired, _overdue))


def _guarded(work: UnitOfWork, leader: Leader, rule: Callable[[Session, Leader], int]) -> int:
    with work() as session:
        leadership.still(session, leader)
        return rule(session, leader)


def _silent(session: Session, leader: Leader) -> int:
    lost = given_up(fleet.alive(session), now=now(session), trusted_since=leader.trusted_since)
    return sum(len(fleet.lose(session, one)) + 1 for one in lost)


def _unclaimed(session: Session, leader: Leader) -> int:
    keys = keys_where(
        session, "r.state = 'GRANTED' AND r.granted_at < clock_timestamp() - :age", {"age": CLAIM_WITHIN}
    )
    moved = move(
        session,
        keys,
        State.QUEUED,
        actor=Actor.DISPATCHER,
        only_from=[State.GRANTED],
        reason="grant not claimed",
    )
    _close(session, moved, Outcome.CANCELLED, "grant not claimed")
    return len(moved)


def _unstopped(session: Session, leader: Leader) -> int:
    late = "r.state = :state AND r.updated_at < clock_timestamp() - :age"
    cancelling = keys_where(session, late, {"state": "CANCELLING", "age": STOP_GRACE})
    preempting = keys_where(session, late, {"state": "PREEMPTING", "age": STOP_GRACE})
    reason = "not stopped within its grace"
    moved = move(session, cancelling, State.CANCELLED, actor=Actor.DISPATCHER, reason=reason)
    _close(session, moved, Outcome.CANCELLED, reason)
    yielded = move(
        session, preempting, State.QUEUED, actor=Actor.DISPATCHER, reason=reason, only_from=[State.PREEMPTING]
    )
    _close(session, yielded, Outcome.PREEMPTED, reason)
    return len(moved) + len(yielded)


def _expired(session: Session, leader: Leader) -> int:
    keys = keys_where(session, "r.state = 'QUEUED' AND r.expires_at < clock_timestamp()", {})
    return len(move(session, keys, State.EXPIRED, actor=Actor.DISPATCHER, reason="schedule-to-start ran out"))


def _overdue(session: Session, leader: Leader) -> int:
    return sum(
        runs.finish(session, run, "FAILED", actor=Actor.DISPATCHER, reason="its deadline passed")
        for run in runs.overdue(session)
    )


def _close(session: Session, moved: list[Moved], outcome: Outcome, reason: str) -> None:
    end_attempts(session, [Key(rollout_id=m.rollout_id, fence=m.fence) for m in moved], outcome, reason)
