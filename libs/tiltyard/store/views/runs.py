"""Runs as engineers see them: their state, curves, counts and policy versions.

Guarantees: every number is counted from rows at the moment of asking.
Does not: judge whether the records agree; `store.ledger` does."""

from dataclasses import dataclass
from typing import Any

from pydantic import TypeAdapter
from sqlalchemy import text
from sqlalchemy.orm import Session

from tiltyard.contracts.http import Latency, PolicyView, RunStats, RunView, StepView
from tiltyard.contracts.run_config import EvaluationRun, RunConfig, SftRun, TrainRun
from tiltyard.core.outcome import RULINGS
from tiltyard.store.views.page import Keyset, page_of

_CONFIG: TypeAdapter[SftRun | TrainRun | EvaluationRun] = TypeAdapter(RunConfig)
_RUN = """
SELECT r.id, r.name, r.kind, r.state, r.config, r.reason, r.created_at, r.started_at, r.finished_at,
    (SELECT count(*) FROM training_steps s WHERE s.run_id = r.id AND s.state = 'COMMITTED') AS step,
    coalesce((SELECT max(p.version) FROM policy_versions p WHERE p.run_id = r.id AND p.state = 'PUBLISHED'),
        r.policy_version) AS policy_version
FROM runs r WHERE r.tenant_id = :tenant
"""


def runs(
    session: Session,
    tenant_id: str,
    *,
    state: str | None = None,
    kind: str | None = None,
    after: str | None = None,
    limit: int,
) -> Keyset[RunView]:
    """Runs, newest first."""
    conditions = {"r.id < :after": after, "r.state = :state": state, "r.kind = :kind": kind}
    asked = "".join(f" AND {sql}" for sql, value in conditions.items() if value is not None)
    rows = session.execute(
        text(f"{_RUN}{asked} ORDER BY r.id DESC LIMIT :limit"),
        {"tenant": tenant_id, "after": after, "state": state, "kind": kind, "limit": limit + 1},
    ).all()
    return page_of(rows, limit, "id", _run)


def run(session: Session, tenant_id: str, run_id: str) -> RunView:
    """The run of this id, which exists (`store.runs.find`)."""
    row = session.execute(text(f"{_RUN} AND r.id = :id"), {"tenant": tenant_id, "id": run_id}).one()
    return _run(row)


def _run(row: Any) -> RunView:
    values = dict(row._mapping)
    return RunView(**{**values, "config": _CONFIG.validate_python(values["config"])})


def steps(session: Session, run_id: str, *, after: str | None, limit: int) -> Keyset[StepView]:
    """Training steps in order."""
    rows = session.execute(
        text(
            "SELECT step, state, policy_version, metrics, started_at, committed_at FROM training_steps"
            " WHERE run_id = :run AND step > :after ORDER BY step LIMIT :limit"
        ),
        {"run": run_id, "after": int(after or 0), "limit": limit + 1},
    ).all()
    return page_of(rows, limit, "step", lambda row: StepView.model_validate(dict(row._mapping)))


def policies(session: Session, run_id: str, *, after: str | None, limit: int) -> Keyset[PolicyView]:
    """Policy versions, newest first."""
    rows = session.execute(
        text(
            "SELECT version, state, step, prefix, created_at FROM policy_versions"
            " WHERE run_id = :run AND version < :after ORDER BY version DESC LIMIT :limit"
        ),
        {"run": run_id, "after": 2**62 if after is None else int(after), "limit": limit + 1},
    ).all()
    return page_of(rows, limit, "version", lambda row: PolicyView.model_validate(dict(row._mapping)))


_INVALID = [str(outcome) for outcome, ruling in RULINGS.items() if not ruling.valid]
_COUNTS = {
    "rollouts": "SELECT state, count(*) FROM rollouts WHERE run_id = :run GROUP BY state ORDER BY state",
    "groups": "SELECT state, count(*) FROM groups WHERE run_id = :run GROUP BY state ORDER BY state",
    "failures": "SELECT outcome, count(*) FROM ("
    "SELECT a.outcome FROM attempts a JOIN rollouts r ON r.id = a.rollout_id WHERE r.run_id = :run"
    " AND a.outcome = ANY(:invalid) UNION ALL "
    "SELECT g.outcome FROM gradings g JOIN rollouts r ON r.id = g.rollout_id WHERE r.run_id = :run"
    " AND g.outcome = ANY(:invalid)) ends GROUP BY outcome ORDER BY outcome",
    "rewards": "SELECT to_char(floor(reward * 10 + 1e-9) / 10, 'FM0.0'), count(*) FROM rollouts"
    " WHERE run_id = :run AND reward IS NOT NULL GROUP BY 1 ORDER BY 1",
}
_MEANS = """
SELECT avg(reward) AS mean_reward,
    count(reward)::float8 / nullif(count(*) FILTER (
        WHERE reward IS NOT NULL OR state IN ('INVALID', 'FAILED', 'DEAD', 'EXPIRED')), 0) AS valid_share
FROM rollouts WHERE run_id = :run
"""
_RATE = """
SELECT count(*)::float8 / greatest(least(30, extract(epoch FROM clock_timestamp() - max(run.started_at))), 1)
FROM gradings g JOIN rollouts r ON r.id = g.rollout_id JOIN runs run ON run.id = r.run_id
WHERE r.run_id = :run AND g.selected AND g.finished_at > clock_timestamp() - interval '30 seconds'
"""


