"""Gradings: jobs claimed under a lease, and the scores that they leave.

Guarantees: a result counts only under the number that its lease was claimed with, and in the transaction that
moves its rollout on; a lease that ran out is charged as a failed try, so that a grading that kills its
graders ends.
Does not: judge (`core.outcome`, `core.reward`), or touch a rollout's state but through `store.moves`."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from datetime import timedelta
from typing import Any

from sqlalchemy import Text, TextClause, bindparam, text
from sqlalchemy.dialects.postgresql import ARRAY, BIGINT, JSONB
from sqlalchemy.orm import Session

from tiltyard.core.outcome import Charge, Outcome, ruling
from tiltyard.core.retry import Again, retry
from tiltyard.core.rollout import Actor, State
from tiltyard.store.attempts import budgets_of
from tiltyard.store.moves import Key, move

LONGEST_REASON = 2_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Ticket:
    """A grading under the number of one claim: what each later write must show."""

    id: str
    number: int
    key: Key
    """The attempt that is graded."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClaimedGrading:
    """Everything that an evaluator needs for one grading, but for the task's spec (`specs`)."""

    ticket: Ticket
    run_id: str
    version_id: str
    artifact: str
    sha256: str
    traceparent: str
    """Of the attempt."""
    spent: bool
    """Its graders failed or were lost so often that it is to be given up."""


_CLAIM = """
WITH waiting AS (
    SELECT id, state = 'LEASED' AS expired FROM gradings
    WHERE not_before <= clock_timestamp()
      AND (state = 'QUEUED' OR (state = 'LEASED' AND lease_until < clock_timestamp()))
    ORDER BY created_at LIMIT :limit FOR UPDATE SKIP LOCKED
), claimed AS (
    UPDATE gradings g SET state = 'LEASED', number = g.number + 1, holder = :holder,
        lease_until = clock_timestamp() + :term,
        failures = g.failures + CASE WHEN waiting.expired THEN 1 ELSE 0 END
    FROM waiting WHERE g.id = waiting.id
    RETURNING g.id, g.number, g.rollout_id, g.fence, g.failures, g.created_at
)
SELECT c.*, r.run_id, r.version_id, a.artifact, a.sha256, a.traceparent, run.config->'rollouts' AS rules
FROM claimed c JOIN rollouts r ON r.id = c.rollout_id JOIN runs run ON run.id = r.run_id
JOIN attempts a ON a.rollout_id = c.rollout_id AND a.fence = c.fence
ORDER BY c.created_at
"""


