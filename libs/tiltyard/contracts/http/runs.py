"""Runs: their state, steps, policies, statistics and ledger."""

from datetime import datetime
from typing import Literal

from tiltyard.contracts.document import Document
from tiltyard.contracts.run_config import RunConfig

RunState = Literal["PENDING", "RUNNING", "COMPLETED", "FAILED", "CANCELLED"]


class PolicyView(Document):
    """One policy version of a run."""

    version: int
    state: Literal["PUBLISHED", "WITHDRAWN"]
    step: int | None
    prefix: str
    created_at: datetime


class RunView(Document):
    id: str
    name: str
    kind: Literal["sft", "train", "evaluation"]
    state: RunState
    config: RunConfig
    reason: str = ""
    """Why it failed or was cancelled."""
    step: int = 0
    """Training steps committed."""
    policy_version: int | None = None
    created_at: datetime
    started_at: datetime | None = None
    finished_at: datetime | None = None


class StepView(Document):
    """One point of a run's curves."""

    step: int
    state: Literal["STARTED", "COMMITTED", "WITHDRAWN"]
    policy_version: int | None
    metrics: dict[str, float]
    started_at: datetime
    committed_at: datetime | None


class RunStats(Document):
    """What a run has come to, counted from its rows."""

    rollouts: dict[str, int]
    """By state."""
    groups: dict[str, int]
    """By state."""
    failures: dict[str, int]
    """Ended attempts by outcome, without the valid ones."""
    rewards: dict[str, int]
    """Selected gradings by reward, in tenths ("0.0" … "1.0")."""
    mean_reward: float | None
    valid_share: float | None
    filter_rate: float | None
    rollouts_per_second: float | None
    """Over the last 30 seconds."""
    policy_version: int | None


class Latency(Document):
    """How fast a run's rollouts went through their states, from their transitions."""

    ended: int
    """Rollouts that have reached a terminal state by scoring."""
    ended_per_second: float | None
    """Those, over the time from the first being planned to the last ending."""
    grant_to_scored_ms: dict[str, float]
    """Percentiles `p50` and `p99`, over each rollout's last grant; empty while nothing is scored."""
    queued_to_claimed_ms: dict[str, float]
    """Percentiles `p50` and `p99`, from the last time that it was queued."""


class TaskScore(Document):
    """One task's valid rewards in an evaluation run."""

    task: str
    name: str
    valid: int
    passed: int
    mean: float


class EvaluationView(Document):
    """Result of an evaluation run: mean reward over tasks, with a 95 % bootstrap interval over tasks."""

    run_id: str
    policy: str
    tasks: int
    rollouts: int
    valid: int
    mean: float | None
    low: float | None
    high: float | None
    scores: tuple[TaskScore, ...] = ()


class Discrepancy(Document):
    """One disagreement between records that are written separately."""

    rule: str
    row: str
    detail: str


class LedgerView(Document):
    """The reconciliation of a run's records."""

    run_id: str
    planned_groups: int
    created: int
    by_state: dict[str, int]
    trained_steps: int
    balanced: bool
    discrepancies: tuple[Discrepancy, ...] = ()
    checked_at: datetime
