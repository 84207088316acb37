"""Rollouts as people look into them, the fleet they ran on, and what an evaluation run measured.

Guarantees: a rollout shows its newest end: the grading's if there is one, else the attempt's.
Does not: read artifacts; it gives their keys."""

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import text
from sqlalchemy.orm import Session

from tiltyard.contracts.http import RolloutView, RunnerView, TaskScore, TransitionView
from tiltyard.store.views.page import Keyset, page_of


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutFilter:
    """Which rollouts to list."""

    run_id: str | None = None
    state: str | None = None
    task: str | None = None
    """Digest or name."""


_ROLLOUT = """
SELECT r.id, r.run_id, r.group_id, v.digest AS task, t.name AS task_name, r.member, r.state, r.fence,
    r.reward,
    coalesce(g.outcome, a.outcome) AS outcome,
    coalesce(nullif(g.reason, ''), nullif(a.reason, ''),
        (SELECT x.reason FROM transitions x WHERE x.rollout_id = r.id AND x.seq = r.seq AND r.reward IS NULL),
        '') AS reason,
    a.newest_version AS policy_version, nullif(split_part(a.traceparent, '-', 2), '') AS trace_id,
    r.created_at, r.updated_at
FROM rollouts r JOIN runs run ON run.id = r.run_id JOIN task_versions v ON v.id = r.version_id
JOIN tasks t ON t.id = v.task_id
LEFT JOIN LATERAL (SELECT * FROM attempts a WHERE a.rollout_id = r.id ORDER BY a.fence DESC LIMIT 1) a ON true
LEFT JOIN LATERAL (SELECT * FROM gradings g WHERE g.rollout_id = r.id AND g.outcome IS NOT NULL
    AND g.fence = a.fence ORDER BY g.selected DESC, g.id DESC LIMIT 1) g ON true
WHERE run.tenant_id = :tenant
"""


def rollouts(
    session: Session, tenant_id: str, chosen: RolloutFilter, *, after: str | None, limit: int
) -> Keyset[RolloutView]:
    """Rollouts, newest first."""
    conditions = {
        "r.id < :after": after,
        "r.run_id = :run": chosen.run_id,
        "r.state = :state": chosen.state,
        "(v.digest = :task OR t.name = :task)": chosen.task,
    }
    asked = "".join(f" AND {sql}" for sql, value in conditions.items() if value is not None)
    rows = session.execute(
        text(f"{_ROLLOUT}{asked} ORDER BY r.id DESC LIMIT :limit"),
        {
            "tenant": tenant_id,
            "limit": limit + 1,
            "after": after,
            "run": chosen.run_id,
            "state": chosen.state,
            "task": chosen.task,
        },
    ).all()
    return page_of(rows, limit, "id", lambda row: RolloutView.model_validate(dict(row._mapping)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
    """An attempt's row: all that is left of an attempt whose runner died."""

    fence: int
    incarnation: str
    traceparent: str
    granted_at: datetime
    claimed_at: datetime | None
    ended_at: datetime | None
    outcome: str | None
    reason: str
    artifact: str | None
    """Key of its AttemptRecord."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """A rollout's rows, with the keys of its records in the object store."""

    rollout: RolloutView
    transitions: tuple[TransitionView, ...]
    grants: tuple[Grant, ...]
    """Its attempts, in order of fences."""
    gradings: tuple[str, ...]
    """Keys of GradingRecords, in order."""
    step: str | None
    """Key of the manifest of the step that trained on it."""


def rollout(session: Session, tenant_id: str, rollout_id: str) -> Kept | None:
    """One rollout with everything that rows tell about it."""
    values = {"tenant": tenant_id, "id": rollout_id}
    row = session.execute(text(f"{_ROLLOUT} AND r.id = :id"), values).one_or_none()
    if row is None:
        return None
    moves = session.execute(
        text(
            'SELECT seq, start, "end", fence, actor, reason, at FROM transitions'
            " WHERE rollout_id = :id ORDER BY seq"
        ),
        values,
    )
    return Kept(
        rollout=RolloutView.model_validate(dict(row._mapping)),
        transitions=tuple(TransitionView.model_validate(dict(m._mapping)) for m in moves),
        grants=_grants(session, rollout_id),
        gradings=_keys(session, "SELECT artifact FROM gradings WHERE rollout_id = :id ORDER BY id", values),
        step=next(iter(_keys(session, _MANIFEST, values)), None),
    )


def _grants(session: Session, rollout_id: str) -> tuple[Grant, ...]:
    rows = session.execute(
        text(
            "SELECT fence, incarnation, traceparent, granted_at, claimed_at, ended_at, outcome, reason,"
            " artifact"
            " FROM attempts WHERE rollout_id = :id ORDER BY fence"
        ),
        {"id": rollout_id},
    )
    return tuple(Grant(**row._mapping) for row in rows)


_MANIFEST = """
SELECT s.manifest FROM rollouts r JOIN step_groups m ON m.group_id = r.group_id
JOIN training_steps s ON s.run_id = m.run_id AND s.step = m.step WHERE r.id = :id AND s.state = 'COMMITTED'
"""


def _keys(session: Session, sql: str, values: dict[str, Any]) -> tuple[str, ...]:
    return tuple(key for key in session.execute(text(sql), values).scalars() if key is not None)


def fleet(session: Session, *, everyone: bool = False, limit: int = 500) -> tuple[RunnerView, ...]:
    """Living incarnations, or also those that have ended, newest first."""
    rows = session.execute(
        text(
            "SELECT n.incarnation, n.node, n.pool, n.alive, n.slots, n.cpu, n.memory_mb, n.gpu, n.draining,"
            " n.health, n.version, n.last_heartbeat, held.* FROM runners n CROSS JOIN LATERAL ("
            " SELECT count(*) AS aboard, coalesce(sum(r.slots), 0)::bigint AS used_slots,"
            "  coalesce(sum(r.cpu), 0)::float8 AS used_cpu,"
            "  coalesce(sum(r.memory_mb), 0)::bigint AS used_memory_mb,"
            "  coalesce(sum(r.gpu), 0)::bigint AS used_gpu FROM rollouts r"
            " WHERE r.incarnation = n.incarnation"
            "  AND r.state IN ('GRANTED', 'RUNNING', 'PREEMPTING', 'CANCELLING')) held"
            " WHERE n.alive OR :everyone ORDER BY n.alive DESC, n.started_at DESC LIMIT :limit"
        ),
        {"everyone": everyone, "limit": limit},
    )
    return tuple(RunnerView.model_validate(dict(row._mapping)) for row in rows)


def scores(session: Session, run_id: str) -> tuple[TaskScore, ...]:
    """Each task's valid rewards in a run, by name; tasks without a valid reward are left out."""
    rows = session.execute(
        text(
            "SELECT v.digest AS task, t.name, count(*) AS valid,"
            " count(*) FILTER (WHERE r.reward >= 1.0) AS passed,"
            " avg(r.reward) AS mean FROM rollouts r JOIN task_versions v ON v.id = r.version_id"
            " JOIN tasks t ON t.id = v.task_id WHERE r.run_id = :run AND r.reward IS NOT NULL"
            " GROUP BY v.digest, t.name ORDER BY t.name"
        ),
        {"run": run_id},
    )
    return tuple(TaskScore.model_validate(dict(row._mapping)) for row in rows)


def count(session: Session, run_id: str) -> int:
    """Rollouts of a run, in whatever state."""
    return session.execute(
        text("SELECT count(*) FROM rollouts WHERE run_id = :run"), {"run": run_id}
    ).scalar_one()
