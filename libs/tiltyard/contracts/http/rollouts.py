"""Rollouts: their moves, attempts and traces, and messages that came to nothing."""

from datetime import datetime

from pydantic import JsonValue

from tiltyard.contracts.document import Document
from tiltyard.contracts.records import AttemptRecord, GradingRecord, Span


class RolloutView(Document):
    id: str
    run_id: str
    group_id: str
    task: str
    """Task version."""
    task_name: str
    member: int
    state: str
    fence: int
    reward: float | None = None
    outcome: str | None = None
    reason: str = ""
    policy_version: int | None = None
    trace_id: str | None = None
    created_at: datetime
    updated_at: datetime


class BrokerLetter(Document):
    """A message that the broker gave up on; the rows that it spoke of are announced again by themselves."""

    id: int
    queue: str
    """Where it died."""
    reason: str
    """RabbitMQ's word: rejected, delivery_limit, expired, maxlen."""
    headers: dict[str, JsonValue]
    body: str
    created_at: datetime


class TransitionView(Document):
    seq: int
    start: str | None
    end: str
    fence: int
    actor: str
    reason: str
    at: datetime


class RolloutDetail(Document):
    """A rollout with everything that is kept about it."""

    rollout: RolloutView
    transitions: tuple[TransitionView, ...]
    attempts: tuple[AttemptRecord, ...] = ()
    gradings: tuple[GradingRecord, ...] = ()
    missing: tuple[str, ...] = ()
    """Records that a row points to and the object store does not give, each with the error."""


class TraceView(Document):
    """Every span that is kept of a rollout, of all attempts."""

    rollout_id: str
    spans: tuple[Span, ...]
