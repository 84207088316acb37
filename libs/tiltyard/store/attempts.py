"""Attempts as their runner moves them: claimed, produced, failed, stopped.

Guarantees: a produced attempt leaves one QUEUED grading in the same transaction; a failure is charged to the
budget that `core.outcome` names.
Does not: touch a state but through `store.moves`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import Text, bindparam, text
from sqlalchemy.dialects.postgresql import ARRAY, BIGINT, JSONB
from sqlalchemy.orm import Session

from tiltyard.core.outcome import Outcome, ruling
from tiltyard.core.retry import Again, Budgets, retry
from tiltyard.core.rollout import Actor, State
from tiltyard.store.database import new_id
from tiltyard.store.moves import Key, end_attempts, move


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """Everything that a runner needs for one attempt."""

    rollout_id: str
    run_id: str
    group_id: str
    fence: int
    digest: str
    """Task version, as people name it."""
    public: dict[str, Any]
    """The task's PublicSpec."""
    traceparent: str
    model: str
    """`run@version` for evaluations, `run@latest` for training."""
    sampling: dict[str, Any]
    """`contracts.run_config.Sampling`."""
    seed: int
    """Different for every member of every group of the run."""

    @property
    def key(self) -> Key:
        return Key(rollout_id=self.rollout_id, fence=self.fence)


_CLAIMED = """
WITH claimed AS (
    UPDATE attempts a SET claimed_at = clock_timestamp() FROM unnest(:ids, :fences) AS k(id, fence)
    WHERE a.rollout_id = k.id AND a.fence = k.fence RETURNING a.rollout_id, a.traceparent
)
SELECT r.id, r.run_id, r.group_id, r.fence, v.digest, v.public, a.traceparent, run.kind,
       run.config->'sampling' AS sampling, run.config->'seed' AS seed,
       run.policy_run_id, run.policy_version, g."index" * g.size + r.member AS draw
FROM claimed a
JOIN rollouts r ON r.id = a.rollout_id
JOIN task_versions v ON v.id = r.version_id
JOIN groups g ON g.id = r.group_id
JOIN runs run ON run.id = r.run_id
ORDER BY r.id
"""


def claim(session: Session, incarnation: str, limit: int) -> list[Claim]:
    """GRANTED → RUNNING for up to `limit` rollouts granted to this incarnation, oldest grant first,
    members of a group together."""
    waiting = session.execute(
        text(
            "SELECT id, fence FROM rollouts WHERE incarnation = :me AND state = 'GRANTED'"
            " ORDER BY granted_at, id LIMIT :limit FOR UPDATE SKIP LOCKED"
        ),
        {"me": incarnation, "limit": limit},
    )
    keys = [Key(rollout_id=r.id, fence=r.fence) for r in waiting]
    moved = move(session, keys, State.RUNNING, actor=Actor.RUNNER)
    if not moved:
        return []
    rows = session.execute(
        text(_CLAIMED).bindparams(
            bindparam("ids", type_=ARRAY(Text)), bindparam("fences", type_=ARRAY(BIGINT))
        ),
        {"ids": [m.rollout_id for m in moved], "fences": [m.fence for m in moved]},
    )
    return [_claim(row) for row in rows]