def claim(session: Session, holder: str, limit: int, term: timedelta) -> list[ClaimedGrading]:
    """Up to `limit` gradings that wait, or whose lease ran out, oldest first; each is held for `term`."""
    rows = session.execute(text(_CLAIM), {"holder": holder, "limit": limit, "term": term})
    return [
        ClaimedGrading(
            ticket=Ticket(id=r.id, number=r.number, key=Key(rollout_id=r.rollout_id, fence=r.fence)),
            run_id=r.run_id,
            version_id=r.version_id,
            artifact=r.artifact or "",
            sha256=r.sha256 or "",
            traceparent=r.traceparent,
            spent=r.failures > budgets_of({"rollouts": r.rules or {}}).grader,
        )
        for r in rows
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionSpec:
    """Both halves of a task version's spec, as they are stored."""

    version_id: str
    public: dict[str, Any]
    hidden: dict[str, Any]
    verifier: str
    """Content hash of the hidden half."""


def specs(session: Session, version_ids: Sequence[str]) -> list[VersionSpec]:
    """The specs of task versions, hidden half included: for evaluators alone."""
    rows = session.execute(
        text(
            "SELECT v.id, v.public, s.hidden, s.digest FROM task_versions v"
            " JOIN task_secrets s ON s.version_id = v.id WHERE v.id = ANY(:ids)"
        ).bindparams(bindparam("ids", type_=ARRAY(Text))),
        {"ids": list(version_ids)},
    )
    return [VersionSpec(version_id=r.id, public=r.public, hidden=r.hidden, verifier=r.digest) for r in rows]


def renew(session: Session, tickets: Sequence[Ticket], term: timedelta) -> set[str]:
    """Hold these for another `term`; the ids that are still held."""
    rows = session.execute(
        text(
            "UPDATE gradings g SET lease_until = clock_timestamp() + :term"
            " FROM unnest(:ids, :numbers) AS k(id, number)"
            " WHERE g.id = k.id AND g.number = k.number AND g.state = 'LEASED' RETURNING g.id"
        ).bindparams(bindparam("ids", type_=ARRAY(Text)), bindparam("numbers", type_=ARRAY(BIGINT))),
        {"ids": [t.id for t in tickets], "numbers": [t.number for t in tickets], "term": term},
    )
    return set(rows.scalars())


def release(session: Session, tickets: Sequence[Ticket]) -> None:
    """Give claims back unused: nothing is charged."""
    session.execute(
        text(
            "UPDATE gradings g SET state = 'QUEUED', holder = NULL, lease_until = NULL, announced_at = NULL"
            " FROM unnest(:ids, :numbers) AS k(id, number)"
            " WHERE g.id = k.id AND g.number = k.number AND g.state = 'LEASED'"
        ).bindparams(bindparam("ids", type_=ARRAY(Text)), bindparam("numbers", type_=ARRAY(BIGINT))),
        {"ids": [t.id for t in tickets], "numbers": [t.number for t in tickets]},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoreRow:
    """One component of a grading; its text stays in the GradingRecord."""

    component: str
    value: float | None
    weight: float
    gate: bool
    tier: int
    outcome: Outcome


@dataclass(frozen=True, slots=True, kw_only=True)
class Graded:
    """A grading that came to a reward."""

    ticket: Ticket
    verifier: str
    outcome: Outcome
    reward: float
    artifact: str
    scores: tuple[ScoreRow, ...]
    reason: str = ""


_COMMIT = """
UPDATE gradings g SET state = 'DONE', selected = true, finished_at = clock_timestamp(), verifier = x.verifier,
    outcome = x.outcome, reason = x.reason, reward = x.reward, artifact = x.artifact
FROM jsonb_to_recordset(:rows) AS x(
    id text, number bigint, verifier text, outcome text, reason text, reward float8, artifact text)
WHERE g.id = x.id AND g.number = x.number AND g.state = 'LEASED'
RETURNING g.id
"""

_SCORES = """
INSERT INTO scores (grading_id, component, value, weight, gate, tier, outcome)
SELECT grading_id, component, value, weight, gate, tier, outcome FROM jsonb_to_recordset(:rows) AS x(
    grading_id text, component text, value float8, weight float8, gate bool, tier bigint, outcome text)
"""


def commit(session: Session, results: Sequence[Graded]) -> set[str]:
    """LEASED → DONE and PRODUCED → SCORED together; ids of the gradings that counted.

    One whose lease has passed to another, or whose rollout has been cancelled, leaves nothing. Raises
    ValueError for a result without a valid outcome: that is a failure."""
    if any(not ruling(r.outcome).valid for r in results):
        raise ValueError("a grading without a valid outcome is a failure: call fail()")
    _lock_rollouts(session, [r.ticket.key for r in results])
    held = set(session.execute(_rows(_COMMIT), {"rows": [_graded_row(r) for r in results]}).scalars())
    moved = {
        m.rollout_id
        for m in move(
            session,
            [r.ticket.key for r in results if r.ticket.id in held],
            State.SCORED,
            actor=Actor.EVALUATOR,
            sets=", reward = (SELECT g.reward FROM gradings g WHERE g.rollout_id = r.id AND g.selected)",
        )
    }
    kept = [r for r in results if r.ticket.id in held and r.ticket.key.rollout_id in moved]
    ids = {r.ticket.id for r in kept}
    if held - ids:
        _withdraw(session, held - ids)
    rows = [{"grading_id": r.ticket.id, **asdict(s)} for r in kept for s in r.scores]
    session.execute(_rows(_SCORES), {"rows": rows})
    return ids


def _graded_row(result: Graded) -> dict[str, Any]:
    return {
        "id": result.ticket.id,
        "number": result.ticket.number,
        "verifier": result.verifier,
        "outcome": str(result.outcome),
        "reason": result.reason[:LONGEST_REASON],
        "reward": result.reward,
        "artifact": result.artifact,
    }


def _rows(statement: str) -> TextClause:
    return text(statement).bindparams(bindparam("rows", type_=JSONB))


def _lock_rollouts(session: Session, keys: Sequence[Key]) -> None:
    """Rollouts before gradings, in the order of their ids, as everybody locks them."""
    session.execute(
        text("SELECT 1 FROM rollouts WHERE id = ANY(:ids) ORDER BY id FOR UPDATE").bindparams(
            bindparam("ids", type_=ARRAY(Text))
        ),
        {"ids": [k.rollout_id for k in keys]},
    )


def _withdraw(session: Session, ids: set[str]) -> None:
    session.execute(
        text("UPDATE gradings SET state = 'CANCELLED', selected = false WHERE id = ANY(:ids)").bindparams(
            bindparam("ids", type_=ARRAY(Text))
        ),
        {"ids": sorted(ids)},
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class FailedGrading:
    """A grading that measured nothing."""

    ticket: Ticket
    outcome: Outcome
    reason: str
    jitter: float
    """In [0, 1), drawn by the caller for the back-off."""
    verifier: str | None = None
    artifact: str | None = None


_FAIL = """
UPDATE gradings SET state = :state, failures = :failures, not_before = clock_timestamp() + :after,
    holder = NULL, lease_until = NULL, announced_at = NULL, outcome = :outcome, reason = :reason,
    verifier = :verifier, artifact = :artifact,
    finished_at = CASE WHEN :state = 'FAILED' THEN clock_timestamp() END
WHERE id = :id
"""


def fail(session: Session, failures: Sequence[FailedGrading]) -> dict[str, str]:
    """Each grading that was still held → its new state: QUEUED with back-off while the run's grader budget
    lasts, else FAILED, and its rollout INVALID: never a reward."""
    if any(ruling(f.outcome).valid for f in failures):
        raise ValueError("a valid outcome is a result: call commit()")
    _lock_rollouts(session, [f.ticket.key for f in failures])
    states = {f.ticket.id: state for f in failures if (state := _fail_one(session, f)) is not None}
    spent = [f for f in failures if states.get(f.ticket.id) == "FAILED"]
    for failure in spent:
        reason = f"{failure.outcome}: {failure.reason}"
        move(session, [failure.ticket.key], State.INVALID, actor=Actor.EVALUATOR, reason=reason)
    return states


def _fail_one(session: Session, failure: FailedGrading) -> str | None:
    held = session.execute(
        text(
            "SELECT g.failures + 1 AS failures, run.config FROM gradings g"
            " JOIN rollouts r ON r.id = g.rollout_id JOIN runs run ON run.id = r.run_id"
            " WHERE g.id = :id AND g.number = :number AND g.state = 'LEASED' FOR UPDATE OF g"
        ),
        {"id": failure.ticket.id, "number": failure.ticket.number},
    ).one_or_none()
    if held is None:
        return None
    decision = retry(
        Charge.GRADER, failures=held.failures, budgets=budgets_of(held.config), jitter=failure.jitter
    )
    state = "QUEUED" if isinstance(decision, Again) else "FAILED"
    session.execute(
        text(_FAIL),
        {
            "id": failure.ticket.id,
            "state": state,
            "failures": held.failures,
            "after": decision.after if isinstance(decision, Again) else timedelta(),
            "outcome": str(failure.outcome),
            "reason": failure.reason[:LONGEST_REASON],
            "verifier": failure.verifier,
            "artifact": failure.artifact,
        },
    )
    return state


def unannounced(session: Session, older_than: timedelta, limit: int = 256) -> list[str]:
    """Gradings that wait and were never announced, or not for `older_than`; marks them announced now."""
    return list(
        session.execute(
            text(
                "UPDATE gradings SET announced_at = clock_timestamp() WHERE id IN ("
                " SELECT id FROM gradings WHERE not_before <= clock_timestamp()"
                " AND (state = 'QUEUED' OR (state = 'LEASED' AND lease_until < clock_timestamp()))"
                " AND (announced_at IS NULL OR announced_at < clock_timestamp() - CAST(:age AS interval))"
                " ORDER BY created_at LIMIT :limit FOR UPDATE SKIP LOCKED) RETURNING id"
            ),
            {"age": older_than, "limit": limit},
        ).scalars()
    )


def announced(session: Session, rollout_ids: Sequence[str]) -> list[str]:
    """Mark the waiting gradings of these rollouts as announced, by whoever made them; their ids."""
    return list(
        session.execute(
            text(
                "UPDATE gradings SET announced_at = clock_timestamp()"
                " WHERE rollout_id = ANY(:ids) AND state = 'QUEUED' RETURNING id"
            ).bindparams(bindparam("ids", type_=ARRAY(Text))),
            {"ids": list(rollout_ids)},
        ).scalars()
    )