def stats(session: Session, run_id: str) -> RunStats:
    """What the run has come to."""
    values = {"run": run_id, "invalid": _INVALID}
    counts = {name: _counted(session, sql, values) for name, sql in _COUNTS.items()}
    means = session.execute(text(_MEANS), values).one()
    groups = counts["groups"]
    settled = sum(n for state, n in groups.items() if state not in ("OPEN", "CANCELLED", "EVALUATED"))
    version = session.execute(
        text("SELECT max(version) FROM policy_versions WHERE run_id = :run AND state = 'PUBLISHED'"), values
    ).scalar()
    return RunStats(
        **counts,
        mean_reward=means.mean_reward,
        valid_share=means.valid_share,
        filter_rate=groups.get("FILTERED", 0) / settled if settled else None,
        rollouts_per_second=session.execute(text(_RATE), values).scalar(),
        policy_version=version,
    )


def _counted(session: Session, sql: str, values: dict[str, Any]) -> dict[str, int]:
    return {str(name): count for name, count in session.execute(text(sql), values)}


_LATENCY = """
WITH marks AS (
    SELECT t.rollout_id,
        min(t.at) AS planned,
        max(t.at) FILTER (WHERE t."end" = 'QUEUED') AS queued,
        max(t.at) FILTER (WHERE t."end" = 'GRANTED') AS granted,
        max(t.at) FILTER (WHERE t."end" = 'RUNNING') AS claimed,
        max(t.at) FILTER (WHERE t."end" = 'SCORED') AS scored,
        max(t.at) FILTER (WHERE t."end" IN ('TRAINED', 'EVALUATED', 'FILTERED', 'STALE')) AS ended
    FROM transitions t JOIN rollouts r ON r.id = t.rollout_id WHERE r.run_id = :run GROUP BY t.rollout_id
)
SELECT count(ended) AS ended,
    count(ended) / nullif(extract(epoch FROM max(ended) - min(planned)), 0)::float8 AS ended_per_second,
    percentile_cont(ARRAY[0.5, 0.99]) WITHIN GROUP (ORDER BY extract(epoch FROM scored - granted) * 1000)
        FILTER (WHERE scored > granted) AS scoring,
    percentile_cont(ARRAY[0.5, 0.99]) WITHIN GROUP (ORDER BY extract(epoch FROM claimed - queued) * 1000)
        FILTER (WHERE claimed > queued) AS claiming
FROM marks
"""


def latency(session: Session, run_id: str) -> Latency:
    """How fast the run's rollouts went, from their transitions."""
    row = session.execute(text(_LATENCY), {"run": run_id}).one()
    return Latency(
        ended=row.ended,
        ended_per_second=row.ended_per_second,
        grant_to_scored_ms=_percentiles(row.scoring),
        queued_to_claimed_ms=_percentiles(row.claiming),
    )


def _percentiles(values: list[float] | None) -> dict[str, float]:
    return dict(zip(("p50", "p99"), map(float, values), strict=True)) if values else {}


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """Every rollout whose oldest token came from one policy version, filtered groups included."""

    version: int
    mean: float
    low: float
    """Lower quartile of the groups' means."""
    high: float
    valid: int


def curve(session: Session, run_id: str) -> tuple[CurvePoint, ...]:
    """Reward by policy version, as generated: the curve that filtering does not bend."""
    rows = session.execute(
        text(
            "SELECT version, sum(total) / sum(valid) AS mean, sum(valid) AS valid,"
            " percentile_cont(0.25) WITHIN GROUP (ORDER BY total / valid) AS low,"
            " percentile_cont(0.75) WITHIN GROUP (ORDER BY total / valid) AS high FROM ("
            "SELECT min(oldest_version) AS version, sum(reward) AS total, count(reward) AS valid"
            " FROM rollouts"
            " WHERE run_id = :run AND reward IS NOT NULL GROUP BY group_id) groups"
            " WHERE version IS NOT NULL GROUP BY version ORDER BY version"
        ),
        {"run": run_id},
    )
    return tuple(
        CurvePoint(version=r.version, mean=float(r.mean), low=r.low, high=r.high, valid=int(r.valid))
        for r in rows
    )