def _claim(row: Any) -> Claim:
    model = (
        f"{row.policy_run_id}@{row.policy_version}" if row.kind == "evaluation" else f"{row.run_id}@latest"
    )
    return Claim(
        rollout_id=row.id,
        run_id=row.run_id,
        group_id=row.group_id,
        fence=row.fence,
        digest=row.digest,
        public=row.public,
        traceparent=row.traceparent,
        model=model,
        sampling=row.sampling,
        seed=(int(row.seed) * 1_000_003 + int(row.draw)) % 2**31,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Produced:
    """An attempt that ended with an artifact and waits for a grading."""

    key: Key
    outcome: Outcome
    artifact: str
    sha256: str
    oldest_version: int | None = None
    newest_version: int | None = None
    reason: str = ""


def produce(session: Session, ends: Sequence[Produced]) -> set[str]:
    """RUNNING → PRODUCED, each with a QUEUED grading; the ids that were still held under their fence."""
    if any(not ruling(e.outcome).valid for e in ends):
        raise ValueError("an attempt without a valid outcome is a failure: call fail()")
    moved = {m.rollout_id for m in move(session, [e.key for e in ends], State.PRODUCED, actor=Actor.RUNNER)}
    kept = [e for e in ends if e.key.rollout_id in moved]
    if kept:
        rows = [
            {
                "grading": new_id(),
                "rollout_id": e.key.rollout_id,
                "fence": e.key.fence,
                "outcome": str(e.outcome),
                "reason": e.reason[:2_000],
                "artifact": e.artifact,
                "sha256": e.sha256,
                "oldest": e.oldest_version,
                "newest": e.newest_version,
            }
            for e in kept
        ]
        session.execute(text(_PRODUCE).bindparams(bindparam("rows", type_=JSONB)), {"rows": rows})
    return moved


_PRODUCE = """
WITH ends AS (
    SELECT * FROM jsonb_to_recordset(:rows) AS x(grading text, rollout_id text, fence bigint, outcome text,
        reason text, artifact text, sha256 text, oldest bigint, newest bigint)
), attempt AS (
    UPDATE attempts a SET ended_at = clock_timestamp(), outcome = e.outcome, reason = e.reason,
        artifact = e.artifact, sha256 = e.sha256, oldest_version = e.oldest, newest_version = e.newest
    FROM ends e WHERE a.rollout_id = e.rollout_id AND a.fence = e.fence
), rollout AS (
    UPDATE rollouts r SET oldest_version = e.oldest, yields_to = NULL FROM ends e WHERE r.id = e.rollout_id
)
INSERT INTO gradings (id, rollout_id, fence) SELECT grading, rollout_id, fence FROM ends
"""
_END_ATTEMPT = """
UPDATE attempts SET ended_at = clock_timestamp(), outcome = :outcome, reason = :reason, artifact = :artifact,
    sha256 = :sha256, oldest_version = :oldest, newest_version = :newest
WHERE rollout_id = :rollout_id AND fence = :fence
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """An attempt that ended without a valid outcome."""

    key: Key
    outcome: Outcome
    reason: str
    jitter: float
    """In [0, 1), drawn by the caller for the back-off."""
    artifact: str | None = None
    sha256: str | None = None


def fail(session: Session, end: Failed) -> State | None:
    """RUNNING → QUEUED with back-off while the budget lasts, else FAILED; None when fenced off.

    Raises ValueError for a valid outcome: what the policy did is graded, not tried again."""
    if ruling(end.outcome).valid:
        raise ValueError(f"{end.outcome} is a valid outcome: call produce()")
    row = session.execute(
        text(
            "SELECT r.infrastructure_failures + 1 AS failures, run.config FROM rollouts r"
            " JOIN runs run ON run.id = r.run_id WHERE r.id = :id"
        ),
        {"id": end.key.rollout_id},
    ).one_or_none()
    if row is None:
        return None
    decision = retry(
        ruling(end.outcome).charge, failures=row.failures, budgets=budgets_of(row.config), jitter=end.jitter
    )
    again = isinstance(decision, Again)
    charged = (
        ", infrastructure_failures = infrastructure_failures + :charged, not_before = clock_timestamp() +"
        " :after"
    )
    moved = move(
        session,
        [end.key],
        State.QUEUED if again else State.FAILED,
        actor=Actor.RUNNER,
        only_from=[State.RUNNING],
        reason=f"{end.outcome}: {end.reason}",
        sets=charged,
        values={
            "charged": int(str(ruling(end.outcome).charge) == "infrastructure"),
            "after": decision.after if again else timedelta(),
        },
    )
    if not moved:
        return None
    session.execute(
        text(_END_ATTEMPT),
        {
            "rollout_id": end.key.rollout_id,
            "fence": end.key.fence,
            "outcome": str(end.outcome),
            "reason": end.reason[:2_000],
            "artifact": end.artifact,
            "sha256": end.sha256,
            "oldest": None,
            "newest": None,
        },
    )
    return State.QUEUED if again else State.FAILED


def budgets_of(config: Mapping[str, Any]) -> Budgets:
    """The retry budgets of a run's config."""
    rules = config.get("rollouts", {})
    return Budgets(
        infrastructure=rules.get("infrastructure_retries", Budgets().infrastructure),
        grader=rules.get("grader_retries", Budgets().grader),
    )


def stopped(session: Session, keys: Sequence[Key]) -> None:
    """The holder has stopped what it was told to stop: CANCELLING → CANCELLED, PREEMPTING → QUEUED."""
    done = move(session, keys, State.CANCELLED, actor=Actor.RUNNER, reason="stopped by its runner")
    end_attempts(session, [Key(rollout_id=m.rollout_id, fence=m.fence) for m in done], Outcome.CANCELLED)
    gone = move(
        session, keys, State.QUEUED, actor=Actor.RUNNER, only_from=[State.PREEMPTING], reason="yielded"
    )
    end_attempts(session, [Key(rollout_id=m.rollout_id, fence=m.fence) for m in gone], Outcome.PREEMPTED)
