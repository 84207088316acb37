"""Records of a rollout, as a runner and an evaluator would leave them."""

from datetime import UTC, datetime, timedelta
from typing import Any

from sqlalchemy import text

from tiltyard.contracts.records import (
    AttemptRecord,
    GradingRecord,
    ScoreRecord,
    Span,
    Turn,
    attempt_key,
    grading_key,
    pack,
)
from tiltyard.core.outcome import Outcome
from tiltyard.store.attempts import Claim
from tiltyard.testing.rows import Rows

START = datetime(2026, 11, 30, 12, 0, tzinfo=UTC)
TRACE = "0123456789abcdef0123456789abcdef"
SECOND = 1_000_000_000


def span(
    name: str, service: str, at: float, took: float, *, number: int, parent: int | None, **more: Any
) -> Span:
    """A finished span, in seconds after the start."""
    begun = int(START.timestamp()) * SECOND
    return {
        "name": name,
        "kind": "INTERNAL",
        "service": service,
        "trace_id": TRACE,
        "span_id": f"{number:016x}",
        "parent_id": None if parent is None else f"{parent:016x}",
        "start_ns": begun + int(at * SECOND),
        "end_ns": begun + int((at + took) * SECOND),
        "attributes": {},
        "status": "OK",
        "message": "",
        "events": [],
        "links": [],
        **more,
    }


def attempt(claim: Claim, words: str, **changes: Any) -> AttemptRecord:
    turn = Turn(
        prompt_token_ids=(1, 2, 3),
        token_ids=tuple(range(len(words.split()))),
        logprobs=(-0.5,) * len(words.split()),
        policy_versions=(3,) * len(words.split()),
        text=words,
        finish_reason="stop",
    )
    fields: dict[str, Any] = {
        "run_id": claim.run_id,
        "rollout_id": claim.rollout_id,
        "fence": claim.fence,
        "task_version": claim.digest,
        "incarnation": "runner-1",
        "outcome": Outcome.COMPLETED,
        "turns": (turn,),
        "answer": words,
        "started_at": START,
        "ended_at": START + timedelta(seconds=2),
        "spans": (
            span("episode", "runner", 0.1, 1.9, number=1, parent=None),
            span("chat", "runner", 0.2, 1.5, number=2, parent=1),
            span("generate", "rollout", 0.3, 1.3, number=3, parent=2),
        ),
    }
    return AttemptRecord(**{**fields, **changes})


def grading(claim: Claim, *, passed: bool = False, stdout: str = "", detail: str = "") -> GradingRecord:
    score = ScoreRecord(
        component="tests",
        value=float(passed),
        weight=1.0,
        gate=False,
        tier=0,
        outcome=Outcome.GRADED,
        detail=detail,
        tests={"case 0": True, "case 1": passed},
        stdout=stdout,
        stderr="" if passed else "AssertionError: 7 != 6",
    )
    return GradingRecord(
        rollout_id=claim.rollout_id,
        fence=claim.fence,
        number=1,
        verifier="0" * 64,
        outcome=Outcome.GRADED,
        reward=float(passed),
        scores=(score,),
        started_at=START + timedelta(seconds=2),
        ended_at=START + timedelta(seconds=2.2),
        spans=(
            span("grade", "evaluator", 2.0, 0.2, number=4, parent=1),
            span(
                "exec",
                "evaluator",
                2.05,
                0.1,
                number=5,
                parent=4,
                status="OK" if passed else "ERROR",
                message="" if passed else "test failed",
            ),
        ),
    )


def keep(rows: Rows, objects: Any, claim: Claim, record: AttemptRecord, graded: GradingRecord | None) -> None:
    """Store the records, and point the rows at them."""
    objects.put(attempt_key(claim.run_id, claim.rollout_id, claim.fence), pack(record))
    if graded is None:
        return
    key = grading_key(claim.run_id, claim.rollout_id, claim.fence, 1)
    objects.put(key, pack(graded))
    with rows.work() as session:
        session.execute(
            text(
                "UPDATE gradings SET state = 'DONE', artifact = :key, outcome = 'graded', reward = :reward,"
                " selected = true, finished_at = now() WHERE rollout_id = :id"
            ),
            {"key": key, "reward": graded.reward, "id": claim.rollout_id},
        )
        session.execute(
            text("UPDATE rollouts SET reward = :reward WHERE id = :id"),
            {"reward": graded.reward, "id": claim.rollout_id},
        )
