"""Training: the lease on a run, and its steps in two transactions.

Guarantees: a step is recorded with its ordered groups before it is computed; a group stands in one step at
most; a commit happens only under the fence that holds the run.
Does not: compute (services/trainer)."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta

from sqlalchemy import text
from sqlalchemy.orm import Session

from tiltyard.core.rollout import Actor, State
from tiltyard.store import policies, runs
from tiltyard.store.moves import keys_where, move

TERM = timedelta(seconds=20)


class LostRun(RuntimeError):
    """Another trainer holds the run, or it has ended: stop at once."""


def lease(session: Session, holder: str, *, kinds: Sequence[str] = ("sft", "train")) -> runs.RunRow | None:
    """Take the oldest living run of these kinds that nobody holds, with a new fence; None if there is
    none."""
    row = session.execute(
        text(
            "UPDATE runs SET holder = :holder, fence = fence + 1, lease_until = clock_timestamp() + :term,"
            " state = 'RUNNING', started_at = coalesce(started_at, clock_timestamp()) WHERE id = ("
            "  SELECT id FROM runs WHERE state IN ('PENDING', 'RUNNING') AND kind = ANY(:kinds)"
            "  AND (lease_until IS NULL OR lease_until < clock_timestamp() OR holder = :holder)"
            "  ORDER BY created_at LIMIT 1 FOR UPDATE SKIP LOCKED) RETURNING id"
        ),
        {"holder": holder, "term": TERM, "kinds": list(kinds)},
    ).one_or_none()
    return None if row is None else runs.get(session, row.id)


def renew(session: Session, run_id: str, fence: int) -> None:
    """Keep the run for another term; raises `LostRun`."""
    kept = session.execute(
        text(
            "UPDATE runs SET lease_until = clock_timestamp() + :term"
            " WHERE id = :id AND fence = :fence AND state = 'RUNNING' RETURNING id"
        ),
        {"id": run_id, "fence": fence, "term": TERM},
    ).one_or_none()
    if kept is None:
        raise LostRun(f"run {run_id} is no longer held under fence {fence}")


def release(session: Session, run_id: str, fence: int) -> None:
    """Let another trainer take the run at once."""
    session.execute(
        text("UPDATE runs SET lease_until = NULL, holder = NULL WHERE id = :id AND fence = :fence"),
        {"id": run_id, "fence": fence},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class StepMember:
    """A rollout of a step, with where its attempt is kept."""

    rollout_id: str
    fence: int
    state: str
    reward: float | None
    artifact: str | None
    sha256: str | None
    traceparent: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class StepGroup:
    id: str
    task: str
    """Task version."""
    members: tuple[StepMember, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """A recorded step: STARTED ones are computed (again) by whoever holds the run."""

    number: int
    state: str
    policy_version: int | None
    groups: tuple[StepGroup, ...]


def begin_step(
    session: Session, run_id: str, fence: int, *, groups: int, traceparent: str, oldest_allowed: int = 0
) -> int | None:
    """Record the next step with the oldest `groups` READY groups, in order, and move their rollouts to
    TRAINING. A group with tokens of a policy version before `oldest_allowed`, or with fewer than two members
    left, is the dispatcher's to settle anew.

    Returns its number (from 1), or None while fewer are READY. Raises `LostRun`."""
    renew(session, run_id, fence)
    ready = session.execute(
        text(
            "SELECT id FROM groups g WHERE run_id = :run AND state = 'READY' AND NOT EXISTS (SELECT FROM"
            " rollouts r"
            "  WHERE r.group_id = g.id AND r.state = 'READY' AND r.oldest_version < :oldest)"
            " AND (SELECT count(*) FROM rollouts r WHERE r.group_id = g.id AND r.state = 'READY') >= 2"
            ' ORDER BY "index" LIMIT :n FOR UPDATE'
        ),
        {"run": run_id, "n": groups, "oldest": oldest_allowed},
    ).scalars()
    chosen = list(ready)
    if len(chosen) < groups:
        return None
    number = session.execute(
        text("SELECT coalesce(max(step), 0) + 1 FROM training_steps WHERE run_id = :run"), {"run": run_id}
    ).scalar_one()
    session.execute(
        text(
            "INSERT INTO training_steps (run_id, step, fence, traceparent) VALUES (:run, :step, :fence,"
            " :trace)"
        ),
        {"run": run_id, "step": number, "fence": fence, "trace": traceparent},
    )
    session.execute(
        text(
            "INSERT INTO step_groups (run_id, step, position, group_id) VALUES (:run, :step, :position,"
            " :group)"
        ),
        [{"run": run_id, "step": number, "position": p, "group": g} for p, g in enumerate(chosen)],
    )
    session.execute(text("UPDATE groups SET state = 'TRAINED' WHERE id = ANY(:ids)"), {"ids": chosen})
    keys = keys_where(session, "r.group_id = ANY(:ids) AND r.state = 'READY'", {"ids": chosen})
    move(session, keys, State.TRAINING, actor=Actor.TRAINER, reason=f"step {number}")
    return number


def steps(session: Session, run_id: str, *, after: int = 0) -> list[Step]:
    """Recorded steps numbered above `after`, without withdrawn ones, in order."""
    heads = session.execute(
        text(
            "SELECT step, state, policy_version FROM training_steps"
            " WHERE run_id = :run AND step > :after AND state <> 'WITHDRAWN' ORDER BY step"
        ),
        {"run": run_id, "after": after},
    ).all()
    return [
        Step(
            number=h.step,
            state=h.state,
            policy_version=h.policy_version,
            groups=_groups(session, run_id, h.step),
        )
        for h in heads
    ]


def _groups(session: Session, run_id: str, step: int) -> tuple[StepGroup, ...]:
    rows = session.execute(
        text(
            "SELECT g.id AS group_id, v.digest, r.id, r.state, r.reward, a.fence, a.artifact, a.sha256,"
            " a.traceparent"
            " FROM step_groups s JOIN groups g ON g.id = s.group_id JOIN task_versions v ON v.id ="
            " g.version_id"
            " JOIN rollouts r ON r.group_id = g.id"
            " LEFT JOIN gradings q ON q.rollout_id = r.id AND q.selected"
            " LEFT JOIN attempts a ON a.rollout_id = r.id AND a.fence = coalesce(q.fence, r.fence)"
            " WHERE s.run_id = :run AND s.step = :step ORDER BY s.position, r.member"
        ),
        {"run": run_id, "step": step},
    ).all()
    members: dict[tuple[str, str], list[StepMember]] = {}
    for row in rows:
        members.setdefault((row.group_id, row.digest), []).append(
            StepMember(
                rollout_id=row.id,
                fence=row.fence or 0,
                state=row.state,
                reward=row.reward,
                artifact=row.artifact,
                sha256=row.sha256,
                traceparent=row.traceparent,
            )
        )
    return tuple(StepGroup(id=g, task=d, members=tuple(m)) for (g, d), m in members.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Published:
    """A new policy version's stored files."""

    version: int
    prefix: str
    files: Mapping[str, str]
    checkpoint: bool


def commit_step(
    session: Session,
    run_id: str,
    fence: int,
    step: int,
    *,
    published: Published,
    manifest: str,
    metrics: Mapping[str, float],
) -> None:
    """The step, its policy version and its rollouts (TRAINED) together; raises `LostRun`."""
    renew(session, run_id, fence)
    committed = session.execute(
        text(
            "UPDATE training_steps SET state = 'COMMITTED', committed_at = clock_timestamp(), fence = :fence,"
            " policy_version = :version, manifest = :manifest, metrics = CAST(:metrics AS jsonb)"
            " WHERE run_id = :run AND step = :step AND state = 'STARTED' RETURNING step"
        ),
        {
            "run": run_id,
            "step": step,
            "fence": fence,
            "version": published.version,
            "manifest": manifest,
            "metrics": json.dumps(dict(metrics)),
        },
    ).one_or_none()
    if committed is None:
        raise LostRun(f"step {step} of run {run_id} is not under way any more")
    publish(session, run_id, fence, published, step=step)
    keys = keys_where(
        session,
        "r.state = 'TRAINING' AND r.group_id IN (SELECT group_id FROM step_groups WHERE run_id = :run AND"
        " step = :step)",
        {"run": run_id, "step": step},
    )
    move(session, keys, State.TRAINED, actor=Actor.TRAINER, reason=f"step {step}")


def publish(session: Session, run_id: str, fence: int, published: Published, *, step: int | None) -> None:
    """Publish a version outside of a step too (version 0, a warm start); raises `LostRun`."""
    renew(session, run_id, fence)
    policies.publish(
        session,
        run_id,
        published.version,
        step=step,
        prefix=published.prefix,
        files=published.files,
        checkpoint=published.checkpoint,
    )


def complete(session: Session, run_id: str, fence: int) -> None:
    """The run has done its steps; raises `LostRun`."""
    renew(session, run_id, fence)
    runs.finish(session, run_id, "COMPLETED", actor=Actor.DISPATCHER)


def give_up(session: Session, run_id: str, fence: int, reason: str) -> None:
    """The run cannot go on, by its own fault (a dataset that is missing, a loss that is not finite)."""
    renew(session, run_id, fence)
    runs.finish(session, run_id, "FAILED", actor=Actor.DISPATCHER, reason=reason)
